"""Log-probabilities of logits rows, in blocks that stay in the cache and on as many threads as there are processors.

The arithmetic is llama-perplexity's (llama.cpp, tools/perplexity): exp in float32 of logits less their maximum, sums in
float64. Knows neither models nor texts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U16 = NDArray[np.uint16]

BLOCK = 4
"""Rows that are computed at a time: with 50k tokens they and their scratch space take 1.6 MB."""
CODE_RANGE = np.float32(16)
"""Nats below the best token that the codes of a base file span."""
CODE_MAX = np.float32(65535)


class Workers:
    """Threads that share the rows of a batch; numpy works without the GIL."""

    def __init__(self, n_threads: int = 0) -> None:
        self.n_threads = n_threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self.n_threads, "minka-score") if self.n_threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def map_rows(self, n_rows: int, work: Callable[[slice], None]) -> None:
        """Call `work` for ranges that cover rows 0..n_rows-1, one for each thread, and wait for all."""
        size = -(-n_rows // self.n_threads)
        parts = [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, max(size, 1))]
        if self._pool is None or len(parts) < 2:
            for part in parts:
                work(part)
            return
        for future in [self._pool.submit(work, part) for part in parts]:
            future.result()


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows: their maxima (n, 1), the logarithm of their sums of exp(logit - max) (n), the picked logits (n)."""

    max: F32
    log_sum: F64
    picked: F32


def _blocks(rows: slice) -> list[slice]:
    return [slice(start, min(start + BLOCK, rows.stop)) for start in range(rows.start, rows.stop, BLOCK)]


def _block(logits: F32, targets: I32, scratch: F32) -> _Block:
    best = logits.max(axis=1, keepdims=True)
    exps = scratch[: len(logits)]
    np.subtract(logits, best, out=exps)
    np.exp(exps, out=exps)
    picked = logits[np.arange(len(targets)), targets]
    return _Block(best, np.log(exps.sum(axis=1, dtype=np.float64)), picked)


def log_probs(logits: F32, targets: I32, workers: Workers) -> F64:
    """ln p(target) of each row. Shapes: logits (n, n_vocab), targets (n), result (n)."""
    result = np.empty(len(targets))

    def work(rows: slice) -> None:
        scratch = np.empty((BLOCK, logits.shape[1]), np.float32)
        for part in _blocks(rows):
            block = _block(logits[part], targets[part], scratch)
            result[part] = (block.picked - block.max[:, 0]) - block.log_sum

    workers.map_rows(len(targets), work)
    return result


def log_norms(logits: F32, workers: Workers) -> F64:
    """ln sum exp(logit) of each row: what to take off a logit to get a log-probability."""
    result = np.empty(len(logits))

    def work(rows: slice) -> None:
        scratch = np.empty((BLOCK, logits.shape[1]), np.float32)
        for part in _blocks(rows):
            block = _block(logits[part], np.zeros(part.stop - part.start, np.int32), scratch)
            result[part] = block.max[:, 0] + block.log_sum

    workers.map_rows(len(logits), work)
    return result


def row_width(n_vocab: int) -> int:
    """Length of a coded row in uint16: two float32, then a code for each token, padded to an even number."""
    return 2 * ((n_vocab + 1) // 2) + 4


def encode(logits: F32, targets: I32, workers: Workers) -> tuple[U16, F32]:
    """Rows of a base file, shape (n, row_width), and -ln p(target) of each as float32.

    ln p = scale * code + least, where scale and least are the row's two float32 and a code spans CODE_RANGE nats.
    """
    n, n_vocab = logits.shape
    coded = np.zeros((n, row_width(n_vocab)), np.uint16)
    nll = np.empty(n, np.float32)

    def work(rows: slice) -> None:
        scratch = np.empty((BLOCK, n_vocab), np.float32)
        for part in _blocks(rows):
            block = _block(logits[part], targets[part], scratch)
            log_sum = block.log_sum.astype(np.float32)
            nll[part] = block.max[:, 0] + log_sum - block.picked
            _encode_block(logits[part], block.max, log_sum, coded[part], scratch)

    workers.map_rows(n, work)
    return coded, nll


def _encode_block(logits: F32, best: F32, log_sum: F32, coded: U16, scratch: F32) -> None:
    low = np.maximum(logits.min(axis=1, keepdims=True), best - CODE_RANGE)
    scale = (best - low) / CODE_MAX
    head = coded[:, :4].view(np.float32)
    head[:, 0], head[:, 1] = scale[:, 0], low[:, 0] - best[:, 0] - log_sum
    steps = scratch[: len(logits)]
    np.subtract(logits, low, out=steps)
    # A row of equal logits has no scale; its codes are all 0.
    np.multiply(steps, np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0), out=steps)
    np.rint(steps, out=steps)
    np.maximum(steps, 0, out=steps)
    coded[:, 4 : 4 + logits.shape[1]] = steps


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each token says about a model Q and its base P; all arrays have one value a token."""

    nll: F32
    """-ln Q(token)."""
    nll_base: F32
    kld: F64
    """Kullback-Leibler divergence of Q from P."""
    p_diff: F32
    """Q(token) - P(token)."""
    same_top: NDArray[np.bool_]
    """Whether both think the same token most likely."""


def compare(logits: F32, targets: I32, coded: U16, workers: Workers) -> Comparison:
    """Compare a model's logits (n, n_vocab) with the coded rows (n, row_width) of its base."""
    n, n_vocab = logits.shape
    nll, nll_base, kld = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n)
    same = np.empty(n, np.bool_)

    def work(rows: slice) -> None:
        scratch, base = np.empty((BLOCK, n_vocab), np.float32), np.empty((BLOCK, n_vocab), np.float32)
        for part in _blocks(rows):
            block = _block(logits[part], targets[part], scratch)
            total = block.max + block.log_sum.astype(np.float32)[:, None]
            nll[part] = total[:, 0] - block.picked
            codes, head = coded[part, 4 : 4 + n_vocab], coded[part, :4].view(np.float32)
            expected = base[: len(codes)]
            np.multiply(codes, head[:, :1], out=expected)
            np.add(expected, head[:, 1:], out=expected)
            nll_base[part] = -expected[np.arange(len(expected)), targets[part]]
            same[part] = logits[part].argmax(axis=1) == expected.argmax(axis=1)
            kld[part] = _divergence(logits[part], total, expected, scratch)

    workers.map_rows(n, work)
    return Comparison(nll, nll_base, kld, np.exp(-nll) - np.exp(-nll_base), same)


def _divergence(logits: F32, total: F32, expected: F32, scratch: F32) -> F64:
    """sum P (ln P - ln Q) over tokens with ln P > -16; `expected` is ln P and is overwritten."""
    terms = scratch[: len(logits)]
    np.subtract(expected, logits, out=terms)
    np.add(terms, total, out=terms)
    unlikely = expected <= -CODE_RANGE
    np.exp(expected, out=expected)
    expected[unlikely] = 0
    np.multiply(terms, expected, out=terms)
    sums: F64 = terms.sum(axis=1, dtype=np.float64)
    return sums
