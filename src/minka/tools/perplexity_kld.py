"""Kullback-Leibler divergence of a model from its base, whose log-probabilities are in a base file.

The statistics are llama-perplexity's (llama.cpp, tools/perplexity/perplexity.cpp, kl_divergence). Knows no command line
and prints nothing; `perplexity_report` writes the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minka.errors import UsageError
from minka.params import ContextParams, ModelParams
from minka.tools.perplexity_base import BaseReader
from minka.tools.scoring_context import Hardware, Layout, Scorer, bos_of, open_scorer, parallel_layout, windows_of
from minka.tools.scoring_math import F32, F64, Comparison, compare

MIN_FOR_SUMMARY = 100
"""Tokens below which a summary says nothing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its uncertainty."""

    value: float
    error: float


def estimate(total: float, squares: float, n: int) -> Estimate:
    """Mean and standard error from a sum and a sum of squares; no error for ten values or fewer."""
    if n < 1:
        return Estimate(0.0, 0.0)
    mean = total / n
    variance = squares / n - mean * mean
    return Estimate(mean, math.sqrt(variance / (n - 1)) if variance > 0 and n > 10 else 0.0)


def _sqrt(value: float) -> float:
    """The square root; NaN, as in C, of what rounding made negative."""
    return math.sqrt(value) if value >= 0 else math.nan


@dataclass(frozen=True, slots=True)
class Divergence:
    """Sums over the tokens compared so far."""

    n: int = 0
    nll: float = 0.0
    nll2: float = 0.0
    base: float = 0.0
    base2: float = 0.0
    both: float = 0.0
    """Of nll * nll_base."""
    kld: float = 0.0
    kld2: float = 0.0
    p_diff: float = 0.0
    p_diff2: float = 0.0
    p_diff4: float = 0.0
    same_top: int = 0

    def add(self, tokens: Comparison) -> Divergence:
        """These sums with further tokens. Products are float32 where llama-perplexity's are."""
        diff2 = (tokens.p_diff * tokens.p_diff).astype(np.float64)
        return Divergence(
            self.n + len(tokens.nll),
            self.nll + _sum(tokens.nll),
            self.nll2 + _sum(tokens.nll * tokens.nll),
            self.base + _sum(tokens.nll_base),
            self.base2 + _sum(tokens.nll_base * tokens.nll_base),
            self.both + _sum(tokens.nll * tokens.nll_base),
            self.kld + _sum(tokens.kld),
            self.kld2 + _sum(tokens.kld * tokens.kld),
            self.p_diff + _sum(tokens.p_diff),
            self.p_diff2 + _sum(diff2),
            self.p_diff4 + _sum(diff2 * diff2),
            self.same_top + int(np.count_nonzero(tokens.same_top)),
        )

    @property
    def ln_ppl(self) -> Estimate:
        """ln of the perplexity of Q, the model."""
        return estimate(self.nll, self.nll2, self.n)

    @property
    def ln_ppl_base(self) -> Estimate:
        """ln of the perplexity of P, the base."""
        return estimate(self.base, self.base2, self.n)

    @property
    def covariance(self) -> float:
        """Covariance of the two."""
        if self.n < 10:
            return 0.0
        return (self.both / self.n - self.nll / self.n * (self.base / self.n)) / (self.n - 1)

    @property
    def correlation(self) -> float:
        """Correlation of the two."""
        spread = self.ln_ppl.error * self.ln_ppl_base.error
        return self.covariance / spread if spread else math.nan

    @property
    def ln_ratio(self) -> Estimate:
        """ln(PPL(Q) / PPL(P))."""
        own, base = self.ln_ppl, self.ln_ppl_base
        error = _sqrt(own.error**2 + base.error**2 - 2 * self.covariance)
        return Estimate(own.value - base.value, error)

    @property
    def ppl(self) -> Estimate:
        """Perplexity of Q."""
        return _exp(self.ln_ppl)

    @property
    def ppl_base(self) -> Estimate:
        """Perplexity of P."""
        return _exp(self.ln_ppl_base)

    @property
    def ratio(self) -> Estimate:
        """PPL(Q) / PPL(P)."""
        return _exp(self.ln_ratio)

    @property
    def difference(self) -> Estimate:
        """PPL(Q) - PPL(P)."""
        own, base = self.ppl, self.ppl_base
        covariance = own.value * base.value * self.covariance
        return Estimate(own.value - base.value, _sqrt(own.error**2 + base.error**2 - 2 * covariance))

    @property
    def mean_kld(self) -> Estimate:
        """Mean divergence in nats."""
        return estimate(self.kld, self.kld2, self.n)

    @property
    def mean_p_diff(self) -> Estimate:
        """Mean of Q(token) - P(token)."""
        return estimate(self.p_diff, self.p_diff2, self.n)

    @property
    def rms_p_diff(self) -> Estimate:
        """Root of the mean square of Q(token) - P(token)."""
        square = estimate(self.p_diff2, self.p_diff4, self.n)
        rms = math.sqrt(square.value)
        return Estimate(rms, 0.5 / rms * square.error if rms else math.nan)

    @property
    def top(self) -> Estimate:
        """Share of tokens on whose most likely successor both agree."""
        share = self.same_top / self.n if self.n else math.nan
        return Estimate(share, math.sqrt(share * (1 - share) / (self.n - 1)) if self.n > 1 else math.nan)


def _sum(values: F32 | F64) -> float:
    return float(values.sum(dtype=np.float64))


def _exp(value: Estimate) -> Estimate:
    result = math.exp(value.value)
    return Estimate(result, result * value.error)


def percentile(ordered: F32, fraction: float) -> float:
    """The value below which a fraction of ordered values lies, between the two that are next to it."""
    at = np.float32(fraction) * np.float32(len(ordered) - 1)
    low = int(at)
    weight = at - np.float32(low)
    return float((1 - weight) * ordered[low] + weight * ordered[min(low + 1, len(ordered) - 1)])


@dataclass(frozen=True, slots=True)
class KlChunk:
    """One window was compared; the sums are of all windows so far."""

    index: int
    sums: Divergence


@dataclass(frozen=True, slots=True)
class KlDivergence:
    """How `n_chunks` windows compare; `planned` were asked for. Values of single tokens are in ascending order."""

    n_chunks: int
    planned: int
    sums: Divergence
    kld: F32
    p_diff: F32


class KlRun:
    """The windows of a base file. Iterating compares them one by one; `result` tells how far it came, at any time."""

    def __init__(self, scorer: Scorer, base: BaseReader, chunks: int = -1) -> None:
        self._scorer, self._base = scorer, base
        head, vocab = base.head, scorer.model.vocab
        if head.n_vocab != vocab.n_tokens:
            raise UsageError(
                f"the base file was made with a vocabulary of {head.n_vocab} tokens, and the model has "
                f"{vocab.n_tokens}: only models of one vocabulary can be compared"
            )
        n = head.n_chunks if chunks < 0 else min(chunks, head.n_chunks)
        n_seq = min(max(1, scorer.context.n_batch // head.n_ctx), scorer.context.n_seq_max)
        self.windows = windows_of(head.tokens, head.n_ctx, n, n_seq, bos_of(scorer.model))
        self._sums = Divergence()
        self._kld: list[NDArray[np.float32]] = []
        self._p_diff: list[NDArray[np.float32]] = []
        self._done = 0

    def __len__(self) -> int:
        """Windows to compare."""
        return self.windows.n_windows

    def __iter__(self) -> Generator[KlChunk]:
        for rows in self.windows.rows(self._scorer):
            coded = self._base.read(len(rows.targets))
            tokens = compare(rows.logits, rows.targets, coded, self._scorer.workers)
            self._sums = self._sums.add(tokens)
            self._kld.append(tokens.kld.astype(np.float32))
            self._p_diff.append(tokens.p_diff)
            if rows.last:
                self._done += 1
                yield KlChunk(rows.window, self._sums)

    def result(self) -> KlDivergence:
        """What was compared so far."""
        nothing = [np.empty(0, np.float32)]
        kld, p_diff = np.concatenate(self._kld or nothing), np.concatenate(self._p_diff or nothing)
        return KlDivergence(self._done, len(self), self._sums, np.sort(kld), np.sort(p_diff))


def kld_layout(context: ContextParams, n_ctx: int) -> Layout:
    """The context for windows of a base file of `n_ctx` tokens."""
    return parallel_layout(context, n_ctx)


def kl_divergence(
    model: str | Path | ModelParams,
    base_file: str | Path,
    *,
    chunks: int = -1,
    context: ContextParams | None = None,
    hardware: Hardware | None = None,
    on_chunk: Callable[[KlChunk], None] | None = None,
) -> KlDivergence:
    """Compare a model with the base that wrote `base_file` (`perplexity` with `TextOptions.base_file`).

    The windows are the file's, and as long as there. Raises UsageError for a file that is none or does not fit.
    """
    context = context or ContextParams()
    with BaseReader(Path(base_file)) as base:
        layout = kld_layout(context, base.head.n_ctx)
        with open_scorer(model, layout, context, hardware or Hardware()) as scorer:
            run = KlRun(scorer, base, chunks)
            for chunk in run:
                if on_chunk is not None:
                    on_chunk(chunk)
            return run.result()
