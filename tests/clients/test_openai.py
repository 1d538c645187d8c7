"""The official `openai` client against a real server: what it sends is understood, what it gets it can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from math import exp

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from tests.server.site import Live

MODEL = "test-model"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def client(tiny_server: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{tiny_server.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


# -- chat --------------------------------------------------------------------------------------------------------------


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=8)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_a_chat_stream_says_the_same(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_several_choices_with_a_seed(client: OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, n=3, seed=7, temperature=1.5
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert first == ask()
    assert len(set(first)) == 3, "each choice has a seed of its own"


def test_several_choices_in_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, n=2, stream=True)
    chunks = list(stream)
    assert text_of(chunks, 0) == text_of(chunks, 1) != ""


def test_log_probabilities(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=3)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    assert len(entries) == 5
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest"
        assert all(one.logprob >= two.logprob for one, two in pairwise(entry.top_logprobs))
        assert 0 < sum(exp(one.logprob) for one in entry.top_logprobs) <= 1 + 1e-6
        assert bytes(entry.bytes or []).decode("utf-8", "ignore") == entry.token


def test_log_probabilities_of_a_stream_are_those_of_the_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True)
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True, stream=True)
    tokens = [
        entry.token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert whole.choices[0].logprobs is not None
    assert tokens == [entry.token for entry in whole.choices[0].logprobs.content or []]


def test_a_stop_string_ends_the_text(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=24).choices[0].text
    word = whole[8:11]
    for stop in (word, [word, "never seen"]):
        choice = client.completions.create(model=MODEL, prompt="Once", max_tokens=24, stop=stop).choices[0]
        assert choice.text == whole[: whole.index(word)]
        assert choice.finish_reason == "stop"


def test_a_bias_forbids_a_token(client: OpenAI) -> None:
    first = client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=1, logprobs=1).choices[0]
    again = client.completions.create(
        model=MODEL, prompt=[5, 6], max_tokens=1, extra_body={"logit_bias": [[first.text, False]]}
    ).choices[0]
    assert again.text != first.text


# -- completions -------------------------------------------------------------------------------------------------------


def test_completions_of_texts_and_of_tokens(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["Once", "upon"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert client.completions.create(model=MODEL, prompt=[1, 5, 6], max_tokens=2).choices[0].text


def test_a_completion_stream_says_the_same(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=10)
    stream = client.completions.create(model=MODEL, prompt="Once", max_tokens=10, stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == whole.choices[0].text


def test_log_probabilities_of_a_completion(client: OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="Once", max_tokens=4, logprobs=2).choices[0]
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or []) == choice.text
    assert len(choice.logprobs.token_logprobs or []) == 4
    assert [len(top) for top in choice.logprobs.top_logprobs or []] == [2, 2, 2, 2]


# -- models and errors -------------------------------------------------------------------------------------------------


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "minka"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_wrong_key(tiny_server: Live) -> None:
    with OpenAI(base_url=f"{tiny_server.url}/v1", api_key="guess", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="Invalid API Key"):
            client.models.list()
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)


def test_a_wrong_request_names_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, presence_penalty=1e30)
    assert caught.value.param == "presence_penalty"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="at least one message"):
        client.chat.completions.create(model=MODEL, messages=[])


def test_what_is_not_supported_says_so(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"prediction.*not supported yet"):
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, prediction={"type": "content", "content": "Red."}
        )


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 5000}], stream=stream
        )
    assert caught.value.type == "exceed_context_size_error"


def test_a_path_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat")


def test_a_server_that_is_not_there() -> None:
    client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        client.models.list()


# -- the asynchronous client -------------------------------------------------------------------------------------------


def test_many_at_once(tiny_server: Live, client: OpenAI) -> None:
    async def one(many: AsyncOpenAI, number: int) -> str:
        stream = await many.completions.create(model=MODEL, prompt=f"Number {number}", max_tokens=12, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of(n: int) -> list[str]:
        async with AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="secret", max_retries=0) as many:
            return await asyncio.gather(*(one(many, number) for number in range(n)))

    texts = asyncio.run(all_of(10))
    assert all(texts)
    assert len(set(texts)) > 5
    assert tiny_server.runtime.engine.n_open == 0


def test_a_stream_that_is_closed_early_ends_the_work(tiny_server: Live) -> None:
    async def leave() -> None:
        async with AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="secret", max_retries=0) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1900, stream=True)
            async for _ in stream:
                break
            await stream.close()

    before = tiny_server.view().counters.predicted_tokens
    asyncio.run(leave())
    while tiny_server.runtime.engine.n_open:
        tiny_server.view()  # comes between two steps, so this waits for a step
    assert tiny_server.view().counters.predicted_tokens < before + 1900
