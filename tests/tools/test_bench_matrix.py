from __future__ import annotations

import itertools

import pytest

from minka.errors import UsageError
from minka.native.machine import physical_cores
from minka.tools.bench_matrix import (
    Matrix,
    parse_bools,
    parse_pair,
    parse_range,
    parse_splits,
    parse_words,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", (512,)),
        ("1,2,16", (1, 2, 16)),
        ("2-4", (2, 3, 4)),
        ("0-10+5", (0, 5, 10)),
        ("16-128*2", (16, 32, 64, 128)),
        ("8-9+5,1-3", (8, 1, 2, 3)),
        ("5-4", ()),
    ],
)
def test_a_range_is_a_list_of_numbers(text: str, values: tuple[int, ...]) -> None:
    assert parse_range(text) == values


@pytest.mark.parametrize(
    "text", ["", "x", "1,", "1--2", "4-8+0", "4-8*1", "0-8*2", "-1", "1-100000000", "1.5", "4-8/2"]
)
def test_a_bad_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text)


def test_negative_numbers_need_leave() -> None:
    assert parse_range("-1,99", low=-1) == (-1, 99)
    with pytest.raises(UsageError, match="outside of 1 to 4"):
        parse_range("5", low=1, high=4)


def test_other_lists() -> None:
    assert parse_bools("0,1") == (False, True)
    assert parse_words("f16,q8_0", ("f16", "q8_0")) == ("f16", "q8_0")
    assert parse_splits("3/1,1;2;3") == ((3.0, 1.0), (1.0, 2.0, 3.0))
    assert parse_pair("512,128") == (512, 128)
    for bad in (lambda: parse_bools("2"), lambda: parse_words("f1", ("f16",)), lambda: parse_splits("a/b")):
        with pytest.raises(UsageError):
            bad()
    for text in ("1", "1,2,3", "a,b", "-1,2", "9999999999,1"):
        with pytest.raises(UsageError, match="PP,TG"):
            parse_pair(text)


def test_the_standard_tests_are_a_prompt_and_a_generation() -> None:
    first, second = Matrix(model=("m",)).tests()
    assert (first.name, second.name) == ("pp512", "tg128")
    assert (first.n_ctx, second.n_ctx) == (512, 128)
    assert first.context.n_threads == physical_cores()


def test_tests_come_in_llama_benchs_order() -> None:
    matrix = Matrix(
        model=("a", "b"), n_prompt=(8, 0), n_gen=(2,), n_pg=((4, 2), (0, 0)), n_depth=(0, 16), n_threads=(1, 2)
    )
    names = [(test.load.model, test.context.n_threads, test.name) for test in matrix.tests()]
    shapes = ["pp8", "tg2", "pp4+tg2"]
    deep = [f"{shape} @ d16" for shape in shapes]
    assert names == [(model, n, name) for model in "ab" for n in (1, 2) for name in (*shapes, *deep)]


def test_a_model_is_loaded_once_for_all_its_tests() -> None:
    matrix = Matrix(model=("a", "b"), n_batch=(64, 128), type_k=("f16", "q8_0"), repack=(True, False))
    loads = [test.load for test in matrix.tests()]
    changes = sum(one != other for one, other in itertools.pairwise(loads))
    assert changes == len(set(loads)) - 1 == 3


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to measure"):
        Matrix(model=("m",), n_prompt=(0,), n_gen=(0,)).tests()


def test_a_parameter_varies_unless_it_has_its_one_default() -> None:
    matrix = Matrix(model=("m",), n_batch=(2048,), n_ubatch=(256,), type_k=("f16", "q8_0"))
    assert not matrix.varies("n_batch")
    assert matrix.varies("n_ubatch")
    assert matrix.varies("type_k")
