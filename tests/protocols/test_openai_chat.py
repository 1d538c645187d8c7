from __future__ import annotations

import json
import time
from math import log

import pytest

from minka.errors import RequestError
from minka.params import GenerationParams
from minka.protocols.openai_chat import ChatExchange, chat_text, chat_tokens, decode
from minka.types import FinishReason, Started
from tests.fakes import BOS, FakeVocab, tokens_of
from tests.protocols.values import Play, at, frames, lines, made_served, probs, whole

SERVED = made_served()
MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def chat(**fields: object) -> ChatExchange:
    return decode({"messages": MESSAGES, **fields}, SERVED)


def deltas(made: list[dict[str, object]], index: int = 0) -> list[object]:
    """What a choice's chunks add."""
    return [
        at(choice, "delta")
        for chunk in made
        for choice in (chunk["choices"] if isinstance(chunk["choices"], list) else [])
        if at(choice, "index") == index
    ]


# -- the prompt --------------------------------------------------------------------------------------------------------


def test_messages_become_the_prompt_of_the_template() -> None:
    assert chat_text({"messages": MESSAGES}, SERVED) == PROMPT
    assert tuple(chat_tokens({"messages": MESSAGES}, SERVED)) == tokens_of(PROMPT)
    assert chat().jobs[0].prompt == tokens_of(PROMPT)


def test_an_assistants_message_at_the_end_is_continued() -> None:
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": "Hel"}]}
    assert chat_text(body, SERVED) == PROMPT + "Hel"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*MESSAGES, {"role": "user", "content": 7}]}, "messages[1].content"),
        ({"messages": MESSAGES, "logprobs": 3}, "logprobs"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"messages": MESSAGES, "chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": MESSAGES, "add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
    ],
)
def test_a_bad_request_is_refused_by_the_path_of_what_is_wrong(body: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(body, SERVED)
    assert caught.value.param == param
    assert caught.value.status == 400


# -- the whole answer --------------------------------------------------------------------------------------------------


def test_a_whole_answer_is_openais_object() -> None:
    before = int(time.time())
    answer = whole(chat(), Play(["He", "llo"], cache_n=3))
    assert list(answer) == [
        "choices", "created", "model", "system_fingerprint", "object", "id", "usage", "timings",
    ]  # fmt: skip
    assert answer["choices"] == [
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Hello"}}
    ]
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == (
        "chat.completion",
        "fake.gguf",
        "b0-test",
    )
    assert str(answer["id"]).startswith("chatcmpl-")
    assert before <= int(str(answer["created"])) <= time.time()
    assert answer["usage"] == {
        "completion_tokens": 2,
        "prompt_tokens": len(PROMPT),
        "total_tokens": len(PROMPT) + 2,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert at(answer, "timings", "cache_n") == 3


def test_text_that_was_withheld_until_the_end_is_in_the_answer() -> None:
    assert at(whole(chat(), Play(["He", ""], rest="EN")), "choices", 0, "message", "content") == "HeEN"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.EOS, "stop"),
        (FinishReason.WORD, "stop"),
        (FinishReason.LIMIT, "length"),
    ],
)
def test_the_end_has_openais_name(reason: FinishReason, word: str) -> None:
    assert at(whole(chat(), Play(reason=reason)), "choices", 0, "finish_reason") == word


def test_several_choices_count_the_prompt_once() -> None:
    answer = whole(chat(n=3), Play(["a"]), Play(["b", "b"]), Play(["c"], reason=FinishReason.LIMIT))
    assert [at(answer, "choices", i, "message", "content") for i in range(3)] == ["a", "bb", "c"]
    assert [at(answer, "choices", i, "index") for i in range(3)] == [0, 1, 2]
    assert [at(answer, "choices", i, "finish_reason") for i in range(3)] == ["stop", "stop", "length"]
    assert answer["usage"] == {
        "completion_tokens": 4,
        "prompt_tokens": len(PROMPT),
        "total_tokens": len(PROMPT) + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_log_probabilities_are_there_only_if_asked_for() -> None:
    assert "logprobs" not in at(whole(chat()), "choices", 0)  # type: ignore[operator]
    play = Play(["H", "i"], logprobs=[probs("H", "h", "J"), probs("i")])
    answer = whole(chat(logprobs=True, top_logprobs=2), play)
    first = at(answer, "choices", 0, "logprobs", "content", 0)
    assert first == {
        "token": "H",
        "bytes": [72],
        "logprob": log(0.5),
        "top_logprobs": [
            {"token": "H", "bytes": [72], "logprob": log(0.5)},
            {"token": "h", "bytes": [104], "logprob": log(0.25)},
        ],
    }


@pytest.mark.parametrize(("fields", "n_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 1}, 1)])
def test_no_more_alternatives_are_shown_than_asked_for(fields: dict[str, object], n_top: int) -> None:
    exchange = chat(logprobs=True, **fields)
    assert exchange.jobs[0].sampling.n_probs == 1
    answer = whole(exchange, Play(["H"], logprobs=[probs("H", "h")]))
    assert len(at(answer, "choices", 0, "logprobs", "content", 0, "top_logprobs")) == n_top  # type: ignore[arg-type]


def test_tokens_of_a_stop_string_have_no_log_probabilities() -> None:
    play = Play(["a", "", ""], reason=FinishReason.WORD, stop_word="XY", logprobs=[probs("a"), probs("X"), probs("Y")])
    answer = whole(chat(logprobs=True, stop="XY"), play)
    assert at(answer, "choices", 0, "message", "content") == "a"
    content = at(answer, "choices", 0, "logprobs", "content")
    assert [at(content, i, "token") for i in range(len(content))] == ["a"]  # type: ignore[arg-type]


def test_verbose_adds_the_native_answer() -> None:
    native = at(whole(chat(verbose=True)), "__verbose")
    assert at(native, "content") == "Hello"
    assert at(native, "prompt") == PROMPT


# -- the stream --------------------------------------------------------------------------------------------------------


def test_a_stream_gives_role_text_end_and_done() -> None:
    raw = lines(chat(stream=True), Play(["He", "", "llo"], rest="!"))
    assert raw[-1] == "[DONE]"
    chunks = [json.loads(line) for line in raw[:-1]]
    assert deltas(chunks) == [
        {"role": "assistant", "content": None},
        {"content": "He"},
        {"content": "llo"},
        {"content": "!"},
        {},
    ]
    assert [at(chunk, "choices", 0, "finish_reason") for chunk in chunks] == [None, None, None, None, "stop"]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [i for i, chunk in enumerate(chunks) if "timings" in chunk] == [4]


def test_an_answer_without_any_text_still_says_its_role() -> None:
    assert deltas(frames(chat(stream=True), Play([""]))) == [{"role": "assistant", "content": None}, {}]
    assert deltas(frames(chat(stream=True), Play([]))) == [{"role": "assistant", "content": None}, {}]


def test_nothing_is_sent_for_the_mere_start() -> None:
    exchange = chat(stream=True)
    assert list(exchange.frames(Started(exchange.jobs[0].id, 0, 5, 0))) == []


def test_each_choice_of_a_stream_has_one_role_and_one_end() -> None:
    chunks = frames(chat(stream=True, n=2), Play(["a"]), Play(["b"], reason=FinishReason.LIMIT))
    for index, text, end in ((0, "a", "stop"), (1, "b", "length")):
        mine = [at(chunk, "choices", 0) for chunk in chunks if at(chunk, "choices", 0, "index") == index]
        assert [at(choice, "delta") for choice in mine] == [
            {"role": "assistant", "content": None},
            {"content": text},
            {},
        ]
        assert [at(choice, "finish_reason") for choice in mine] == [None, None, end]


def test_usage_comes_in_a_chunk_of_its_own_with_the_timings() -> None:
    chunks = frames(chat(stream=True, stream_options={"include_usage": True}), Play(["a", "b"], cache_n=2))
    assert chunks[-1]["choices"] == []
    assert at(chunks[-1], "usage", "completion_tokens") == 2
    assert at(chunks[-1], "usage", "prompt_tokens_details", "cached_tokens") == 2
    assert [i for i, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_progress_comes_before_the_text() -> None:
    chunks = frames(chat(stream=True, return_progress=True), Play(["a"], progress=[0, 9]))
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress == [
        {"total": len(PROMPT), "cache": 0, "processed": 0, "time_ms": 1.5},
        {"total": len(PROMPT), "cache": 0, "processed": 9, "time_ms": 1.5},
    ]
    assert deltas(chunks)[-2:] == [{"content": "a"}, {}]
    assert deltas(chunks)[0] == {"role": "assistant", "content": None}


def test_timings_of_each_token_are_on_its_text_not_on_the_role() -> None:
    chunks = frames(chat(stream=True, timings_per_token=True), Play(["a", "b"]))
    assert ["timings" in chunk for chunk in chunks] == [False, True, True, True]


def test_each_token_of_a_stream_has_its_log_probabilities() -> None:
    play = Play(["H", ""], logprobs=[probs("H", "h"), probs("i")])
    chunks = frames(chat(stream=True, logprobs=True, top_logprobs=1), play)
    tokens = [
        at(chunk, "choices", 0, "logprobs", "content", 0, "token")
        for chunk in chunks
        if at(chunk, "choices", 0, "delta").get("content") is not None  # type: ignore[attr-defined]
    ]
    assert tokens == ["H", "i"]


# -- options -----------------------------------------------------------------------------------------------------------


def test_the_exchange_knows_how_it_is_to_be_sent() -> None:
    assert not chat().stream
    assert chat(stream=True).stream
    assert chat().ping_interval == GenerationParams().sse_ping_interval
    assert chat(sse_ping_interval=3).ping_interval == 3


def test_bos_is_not_there_twice() -> None:
    served = made_served(FakeVocab(add_bos=True), template="{{ bos_token }}{{ messages[0].content }}")
    assert chat_tokens({"messages": MESSAGES}, served) == [BOS, *tokens_of("hi")]
