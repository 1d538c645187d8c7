"""The expected numbers are those of a C++ program with libstdc++ (std::mt19937 with seed 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from minka.tools.scoring_random import Mt19937, drawn_by_swapping, drawn_in_order


def test_the_generator_is_std_mt19937() -> None:
    draw = Mt19937(1)
    assert [draw() for _ in range(3)] == [1791095845, 4282876139, 3093770124]
    # The standard fixes the ten thousandth number of the default seed.
    default = Mt19937(5489)
    assert [default() for _ in range(10_000)][-1] == 4123659995


def test_numbers_below_a_bound_are_as_likely_as_each_other() -> None:
    draw = Mt19937(1)
    counts = Counter(draw.below(5) for _ in range(5000))
    assert set(counts) == set(range(5))
    assert max(counts.values()) - min(counts.values()) < 200
    assert draw.below(1) == 0


def test_a_scaled_number_stays_below_its_bound() -> None:
    class Highest(Mt19937):
        def __call__(self) -> int:
            return 2**32 - 1  # as a float32 this is 2**32

    assert Highest(1).scaled(7) == 6
    assert Mt19937(1).scaled(100) == int(np.float32(1791095845) / np.float32(2**32) * 100)


def test_the_subsets_are_those_of_llama_perplexity() -> None:
    assert drawn_in_order(50, 12) == [20, 49, 35, 45, 0, 6, 15, 48, 8, 12, 4, 22]
    assert drawn_by_swapping(50, 12) == [20, 48, 34, 43, 0, 5, 13, 42, 6, 9, 3, 15]


@pytest.mark.parametrize("draw", [drawn_in_order, drawn_by_swapping])
def test_a_subset_has_no_task_twice(draw: Callable[[int, int], list[int]]) -> None:
    assert sorted(draw(50, 50)) == list(range(50))
    assert len(set(draw(50, 20))) == 20
    assert draw(50, 20) == draw(50, 50)[:20]
    assert len(draw(5, 400)) == 5
