from __future__ import annotations

import json
from math import log
from typing import cast

import pytest

from minka.protocols.native import NativeExchange, decode
from minka.protocols.settings import RANDOM_SEED
from minka.types import FinishReason, TokenLogprobs, TokenProb
from tests.fakes import FakeVocab
from tests.protocols.values import Play, at, frames, lines, made_served, probs, whole

SERVED = made_served(FakeVocab(add_bos=True))

KEYS = [
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached",
    "timings",
]  # fmt: skip


def native(prompt: object = "abc", **fields: object) -> NativeExchange:
    return decode({"prompt": prompt, **fields}, SERVED)


def several(exchange: NativeExchange, *plays: Play) -> list[dict[str, object]]:
    for index, job in enumerate(exchange.jobs):
        for event in plays[index].events(job):
            exchange.add(event)
    return cast("list[dict[str, object]]", exchange.whole())


def test_a_whole_answer_is_llama_servers_object() -> None:
    answer = whole(native(), Play(["He\n", "llo"], truncated=True))
    assert list(answer) == KEYS
    assert (answer["content"], answer["prompt"], answer["tokens"]) == ("He\nllo", "<s>abc", [])
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (2, 4, 6)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert (answer["has_new_line"], answer["truncated"], answer["id_slot"]) == (True, True, 2)
    assert answer["model"] == "fake.gguf"


def test_tokens_are_sent_if_asked_for() -> None:
    assert whole(native(return_tokens=True), Play(["H", "i"]))["tokens"] == [ord("H"), ord("i")]


def test_the_stop_string_is_told() -> None:
    answer = whole(native(stop=["END"]), Play(["a", ""], reason=FinishReason.WORD, stop_word="END"))
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "END")
    assert at(answer, "generation_settings", "stop") == ["END"]


def test_one_prompt_is_an_object_and_several_are_a_list() -> None:
    assert [at(one, "content") for one in several(native(["a", "b"]), Play(["x"]), Play(["y"]))] == ["x", "y"]
    made = several(native("a", n=2, seed=7), Play(["x"]), Play(["y"]))
    assert [at(one, "index") for one in made] == [0, 1]
    assert [at(one, "generation_settings", "seed") for one in made] == [7, 8]
    assert "content" in whole(native(["a"]), Play(["x"]))


def test_a_random_seed_is_shown_as_llama_cpps_number() -> None:
    assert at(whole(native()), "generation_settings", "seed") == RANDOM_SEED


def test_a_stream_ends_with_the_full_object_and_no_done() -> None:
    raw = lines(native(stream=True), Play(["He", "", "llo"], rest="!"))
    assert "[DONE]" not in raw
    chunks = [json.loads(line) for line in raw]
    assert [chunk["content"] for chunk in chunks] == ["He", "", "llo", "!", ""]
    assert [chunk["stop"] for chunk in chunks] == [False, False, False, False, True]
    assert chunks[0] == {
        "index": 0,
        "content": "He",
        "tokens": [72],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 1,
        "tokens_evaluated": 4,
    }
    assert list(chunks[-1]) == KEYS
    assert chunks[-1]["tokens"] == []


def test_progress_and_timings_are_in_the_stream_if_asked_for() -> None:
    chunks = frames(native(stream=True, return_progress=True, timings_per_token=True), Play(["a"], progress=[0, 4]))
    assert [at(chunk, "prompt_progress", "processed") for chunk in chunks[:2]] == [0, 4]
    assert ["timings" in chunk for chunk in chunks] == [True] * 4
    assert at(chunks[0], "timings", "prompt_ms") == 0
    assert at(chunks[1], "timings", "prompt_ms") == 1.5
    assert at(chunks[1], "timings", "prompt_n") == at(chunks[1], "prompt_progress", "processed")


def test_only_the_wanted_fields_are_sent_by_their_paths() -> None:
    fields = ["content", "generation_settings/n_predict", "timings/no-such", "no/such/path", "content/deeper"]
    answer = whole(native(n_predict=5, response_fields=fields), Play(["Hi"]))
    assert answer == {"content": "Hi", "generation_settings/n_predict": 5}


def test_the_wanted_fields_hold_for_the_end_of_a_stream() -> None:
    chunks = frames(native(stream=True, response_fields=["stop_type"]), Play(["Hi"]))
    assert chunks[-1] == {"stop_type": "eos"}


def test_probabilities_have_ids_and_are_logarithms() -> None:
    answer = whole(native(n_probs=2), Play(["H"], logprobs=[probs("H", "h")]))
    assert answer["completion_probabilities"] == [
        {
            "id": 72,
            "token": "H",
            "bytes": [72],
            "logprob": log(0.5),
            "top_logprobs": [
                {"id": 72, "token": "H", "bytes": [72], "logprob": log(0.5)},
                {"id": 104, "token": "h", "bytes": [104], "logprob": log(0.25)},
            ],
        }
    ]


def test_probabilities_after_sampling_are_no_logarithms() -> None:
    answer = whole(native(n_probs=1, post_sampling_probs=True), Play(["H"], logprobs=[probs("H")]))
    (entry,) = cast("list[dict[str, object]]", answer["completion_probabilities"])
    assert entry["prob"] == pytest.approx(0.5)
    assert [list(cast("dict[str, object]", one)) for one in cast("list[object]", entry["top_probs"])] == [
        ["id", "token", "bytes", "prob"]
    ]


def test_a_probability_of_nothing_is_still_json() -> None:
    lowest = TokenLogprobs(TokenProb(1, b"\xff", -3.4028234663852886e38), ())
    answer = whole(native(n_probs=1), Play(["a"], logprobs=[lowest]))
    assert at(answer, "completion_probabilities", 0, "token") == ""
    assert at(answer, "completion_probabilities", 0, "bytes") == [255]


def test_the_tokens_of_a_stop_string_have_no_probabilities() -> None:
    play = Play(["a", "", ""], reason=FinishReason.WORD, stop_word="XY", logprobs=[probs("a"), probs("X"), probs("Y")])
    answer = whole(native(n_probs=1, stop="XY"), play)
    assert [at(answer, "completion_probabilities", 0, "token")] == ["a"]
    assert len(cast("list[object]", answer["completion_probabilities"])) == 1


def test_each_chunk_of_a_stream_has_its_tokens_probabilities_and_the_end_none() -> None:
    chunks = frames(native(stream=True, n_probs=1), Play(["a", "b"], logprobs=[probs("a"), probs("b")]))
    assert [at(chunk, "completion_probabilities", 0, "token") for chunk in chunks[:2]] == ["a", "b"]
    assert "completion_probabilities" not in chunks[-1]
