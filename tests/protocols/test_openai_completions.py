from __future__ import annotations

import json
from math import log

import pytest

from minka.errors import RequestError
from minka.protocols.legacy_logprobs import legacy_logprobs
from minka.protocols.openai_completions import CompletionsExchange, decode
from minka.types import FinishReason, TokenLogprobs, TokenProb
from tests.protocols.values import Play, at, frames, lines, made_served, probs, whole

SERVED = made_served()


def completion(prompt: object = "abc", **fields: object) -> CompletionsExchange:
    return decode({"prompt": prompt, **fields}, SERVED)


def test_a_whole_answer_is_openais_object() -> None:
    answer = whole(completion(), Play(["He", "llo"], rest="!"))
    assert answer["choices"] == [{"text": "Hello!", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert answer["object"] == "text_completion"
    assert str(answer["id"]).startswith("cmpl-")
    assert at(answer, "usage", "prompt_tokens") == 3
    assert at(answer, "timings", "predicted_n") == 2


def test_prompts_and_choices_are_counted_each_once() -> None:
    exchange = completion(["abc", [1, 2]], n=2)
    assert [job.prompt for job in exchange.jobs] == [(97, 98, 99)] * 2 + [(1, 2)] * 2
    answer = whole(exchange, Play(["a"], cache_n=1), Play(["b"]), Play(["c", "c"]), Play(["d"]))
    assert [at(answer, "choices", i, "text") for i in range(4)] == ["a", "b", "cc", "d"]
    assert answer["usage"] == {
        "completion_tokens": 5,
        "prompt_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_a_stream_gives_text_ends_and_done() -> None:
    raw = lines(completion(stream=True), Play(["He", "", "llo"], rest="!", reason=FinishReason.LIMIT))
    assert raw[-1] == "[DONE]"
    chunks = [json.loads(line) for line in raw[:-1]]
    assert [at(chunk, "choices", 0, "text") for chunk in chunks] == ["He", "llo", "!", ""]
    assert [at(chunk, "choices", 0, "finish_reason") for chunk in chunks] == [None, None, None, "length"]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_usage_ends_a_stream_that_asked_for_it() -> None:
    chunks = frames(completion(stream=True, stream_options={"include_usage": True}, n=2), Play(["a"]))
    assert chunks[-1]["choices"] == []
    assert at(chunks[-1], "usage", "completion_tokens") == 2
    assert at(chunks[-1], "usage", "prompt_tokens") == 3
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_progress_and_timings_are_in_the_stream_if_asked_for() -> None:
    chunks = frames(completion(stream=True, return_progress=True, timings_per_token=True), Play(["a"], progress=[0, 3]))
    assert [at(chunk, "prompt_progress", "processed") for chunk in chunks[:2]] == [0, 3]
    assert ["timings" in chunk for chunk in chunks] == [True] * 4
    assert at(chunks[0], "timings", "prompt_ms") == 0
    assert at(chunks[1], "timings", "prompt_ms") == 1.5
    assert at(chunks[1], "timings", "prompt_n") == at(chunks[1], "prompt_progress", "processed")


def test_log_probabilities_are_parallel_lists() -> None:
    answer = whole(completion(logprobs=2), Play(["H", "i"], logprobs=[probs("H", "h", "J"), probs("i", "a")]))
    assert at(answer, "choices", 0, "logprobs") == {
        "tokens": ["H", "i"],
        "token_logprobs": [log(0.5), log(0.5)],
        "top_logprobs": [{"H": log(0.5), "h": log(0.25)}, {"i": log(0.5), "a": log(0.25)}],
        "text_offset": [0, 1],
    }


def test_offsets_of_a_stream_go_on() -> None:
    play = Play(["Ha", "i", "o"], logprobs=[probs("Ha"), probs("i"), probs("o")])
    chunks = frames(completion(stream=True, logprobs=1), play)
    assert [at(chunk, "choices", 0, "logprobs", "text_offset", 0) for chunk in chunks[:3]] == [0, 2, 3]


def test_offsets_count_characters_and_broken_ones_are_replaced() -> None:
    def token(piece: bytes) -> TokenLogprobs:
        return TokenLogprobs(TokenProb(1, piece, -0.5), ())

    made = legacy_logprobs([token("€uro".encode()), token(b"\xe2\x82"), token(b"x")], 10, None)
    assert made["tokens"] == ["€uro", "\ufffd", "x"]
    assert made["text_offset"] == [10, 14, 15]


def test_zero_log_probabilities_show_the_token_alone() -> None:
    exchange = completion(logprobs=0)
    assert exchange.jobs[0].sampling.n_probs == 1
    answer = whole(exchange, Play(["H"], logprobs=[probs("H", "h")]))
    assert at(answer, "choices", 0, "logprobs", "top_logprobs") == [{"H": log(0.5)}]


@pytest.mark.parametrize("value", [None, False])
def test_no_log_probabilities_unless_asked_for(value: object) -> None:
    exchange = completion(logprobs=value)
    assert exchange.jobs[0].sampling.n_probs == 0
    assert at(whole(exchange), "choices", 0, "logprobs") is None


@pytest.mark.parametrize("value", [True, -1, 21, 2.5, "2", [1]])
def test_bad_log_probabilities_are_refused(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        completion(logprobs=value)
    assert caught.value.param == "logprobs"


def test_a_request_without_a_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match='"prompt" is required'):
        decode({}, SERVED)
