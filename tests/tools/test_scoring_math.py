from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from minka.tools.scoring_math import BLOCK, Workers, compare, encode, log_norms, log_probs, row_width
from tests.tools.oracle import log_softmax


def _rows(n: int, n_vocab: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((n, n_vocab)) * 4).astype(np.float32)
    return logits, rng.integers(0, n_vocab, n, np.int32)


@pytest.mark.parametrize("n", [0, 1, BLOCK, 2 * BLOCK + 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_log_probs_are_those_of_float64(n: int, threads: int) -> None:
    logits, targets = _rows(n, 301)
    with Workers(threads) as workers:
        found = log_probs(logits, targets, workers)
        norms = log_norms(logits, workers)
    expected = log_softmax(logits.astype(np.float64))[np.arange(n), targets] if n else np.empty(0)
    assert found == pytest.approx(expected, abs=2e-6)
    assert logits[np.arange(n), targets] - norms == pytest.approx(expected, abs=2e-6)


def test_a_token_that_is_far_from_likely_has_a_finite_log_prob() -> None:
    logits = np.zeros((1, 8), np.float32)
    logits[0, 3] = 300
    with Workers(1) as workers:
        assert log_probs(logits, np.array([1], np.int32), workers)[0] == -300


@pytest.mark.parametrize("n_vocab", [64, 65])
def test_a_coded_row_gives_back_its_log_probs(n_vocab: int) -> None:
    logits, targets = _rows(7, n_vocab)
    with Workers(2) as workers:
        coded, nll = encode(logits, targets, workers)
    assert coded.shape == (7, row_width(n_vocab))
    assert row_width(n_vocab) % 2 == 0
    head = coded[:, :4].view(np.float32)
    decoded = head[:, :1] * coded[:, 4 : 4 + n_vocab].astype(np.float64) + head[:, 1:]
    expected = log_softmax(logits.astype(np.float64))
    near = expected > expected.max(axis=1, keepdims=True) - 16
    assert decoded[near] == pytest.approx(expected[near], abs=16 / 65535)
    assert nll == pytest.approx(-expected[np.arange(7), targets], abs=1e-5)
    # The best token has the highest code, and what is more than 16 nats below it has none.
    assert (coded[:, 4 : 4 + n_vocab].max(axis=1) == 65535).all()
    assert not coded[:, 4 : 4 + n_vocab][~near].any()


def test_a_row_of_equal_logits_has_no_scale() -> None:
    with Workers(1) as workers:
        coded, nll = encode(np.full((1, 10), 2.5, np.float32), np.array([4], np.int32), workers)
    assert coded[0, :4].view(np.float32)[0] == 0
    assert not coded[0, 4:].any()
    assert nll[0] == pytest.approx(np.log(10), rel=1e-6)


def test_comparing_with_another_model_is_kullback_leibler_in_float64() -> None:
    (base, targets), (own, _) = _rows(9, 200), _rows(9, 200, seed=1)
    with Workers(2) as workers:
        coded, _ = encode(base, targets, workers)
        found = compare(own, targets, coded, workers)
    ln_p, ln_q = log_softmax(base.astype(np.float64)), log_softmax(own.astype(np.float64))
    rows = np.arange(9)
    assert found.kld == pytest.approx((np.exp(ln_p) * (ln_p - ln_q)).sum(axis=1), abs=2e-3)
    assert found.nll == pytest.approx(-ln_q[rows, targets], abs=1e-5)
    assert found.nll_base == pytest.approx(-ln_p[rows, targets], abs=3e-4)
    assert found.p_diff == pytest.approx(
        np.exp(ln_q - ln_p + ln_p)[rows, targets] - np.exp(ln_p)[rows, targets], abs=1e-4
    )
    assert (found.same_top == (base.argmax(axis=1) == own.argmax(axis=1))).all()


def test_a_model_does_not_diverge_from_itself() -> None:
    logits, targets = _rows(5, 128)
    with Workers(1) as workers:
        found = compare(logits, targets, encode(logits, targets, workers)[0], workers)
    assert abs(found.kld).max() < 1e-3
    assert found.same_top.all()


def test_rows_are_shared_among_threads_and_an_error_in_one_is_raised() -> None:
    seen: list[tuple[slice, str]] = []
    with Workers(3) as workers:
        workers.map_rows(8, lambda rows: seen.append((rows, threading.current_thread().name)))
        assert sorted((part.start, part.stop) for part, _ in seen) == [(0, 3), (3, 6), (6, 8)]
        assert all(name.startswith("minka-score") for _, name in seen)

        def fail(rows: slice) -> None:
            raise ValueError(rows.start)

        with pytest.raises(ValueError):
            workers.map_rows(8, fail)
