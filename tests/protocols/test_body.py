from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import RequestError, UnsupportedError
from minka.params import UNSUPPORTED_FIELDS, GenerationParams
from minka.protocols.body import (
    MAX_PROMPTS,
    MAX_STOP_LENGTH,
    decode_biases,
    decode_json,
    decode_options,
    decode_prompts,
    jobs,
    new_id,
)
from minka.types import Priority
from tests.fakes import BOS, EOS, FakeVocab
from tests.protocols.values import made_served

VOCAB = FakeVocab(add_bos=True)
SERVED = made_served(VOCAB)


def refusal(body: Mapping[str, object]) -> RequestError:
    """The error that a completion request of these fields meets."""
    with pytest.raises(RequestError) as caught:
        decode_options(body, SERVED)
    return caught.value


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"[]", "must be a JSON object, but is an array"),
        (b'"x"', "must be a JSON object, but is a string"),
        (b"null", "must be a JSON object, but is null"),
        (b"7", "must be a JSON object, but is a number"),
        (b'{"prompt": "a', "not valid JSON"),
        (b'{"prompt": "a"} {}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": "\\ud800 alone"}', "not valid JSON"),
        (b'{"seed": NaN}', "not valid JSON"),
        (b'{"seed": Infinity}', "not valid JSON"),
        (b'{"seed": 1e400}', "not valid JSON|too large"),
        (b'{"a": {"b": [-1e999]}}', "not valid JSON|too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b"[" * 50_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(raw: bytes, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        decode_json(raw)


def test_an_object_comes_through_as_it_is() -> None:
    assert decode_json('{"a": [1, 2.5, null, true, "ü"]}'.encode()) == {"a": [1, 2.5, None, True, "ü"]}


@given(st.binary(max_size=40))
def test_no_bytes_make_anything_but_an_object_or_a_request_error(raw: bytes) -> None:
    with suppress(RequestError):
        assert isinstance(decode_json(raw), dict)


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [[BOS, 97, 98]]),
        ("a</s>", [[BOS, 97, EOS]]),
        ([97, 98], [[97, 98]]),
        (["ab", 99, "d"], [[BOS, 97, 98, 99, 100]]),
        ([99, "ab"], [[99, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[97], "b", ["c", 100]], [[97], [BOS, 98], [BOS, 99, 100]]),
        ({"prompt_string": "ab"}, [[BOS, 97, 98]]),
        ({"prompt_string": "a", "multimodal_data": []}, [[BOS, 97]]),
        ([{"prompt_string": "a"}, [98]], [[BOS, 97], [98]]),
        (["a"], [[BOS, 97]]),
        ([[97, 98]], [[97, 98]]),
        ([], [[]]),
        ([[]], [[]]),
    ],
)
def test_every_form_of_a_prompt_becomes_tokens(prompt: object, tokens: list[list[int]]) -> None:
    assert decode_prompts(prompt, VOCAB) == tokens


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (7, "prompt"),
        (True, "prompt"),
        (2.5, "prompt"),
        ([97, -1], "prompt[1]"),
        ([97, 259], "prompt[1]"),
        ([2**63], "prompt[0]"),
        ([[97], [98, 259]], "prompt[1][1]"),
        ([97, True], "prompt[0]"),
        ([97, 1.5], "prompt[0]"),
        ([97, None], "prompt[0]"),
        ([[97, None]], "prompt[0][1]"),
        ([[[97]]], "prompt[0][0]"),
        ({}, "prompt.prompt_string"),
        ({"prompt_string": 7}, "prompt.prompt_string"),
        ({"prompt_string": "a", "multimodal_data": ["aGk="]}, "prompt.multimodal_data"),
        (["a", {"prompt_string": [9999]}], "prompt[1].prompt_string[0]"),
        (["a"] * (MAX_PROMPTS + 1), "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_path(prompt: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_prompts(prompt, VOCAB)
    assert caught.value.param == param
    assert caught.value.status == 400


def test_an_id_outside_the_vocabulary_is_named_with_the_range() -> None:
    with pytest.raises(RequestError, match=r'"prompt\[1\]": token id 259 is outside the vocabulary \(0 to 258\)'):
        decode_prompts([1, 259], VOCAB)


# -- logit bias --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "biases"),
    [
        ({"97": 1.5}, [(97, 1.5)]),
        ({"97": False}, [(97, -math.inf)]),
        ({"ab": -2}, [(97, -2.0), (98, -2.0)]),
        ([[97, 1], ["b", False]], [(97, 1.0), (98, -math.inf)]),
        ([["97", 1]], [(ord("9"), 1.0), (ord("7"), 1.0)]),
        ({"--5": 1}, [(45, 1.0), (45, 1.0), (53, 1.0)]),
        ({"-": 1}, [(45, 1.0)]),
        ({"": 1}, []),
        ({}, []),
        ([], []),
    ],
)
def test_every_form_of_a_bias_names_tokens(value: object, biases: list[tuple[int, float]]) -> None:
    assert list(decode_biases(value, VOCAB)) == biases


@pytest.mark.parametrize(
    "value",
    [
        "97",
        7,
        True,
        [97],
        [[97]],
        [[97, 1, 2]],
        [[97, "much"]],
        [[97, True]],
        [[97, None]],
        [[97, 1e30]],
        [[97, -1e30]],
        [[97, 10**400]],
        [[None, 1]],
        [[1.5, 1]],
        [[True, 1]],
        [[259, 1]],
        [[-1, 1]],
        {"259": 1},
        {"-1": 1},
        {"99999999999999999": 1},
        {"97": []},
    ],
)
def test_a_bad_bias_is_refused_by_name(value: object) -> None:
    error = refusal({"logit_bias": value})
    assert error.param == "logit_bias"


def test_very_many_digits_are_a_text_and_no_number() -> None:
    assert len(decode_biases({"9" * 5000: 1}, VOCAB)) == 5000


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_request_without_options_has_the_servers() -> None:
    served = made_served(generation=replace(GenerationParams(), n_predict=7, stop=("END",)))
    options = decode_options({}, served)
    assert (options.sampling, options.generation) == (served.sampling, served.generation)
    assert not options.usage_in_stream


def test_null_is_absent_and_aliases_are_read_in_order() -> None:
    options = decode_options({"max_tokens": 5, "max_completion_tokens": None, "temperature": None, "n": 2}, SERVED)
    assert options.generation.n_predict == 5
    assert options.generation.n_cmpl == 2
    assert options.sampling == SERVED.sampling
    both = decode_options({"max_tokens": 5, "n_predict": 3}, SERVED)
    assert both.generation.n_predict == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": [1]}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"n_predict": -2}, "n_predict"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"repeat_last_n": -1}, "repeat_last_n"),
        ({"dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ({"samplers": ["no-such"]}, "samplers"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stop": 7}, "stop"),
        ({"stop": [7]}, "stop"),
        ({"stop": ["x" * (MAX_STOP_LENGTH + 1)]}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"n_cmpl": 257}, "n_cmpl"),
        ({"id_slot": 4}, "id_slot"),
        ({"id_slot": -2}, "id_slot"),
        ({"stream_options": 1}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options"),
        ({"stream_options": {"continuous_usage_stats": "yes"}}, "stream_options"),
        ({"n_indent": -1}, "n_indent"),
        ({"backend_sampling": 1}, "backend_sampling"),
        ({"lora": {}}, "lora"),
        ({"lora": [0]}, "lora"),
        ({"lora": [{"scale": 1}]}, "lora"),
        ({"lora": [{"id": "0"}]}, "lora"),
        ({"lora": [{"id": 9, "scale": 1}]}, "lora"),
        ({"lora": [{"id": 0, "scale": "1"}]}, "lora"),
        ({"lora": [{"id": 0, "scale": 1e7}]}, "lora"),
        ({"priority": 2}, "priority"),
        ({"sse_ping_interval": -2}, "sse_ping_interval"),
        ({"response_fields": "content"}, "response_fields"),
    ],
)
def test_a_bad_option_is_refused_by_name(body: Mapping[str, object], param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert param in error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"grammar_lazy": True}, "grammar_lazy"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 3}, "logprobs"),
        ({"store": True}, "store"),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_name(body: Mapping[str, object], param: str) -> None:
    error = refusal(body)
    assert isinstance(error, UnsupportedError)
    assert error.param == param
    assert f'"{param}"' in error.message


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
def test_a_field_that_asks_for_nothing_is_let_through(name: str) -> None:
    for neutral in (None, *UNSUPPORTED_FIELDS[name]):
        decode_options({name: neutral}, SERVED)


def test_fields_of_nobody_are_ignored() -> None:
    assert decode_options({"model": "gpt-4o", "user": "me", "colour": "red"}, SERVED) == decode_options({}, SERVED)


def test_usage_in_the_stream_has_to_be_asked_for() -> None:
    for options, wanted in (({}, False), ({"include_usage": None}, False), ({"include_usage": True}, True)):
        assert decode_options({"stream_options": options}, SERVED).usage_in_stream is wanted


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_a_job_carries_all_that_the_request_says() -> None:
    body = {
        "n_predict": 9,
        "stop": "END",
        "priority": -1,
        "id_slot": 3,
        "cache_prompt": False,
        "return_progress": True,
        "t_max_predict_ms": 50,
        "close_at_limit": True,
        "temperature": 0,
        "logit_bias": {"97": 1},
    }
    (job,) = jobs([[1, 2]], decode_options(body, SERVED), "id")
    assert (job.id, job.prompt, job.n_predict, job.stop) == ("id:0", (1, 2), 9, ("END",))
    assert (job.priority, job.id_slot, job.cache_prompt) == (Priority.LOW, 3, False)
    assert (job.return_progress, job.t_max_predict_ms, job.close_at_limit) == (True, 50, True)
    assert (job.sampling.temperature, job.sampling.logit_bias) == (0.0, ((97, 1.0),))


def test_choices_come_prompt_by_prompt_with_following_seeds() -> None:
    made = jobs([[1], [2]], decode_options({"n": 2, "seed": 2**32 - 1}, SERVED), "x")
    assert [job.id for job in made] == ["x:0", "x:1", "x:2", "x:3"]
    assert [job.prompt for job in made] == [(1,), (1,), (2,), (2,)]
    assert [job.sampling.seed for job in made] == [2**32 - 1, 0, 2**32 - 1, 0]


def test_a_random_seed_stays_random_for_every_choice() -> None:
    assert {job.sampling.seed for job in jobs([[1]], decode_options({"n": 3}, SERVED), "x")} == {-1}


def test_ids_are_random_and_of_openais_form() -> None:
    one, two = new_id("chatcmpl-"), new_id("chatcmpl-")
    assert one != two
    assert one.removeprefix("chatcmpl-").isalnum()
    assert len(one) == len("chatcmpl-") + 32
