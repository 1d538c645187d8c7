from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.logprobs import LOWEST, Distribution, after_sampling
from tests.fakes import FakeVocab

VOCAB = FakeVocab()
N = VOCAB.n_tokens


def row(some: dict[int, float], rest: float = -30.0) -> np.ndarray:
    logits = np.full(N, rest, dtype=np.float32)
    for token, logit in some.items():
        logits[token] = logit
    return logits


@given(st.integers(0, 2**32 - 1), st.floats(0, 80), st.integers(1, N + 10), st.integers(0, N - 1))
def test_log_probabilities_are_the_log_of_the_softmax(seed: int, scale: float, n: int, token: int) -> None:
    logits = (scale * np.random.default_rng(seed).uniform(-1, 1, N)).astype(np.float32).tolist()
    probs = Distribution(np.array(logits, dtype=np.float32), n).of(token, VOCAB)
    log_sum = math.log(math.fsum(math.exp(logit - max(logits)) for logit in logits)) + max(logits)
    assert probs.chosen.logprob == pytest.approx(logits[token] - log_sum, abs=1e-9)
    by_rank = sorted(range(N), key=lambda t: (-logits[t], t))
    assert sorted(logits[prob.id] for prob in probs.top) == sorted(logits[t] for t in by_rank[:n])
    assert [prob.logprob for prob in probs.top] == sorted((prob.logprob for prob in probs.top), reverse=True)


def test_the_best_come_first_with_their_pieces() -> None:
    probs = Distribution(row({98: 3.0, 97: 4.0, 257: 2.0}), 3).of(257, VOCAB)
    assert [(prob.id, prob.piece) for prob in probs.top] == [(97, b"a"), (98, b"b"), (257, b"</s>")]
    assert probs.chosen == probs.top[2]


def test_what_is_impossible_has_a_number_that_json_can_say() -> None:
    logits = row({97: 1.0}, rest=-math.inf)
    probs = Distribution(logits, 2).of(98, VOCAB)
    assert probs.chosen.logprob == LOWEST
    assert probs.top[0].logprob == 0.0
    assert np.float32(LOWEST) > -np.inf


def test_a_later_change_of_the_row_changes_nothing() -> None:
    logits = row({97: 4.0})
    distribution = Distribution(logits, 1)
    logits[97] = -100.0
    assert distribution.of(97, VOCAB).chosen.logprob == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_raise_no_warning(bad: float) -> None:
    Distribution(row({97: bad}), 3)


def test_after_sampling_shows_what_is_left_and_no_zeros() -> None:
    probs = after_sampling(98, [(97, 0.75), (98, 0.25), (99, 0.0)], 5, VOCAB)
    assert [(prob.id, prob.piece) for prob in probs.top] == [(97, b"a"), (98, b"b")]
    assert probs.chosen.logprob == pytest.approx(math.log(0.25))
    assert after_sampling(98, [(97, 0.75), (98, 0.25)], 1, VOCAB).chosen.id == 98, "chosen, though not among the best"
    lost = after_sampling(98, [(97, 1.0), (98, math.nan)], 5, VOCAB)
    assert (lost.chosen.id, lost.chosen.logprob, len(lost.top)) == (98, LOWEST, 1), "numbers that only a bug makes"
