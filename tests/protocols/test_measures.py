from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.protocols.measures import timings_object, usage_object
from minka.types import Timings
from tests.protocols.values import timings

COUNTS = st.integers(0, 10**6)
TIMES = st.just(0.0) | st.floats(1e-6, 1e9)
"""Milliseconds that a clock of nanoseconds can tell."""


def test_rates_leave_out_the_first_token_which_costs_no_decode() -> None:
    made = timings_object(Timings(cache_n=2, prompt_n=10, prompt_ms=20, predicted_n=5, predicted_ms=8))
    assert made == {
        "cache_n": 2,
        "prompt_n": 10,
        "prompt_ms": 20,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 5,
        "predicted_ms": 8,
        "predicted_per_token_ms": 2.0,
        "predicted_per_second": 500.0,
    }


@pytest.mark.parametrize("n", [0, 1])
def test_one_token_has_no_rate(n: int) -> None:
    made = timings_object(timings(n))
    assert (made["predicted_per_second"], made["predicted_per_token_ms"]) == (0.0, 0.0)


@given(st.builds(Timings, COUNTS, COUNTS, TIMES, COUNTS, TIMES, COUNTS, COUNTS))
def test_timings_are_always_numbers_that_json_has(made: Timings) -> None:
    assert all(isfinite(value) and value >= 0 for value in timings_object(made).values())


def test_drafts_are_told_only_if_there_were_any() -> None:
    assert "draft_n" not in timings_object(timings(3))
    made = timings_object(Timings(draft_n=4, draft_n_accepted=3))
    assert (made["draft_n"], made["draft_n_accepted"]) == (4, 3)


def test_usage_adds_prompts_and_choices_apart() -> None:
    prompts = [timings(prompt_n=5, cache_n=2), timings(prompt_n=1)]
    assert usage_object(iter(prompts), [timings(3), timings(4), timings(0)]) == {
        "completion_tokens": 7,
        "prompt_tokens": 8,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
