from __future__ import annotations

from dataclasses import replace

import pytest

from minka.errors import NotSupportedError, RequestError
from minka.params import GenerationParams
from minka.protocols.infill import Extra, decode, infill_prompt
from minka.types import FimTokens
from tests.fakes import BOS, FakeVocab
from tests.protocols.values import FIM, Play, at, made_served, whole

SERVED = made_served()
FILES = FimTokens(1, 2, 3, repo=4, separator=5)
PRE, SUF, MID, REPO, SEP = b"\1", b"\2", b"\3", b"\4", b"\5"


def prompt(**fields: object) -> bytes:
    (job,) = decode({"input_prefix": "before", "input_suffix": "after", **fields}, SERVED).jobs
    return bytes(job.prompt)


def test_the_gap_is_between_prefix_and_suffix() -> None:
    assert prompt() == PRE + b"before" + SUF + b"after" + MID
    assert prompt(prompt="x = ") == PRE + b"beforex = " + SUF + b"after" + MID


def test_some_models_want_the_suffix_first() -> None:
    served = replace(SERVED, generation=GenerationParams(spm_infill=True))
    (job,) = decode({"input_prefix": "before", "input_suffix": "after", "prompt": "p"}, served).jobs
    assert bytes(job.prompt) == SUF + b"after" + PRE + b"beforep" + MID


def test_other_files_come_first_with_their_names() -> None:
    served = replace(SERVED, fim=FILES)
    body = {
        "input_prefix": "b",
        "input_suffix": "a",
        "input_extra": [{"text": "one", "filename": "1.py"}, {"text": "two"}],
    }
    (job,) = decode(body, served).jobs
    head = REPO + b"myproject\n" + SEP + b"1.py\none" + SEP + b"tmp\ntwo" + SEP + b"filename\n"
    assert bytes(job.prompt) == head + PRE + b"b" + SUF + b"a" + MID


def test_without_a_token_for_files_there_is_a_line_between_them() -> None:
    extra = [{"text": "one"}, {"text": "two", "filename": "unused"}]
    snippet = b"\n\n--- snippet ---\n\n"
    assert prompt(input_extra=extra) == snippet + b"one" + snippet + b"two" + PRE + b"before" + SUF + b"after" + MID


def test_the_begin_token_stands_where_llama_server_has_it() -> None:
    served = replace(made_served(FakeVocab(add_bos=True)), fim=FILES)
    tokens = infill_prompt(served, [98], [97], extra=[Extra("x")])
    assert tokens[-6:] == [BOS, FILES.prefix, 98, FILES.suffix, 97, FILES.middle]
    assert tokens.count(BOS) == 1


def test_spellings_of_special_tokens_in_a_users_file_are_text() -> None:
    assert b"</s>" in prompt(input_prefix="</s>")
    assert prompt(input_prefix=["a", 66, "c"]).startswith(PRE + b"aBc" + SUF)


def test_the_end_of_the_prefix_and_the_beginning_of_the_suffix_fit_a_batch() -> None:
    served = made_served(n_batch=64, n_ctx=1000)
    prefix, suffix = bytes(range(65, 65 + 26)) * 4, b"xyz" * 20
    tokens = bytes(infill_prompt(served, prefix, suffix, prompt=b"1234", extra=[Extra("e" * 2000)]))
    gap = tokens[tokens.index(PRE) :]
    assert gap == PRE + prefix[-48:] + b"1234" + SUF + suffix[: 16 - 2 - 4] + MID
    assert set(tokens[: tokens.index(PRE)]) == {ord("e")}
    assert len(tokens) < served.n_ctx


@pytest.mark.parametrize(("n_ctx", "n_batch", "n_predict"), [(64, 2048, -1), (128, 64, 100), (16, 16, 5), (256, 1, 0)])
@pytest.mark.parametrize("size", [0, 10, 3000])
def test_a_prompt_always_fits_the_context(n_ctx: int, n_batch: int, n_predict: int, size: int) -> None:
    served = made_served(FakeVocab(add_bos=True), n_ctx=n_ctx, n_batch=n_batch)
    served = replace(served, fim=FILES, generation=GenerationParams(n_predict=n_predict))
    tokens = infill_prompt(served, b"a" * size, b"b" * size, extra=[Extra("c" * size)] * 3)
    assert len(tokens) < n_ctx


def test_the_answer_is_the_native_one() -> None:
    exchange = decode({"input_prefix": "a", "input_suffix": "b", "n_predict": 4}, SERVED)
    answer = whole(exchange, Play(["x", "y"]))
    assert (at(answer, "content"), at(answer, "stop"), at(answer, "tokens_evaluated")) == ("xy", True, 5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 7}, "input_prefix"),
        ({"input_suffix": [999]}, "input_suffix[0]"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": "x"}, "input_extra"),
        ({"input_extra": ["x"]}, "input_extra[0]"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}, {"filename": 123, "text": "abc"}]}, "input_extra[1].filename"),
        ({"n_predict": -7}, "n_predict"),
    ],
)
def test_a_bad_field_is_refused_by_its_path(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode({"input_prefix": "a", "input_suffix": "b", **fields}, SERVED)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_a_model_that_knows_no_gaps_says_so() -> None:
    with pytest.raises(NotSupportedError, match="Infill is not supported by this model") as caught:
        decode({"input_prefix": "a", "input_suffix": "b"}, replace(SERVED, fim=None))
    assert caught.value.status == 501
    assert FIM.prefix >= 0
