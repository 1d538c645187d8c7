"""`/v1/completions`: echo, the prompt's log probabilities, the best of several, a suffix, and usage so far."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from minka.errors import NotSupportedError, RequestError
from minka.protocols.openai_completions import CompletionsExchange, decode
from minka.types import FinishReason, TokenLogprobs, TokenProb
from tests.fakes import BOS, FakeVocab
from tests.protocols.values import FIM, Play, at, frames, made_served, probs, whole

SERVED = made_served()
WITH_BOS = made_served(FakeVocab(add_bos=True))


def completion(prompt: object = "abc", **fields: object) -> CompletionsExchange:
    return decode({"prompt": prompt, **fields}, SERVED)


# -- echo --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("abc", "abc"),
        ([97, 98], "ab"),
        (["a", 98], "ab"),
        ([98], "b"),
        ({"prompt_string": "abc"}, "abc"),
    ],
)
def test_an_echo_begins_with_the_prompt(prompt: object, text: str) -> None:
    answer = whole(completion(prompt, echo=True), Play(["!"]))
    assert at(answer, "choices", 0, "text") == text + "!"
    assert at(answer, "choices", 0, "logprobs") is None
    assert at(answer, "usage", "completion_tokens") == 1


def test_each_prompt_of_a_list_is_echoed() -> None:
    answer = whole(completion(["ab", "c", [100, 101]], echo=True, n=2), Play(["!"]))
    assert [at(answer, "choices", i, "text") for i in range(6)] == ["ab!", "ab!", "c!", "c!", "de!", "de!"]
    answer = whole(completion([[97], [98, 99]], echo=True), Play(["!"]))
    assert [at(answer, "choices", i, "text") for i in range(2)] == ["a!", "bc!"]


def test_a_begin_token_that_nobody_sent_is_not_echoed() -> None:
    exchange = decode({"prompt": "ab", "echo": True, "logprobs": 1}, WITH_BOS)
    assert exchange.jobs[0].prompt == (BOS, 97, 98)
    logprobs = at(whole(exchange, Play(["!"], logprobs=[probs("!")])), "choices", 0, "logprobs")
    assert at(logprobs, "tokens") == ["<s>", "a", "b", "!"]
    assert at(logprobs, "text_offset") == [0, 0, 1, 2]


def test_the_prompts_probabilities_come_before_the_answers() -> None:
    exchange = completion([97, 98, 99], echo=True, logprobs=1, max_tokens=1)
    assert exchange.jobs[0].prompt_logprobs == 1
    play = Play(["d"], logprobs=[probs("d")], prompt_logprobs=[probs("b", "x"), _second("c", "y")])
    answer = whole(exchange, play)
    assert at(answer, "choices", 0, "text") == "abcd"
    assert at(answer, "choices", 0, "logprobs") == {
        "tokens": ["a", "b", "c", "d"],
        "token_logprobs": [None, log(0.5), log(0.25), log(0.5)],
        "top_logprobs": [None, {"b": log(0.5)}, {"y": log(0.5), "c": log(0.25)}, {"d": log(0.5)}],
        "text_offset": [0, 1, 2, 3],
    }


def _second(text: str, best: str) -> TokenLogprobs:
    """A token that another one is likelier than."""
    chosen = TokenProb(ord(text), text.encode(), log(0.25))
    return TokenLogprobs(chosen, (TokenProb(ord(best), best.encode(), log(0.5)),), rank=2)


def test_a_prompt_alone_is_answered_with_its_probabilities() -> None:
    exchange = completion("ab", echo=True, logprobs=0, max_tokens=0)
    assert exchange.jobs[0].n_predict == 0
    answer = whole(exchange, Play([], reason=FinishReason.LIMIT, prompt_logprobs=[probs("b")]))
    assert at(answer, "choices", 0, "text") == "ab"
    assert at(answer, "choices", 0, "finish_reason") == "length"
    assert at(answer, "choices", 0, "logprobs", "token_logprobs") == [None, log(0.5)]
    assert at(answer, "usage", "completion_tokens") == 0


def test_only_one_choice_of_a_prompt_computes_the_prompts_probabilities() -> None:
    exchange = completion(["ab", "cd"], echo=True, logprobs=2, n=2)
    assert [job.prompt_logprobs for job in exchange.jobs] == [2, -1, 2, -1]
    plays = [Play(["!"], logprobs=[probs("!")], prompt_logprobs=[probs("b")] if not n % 2 else []) for n in range(4)]
    answer = whole(exchange, *plays)
    counts = [len(_list(at(answer, "choices", i, "logprobs", "token_logprobs"))) for i in range(4)]
    assert counts == [3, 3, 3, 3]


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def test_a_stream_begins_with_the_echo() -> None:
    exchange = completion("abc", echo=True, stream=True, logprobs=1, n=2)
    assert [job.prompt_logprobs for job in exchange.jobs] == [1, 1]
    play = Play(["d"], logprobs=[probs("d")], prompt_logprobs=[probs("b"), probs("c")])
    chunks = [chunk for chunk in frames(exchange, play) if at(chunk, "choices", 0, "index") == 1]
    assert [at(chunk, "choices", 0, "text") for chunk in chunks] == ["abc", "d", ""]
    assert at(chunks[0], "choices", 0, "logprobs", "token_logprobs") == [None, log(0.5), log(0.5)]
    assert at(chunks[1], "choices", 0, "logprobs", "text_offset") == [3]


def test_nothing_is_scored_that_nobody_sees() -> None:
    assert [completion(echo=True).jobs[0].prompt_logprobs, completion(logprobs=3).jobs[0].prompt_logprobs] == [-1, -1]


def test_offsets_of_broken_characters_do_not_run_away() -> None:
    exchange = completion("é!", echo=True, logprobs=0)  # two byte tokens, then one
    logprobs = at(whole(exchange, Play([], prompt_logprobs=[probs("x"), probs("!")])), "choices", 0, "logprobs")
    assert at(logprobs, "text_offset") == [0, 0, 1]


# -- vLLM's prompt_logprobs --------------------------------------------------------------------------------------------


def test_prompt_logprobs_are_by_token_id() -> None:
    exchange = completion("abc", prompt_logprobs=1)
    assert exchange.jobs[0].prompt_logprobs == 1
    answer = whole(exchange, Play(["!"], prompt_logprobs=[probs("b"), _second("c", "y")]))
    assert at(answer, "choices", 0, "text") == "!"
    assert at(answer, "choices", 0, "prompt_logprobs") == [
        None,
        {"98": {"logprob": log(0.5), "rank": 1, "decoded_token": "b"}},
        {
            "121": {"logprob": log(0.5), "rank": 1, "decoded_token": "y"},
            "99": {"logprob": log(0.25), "rank": 2, "decoded_token": "c"},
        },
    ]
    assert "prompt_logprobs" not in _dict(at(whole(completion()), "choices", 0))


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


# -- best_of -----------------------------------------------------------------------------------------------------------


def test_the_likeliest_completions_are_answered() -> None:
    exchange = completion(["x", "y"], best_of=3, n=2)
    assert len(exchange.jobs) == 6
    assert {job.sampling.n_probs for job in exchange.jobs} == {1}
    plays = [Play([text], logprobs=[entry]) for text, entry in _choices()]
    answer = whole(exchange, *plays)
    assert [at(answer, "choices", i, "text") for i in range(4)] == ["b", "a", "f", "d"]
    assert [at(answer, "choices", i, "index") for i in range(4)] == [0, 1, 2, 3]
    assert at(answer, "choices", 0, "logprobs") is None
    assert answer["usage"] == {
        "completion_tokens": 6,
        "prompt_tokens": 2,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _choices() -> list[tuple[str, TokenLogprobs]]:
    certain = {"a": -1.0, "b": -0.5, "c": -2.0, "d": -0.7, "e": -3.0, "f": -0.1}
    return [(text, TokenLogprobs(TokenProb(1, text.encode(), logprob), ())) for text, logprob in certain.items()]


def test_the_mean_decides_and_not_the_length() -> None:
    plays = [
        Play(["a"] * 4, logprobs=[TokenLogprobs(TokenProb(97, b"a", -0.5), ())] * 4),
        Play(["b"], logprobs=[TokenLogprobs(TokenProb(98, b"b", -1.0), ())]),
    ]
    assert at(whole(completion(best_of=2), *plays), "choices", 0, "text") == "aaaa"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 0}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "n": 2, "stream": True}, "best_of"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 3}, "suffix"),
        ({"suffix": "x", "echo": True}, "suffix"),
        ({"suffix": "x", "prompt_logprobs": 1}, "suffix"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": ["a", [1]], "suffix": "x"}, "prompt"),
    ],
)
def test_what_does_not_go_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode({"prompt": "a", **fields}, SERVED)
    assert caught.value.param == param
    assert f'"{param}"' in caught.value.message


def test_a_load_tool_that_asks_for_the_best_of_one_may_stream() -> None:
    assert completion(best_of=1, stream=True, ignore_eos=True).stream


# -- suffix ------------------------------------------------------------------------------------------------------------


def test_a_suffix_makes_a_gap() -> None:
    exchange = completion(["ab", "c"], suffix="z")
    assert [job.prompt for job in exchange.jobs] == [
        (FIM.prefix, 97, 98, FIM.suffix, 122, FIM.middle),
        (FIM.prefix, 99, FIM.suffix, 122, FIM.middle),
    ]
    assert completion("ab", suffix="").jobs[0].prompt == (97, 98)


def test_a_model_without_the_tokens_cannot_fill_gaps() -> None:
    with pytest.raises(NotSupportedError):
        decode({"prompt": "a", "suffix": "b"}, replace(SERVED, fim=None))


# -- usage so far ------------------------------------------------------------------------------------------------------


def test_every_event_has_the_usage_so_far() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = frames(completion(stream=True, stream_options=options), Play(["a", "b", "c"], cache_n=1))
    counts = [(at(c, "usage", "prompt_tokens"), at(c, "usage", "completion_tokens")) for c in chunks]
    assert counts == [(3, 1), (3, 2), (3, 3), (3, 3), (3, 3)]
    assert at(chunks[0], "usage", "prompt_tokens_details", "cached_tokens") == 1
    assert chunks[-1]["choices"] == []


def test_usage_so_far_needs_the_usage() -> None:
    chunks = frames(completion(stream=True, stream_options={"continuous_usage_stats": True}), Play(["a"]))
    assert not any("usage" in chunk for chunk in chunks)
