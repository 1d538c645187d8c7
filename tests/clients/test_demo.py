"""The official client and a model that understands a little: the whole way from messages to sensible words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.server.site import Live

pytestmark = pytest.mark.model

MODEL = "test-model"
CAPITAL: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital city of France? Answer in one sentence."}
]


@pytest.fixture
def client(demo_server: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_server.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_it_knows_the_capital_of_france(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=24)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_it_goes_on_with_what_was_said(client: OpenAI) -> None:
    turns: list[ChatCompletionMessageParam] = [
        *CAPITAL,
        {"role": "assistant", "content": "The capital city of France is"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=turns, max_tokens=4)
    assert (answer.choices[0].message.content or "").startswith(" Paris")


def test_a_stream_of_several_choices_with_a_stop_string(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, max_tokens=24, n=2, stop="Paris", stream=True
    )
    texts, ends = {0: "", 1: ""}, {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts[0] == texts[1]
    assert texts[0].startswith("The capital city of France is")
    assert "Paris" not in texts[0]
    assert ends == {0: "stop", 1: "stop"}


def test_a_second_question_finds_the_first_in_the_cache(client: OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=8)
    again = client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=8)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_log_probabilities_are_those_of_a_sure_model(client: OpenAI) -> None:
    choice = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=1, logprobs=5
    ).choices[0]
    assert choice.text == " Paris"
    assert choice.logprobs is not None
    assert choice.logprobs.top_logprobs is not None
    best = choice.logprobs.top_logprobs[0]
    assert max(best, key=lambda token: best[token]) == " Paris"
