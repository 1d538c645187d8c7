"""Perplexity of a text: how surprised a model is by it, token for token.

The windows and the arithmetic are llama-perplexity's (llama.cpp, tools/perplexity/perplexity.cpp): half a window of
context, then the other half is scored; or, with a stride, the last `stride` tokens of overlapping windows. Knows no
command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from minka.errors import UsageError
from minka.ggufs.atomic import destination
from minka.params import ContextParams, ModelParams
from minka.tools.perplexity_base import BaseWriter
from minka.tools.scoring_context import (
    DEFAULT_CTX,
    Hardware,
    Layout,
    Rows,
    Scorer,
    Windows,
    bos_of,
    chunk_count,
    open_scorer,
    parallel_layout,
    windows_of,
)
from minka.tools.scoring_math import F64, I32, encode, log_probs


@dataclass(frozen=True, slots=True)
class Sums:
    """What is known of some tokens: their number, and the sums of their negative log-likelihoods and of its squares."""

    n: int = 0
    nll: float = 0.0
    nll2: float = 0.0

    def add(self, nll: F64) -> Sums:
        """These sums with further tokens."""
        return Sums(self.n + len(nll), self.nll + float(nll.sum()), self.nll2 + float((nll * nll).sum()))

    @property
    def mean(self) -> float:
        """Mean negative log-likelihood in nats; NaN for no tokens."""
        return self.nll / self.n if self.n else math.nan

    @property
    def variance(self) -> float:
        """Variance of the negative log-likelihood."""
        return self.nll2 / self.n - self.mean * self.mean if self.n else math.nan

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None if the spread cannot be told."""
        return math.sqrt(self.variance / (self.n - 1)) if self.n > 1 and self.variance > 0 else None

    @property
    def perplexity(self) -> float:
        """exp(mean); infinite where that is over the largest float."""
        try:
            return math.exp(self.mean)
        except OverflowError:
            return math.inf


@dataclass(frozen=True, slots=True)
class Chunk:
    """One window was scored. `sums` are of all windows so far, `offset` the token at which its batch begins."""

    index: int
    offset: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The perplexity of `n_chunks` windows of a text; `planned` were asked for."""

    chunks: tuple[Chunk, ...]
    planned: int
    sums: Sums

    @property
    def n_chunks(self) -> int:
        """Windows that were scored."""
        return len(self.chunks)

    @property
    def value(self) -> float:
        """The perplexity."""
        return self.sums.perplexity

    @property
    def error(self) -> float | None:
        """Its standard error; None if the spread cannot be told."""
        return None if self.sums.error is None else self.sums.error * self.value


@dataclass(frozen=True, slots=True)
class TextOptions:
    """`n_ctx` tokens a window; at most `chunks` windows if that is not negative; `stride` 0 is off.

    With `base_file` the log-probabilities of all tokens are written to a file that `kl_divergence` compares with.
    """

    n_ctx: int = DEFAULT_CTX
    chunks: int = -1
    stride: int = 0
    base_file: Path | None = None

    def layout(self, params: ContextParams) -> Layout:
        """The context that the windows need. Raises UsageError for options that contradict each other."""
        if self.stride < 0:
            raise UsageError(f"--ppl-stride must be 0 or more, but got {self.stride}")
        if self.stride == 0:
            return parallel_layout(params, self.n_ctx)
        if self.base_file is not None:
            raise UsageError("--kl-divergence-base has no strided form: leave --ppl-stride out")
        # Windows overlap, so one sequence has them one after another. llama-perplexity's window is what a context for
        # half a stride more comes to; with several sequences that do not share cells it cannot work, and one is made.
        n_seq = max(1, params.n_batch // self.n_ctx) if params.kv_unified else 1
        total = n_seq * self.n_ctx
        return Layout(total + self.stride // 2, n_seq, min(params.n_batch, total), bool(params.kv_unified))


class PerplexityRun:
    """The windows of one text. Iterating scores them one by one; `result` tells how far it came, at any time.

    Raises UsageError if the text is too short for the context.
    """

    def __init__(self, scorer: Scorer, text: str | bytes, options: TextOptions) -> None:
        self._scorer = scorer
        self._options = options
        self._chunks: list[Chunk] = []
        self._sums = Sums()
        tokens = scorer.tokenize(text)
        self.n_tokens = len(tokens)
        self.windows = self._strided(tokens) if options.stride else self._halves(tokens)

    def _halves(self, tokens: I32) -> Windows:
        options, context = self._options, self._scorer.context
        self._need(2 * options.n_ctx, options.n_ctx)
        n = chunk_count(self.n_tokens // options.n_ctx, options.chunks)
        return windows_of(tokens, options.n_ctx, n, context.n_seq_max, bos_of(self._scorer.model))

    def _strided(self, tokens: I32) -> Windows:
        n_ctx, stride = self._scorer.context.n_ctx, self._options.stride
        self._need(2 * n_ctx, n_ctx)
        if stride >= n_ctx:
            raise UsageError(f"--ppl-stride {stride} must be less than the window of {n_ctx} tokens")
        n = chunk_count(-(-(self.n_tokens - n_ctx) // stride), self._options.chunks)
        return Windows(tokens, n_ctx, stride, n, n_ctx - stride - 1, n_ctx - 1)

    def _need(self, least: int, n_ctx: int) -> None:
        if self.n_tokens < least:
            raise UsageError(
                f"the text has only {self.n_tokens} tokens, and windows of {n_ctx} need at least {least}: "
                "give a longer text (-f) or a smaller --ctx-size"
            )

    def __len__(self) -> int:
        """Windows to score."""
        return self.windows.n_windows

    def __iter__(self) -> Generator[Chunk]:
        if self._options.base_file is None:
            yield from self._score(None)
            return
        used = self.windows.tokens[: len(self) * self.windows.length]
        model = self._scorer.model
        destination(self._options.base_file, [model.path])
        with BaseWriter(self._options.base_file, self.windows.length, used, model.vocab.n_tokens) as base:
            yield from self._score(base)

    def _score(self, base: BaseWriter | None) -> Iterator[Chunk]:
        for rows in self.windows.rows(self._scorer):
            self._sums = self._sums.add(self._nll(rows, base))
            if rows.last:
                group = rows.window - rows.window % self.windows.n_seq
                chunk = Chunk(rows.window, group * self.windows.stride, self._sums)
                self._chunks.append(chunk)
                yield chunk

    def _nll(self, rows: Rows, base: BaseWriter | None) -> F64:
        if base is None:
            return -log_probs(rows.logits, rows.targets, self._scorer.workers)
        coded, nll = encode(rows.logits, rows.targets, self._scorer.workers)
        base.write(coded, complete=rows.last)
        return nll.astype("f8")

    def result(self) -> Perplexity:
        """What was scored so far."""
        return Perplexity(tuple(self._chunks), len(self), self._sums)


def perplexity(
    model: str | Path | ModelParams,
    text: str | bytes,
    options: TextOptions | None = None,
    *,
    context: ContextParams | None = None,
    hardware: Hardware | None = None,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Perplexity:
    """The perplexity of a text, which must be at least two windows long.

    `context.n_ctx` and `.parallel` are not looked at; `on_chunk` is called after each window. Raises UsageError for a
    text that is too short, ModelError for a model that cannot score a text.
    """
    options, context = options or TextOptions(), context or ContextParams()
    with open_scorer(model, options.layout(context), context, hardware or Hardware()) as scorer:
        run = PerplexityRun(scorer, text, options)
        for chunk in run:
            if on_chunk is not None:
                on_chunk(chunk)
        return run.result()
