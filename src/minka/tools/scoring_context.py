"""What all scoring tools work with: a model, a context that gives logits of many tokens, and threads to score them.

Knows how windows of a text become batches; not what is done with the logits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from minka.errors import ModelError, UsageError
from minka.hub import locate
from minka.native.context import Context
from minka.native.context_params import thread_counts
from minka.native.model import Model
from minka.native.own_thread import OwnThread
from minka.native.placement import Placement
from minka.native.raw import Adapter, RawContext, TokenList, Tokens, is_causal, tokenize
from minka.native.threadpool import Pinning, Threadpools
from minka.params import MAX_SLOTS, ContextParams, ModelParams
from minka.tools.scoring_math import F32, I32, Workers

log = logging.getLogger("minka.perplexity")

DEFAULT_CTX = 512
"""Tokens of a window when no size is given."""
MIN_CTX = 4
"""The shortest window in which a token is scored."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The context of a tool: `n_ctx` tokens in `n_seq` sequences, decoded `n_batch` at a time."""

    n_ctx: int
    n_seq: int
    n_batch: int
    kv_unified: bool = False

    def params(self, params: ContextParams) -> ContextParams:
        """The user's parameters with these sizes."""
        return replace(params, n_ctx=self.n_ctx, n_batch=self.n_batch, kv_unified=self.kv_unified)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A loaded model, its context and both kinds of threads."""

    model: Model
    context: RawContext
    thread: OwnThread
    workers: Workers

    def decode(self, tokens: Tokens) -> F32:
        """The logits rows of at most a batch of tokens, without a copy: valid until the next decode."""

        def work() -> F32:
            batch = self.context.prepare(tokens)
            self.context.decode(batch)
            return self.context.logits(batch.n_outputs)

        return self.thread.run(self.context, work)

    def clear(self) -> None:
        """Forget all sequences."""
        self.context.clear(data=True)

    def tokenize(self, text: str | bytes) -> I32:
        """Tokens of a text, with the tokens that the model wants around it."""
        return tokenize(self.model.vocab, text.encode("utf-8", "replace") if isinstance(text, str) else text)


def model_params(model: str | Path | ModelParams) -> ModelParams:
    """The parameters that load a file; parameters stay as they are."""
    return model if isinstance(model, ModelParams) else ModelParams(model=str(model))


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where a tool computes, beyond what the parameters of model and context say."""

    placement: Placement | None = None
    pinning: Pinning | None = None
    batch_pinning: Pinning | None = None
    adapters: tuple[Adapter, ...] = ()
    """LoRA adapters to compute with."""

    @contextmanager
    def threadpools(self, context: ContextParams) -> Iterator[Threadpools]:
        """The threads for contexts of these parameters, which must be closed before."""
        with closing(Threadpools(self.pinning, self.batch_pinning, *thread_counts(context))) as made:
            yield made

    def adapt(self, model: Model, context: Context) -> None:
        """Load the adapters, and let a context of the engine's kind compute with them. Raises ModelError."""
        loaded = [(model.adapters.load(adapter.path, adapter.scale).id, adapter.scale) for adapter in self.adapters]
        context.adapt(tuple((id, scale) for id, scale in loaded if scale))


@contextmanager
def open_scorer(
    model: str | Path | ModelParams, layout: Layout, context: ContextParams, hardware: Hardware
) -> Iterator[Scorer]:
    """Load a model and make its context. Raises ModelError for a model that cannot score a text."""
    params = model_params(model)
    loaded = Model.load(locate(params).path, params, placement=hardware.placement)
    try:
        check_scores(loaded)
        if layout.n_ctx > loaded.n_ctx_train:
            log.warning("the model was trained on %d tokens, and the context has %d", loaded.n_ctx_train, layout.n_ctx)
        raw = RawContext(
            loaded,
            layout.params(context),
            n_seq_max=layout.n_seq,
            op_offload=params.op_offload,
            pinning=hardware.pinning,
            batch_pinning=hardware.batch_pinning,
        )
        try:
            if hardware.adapters:
                raw.adapt(hardware.adapters)
            with OwnThread() as thread, Workers() as workers:
                if context.warmup:
                    _warm_up(raw, thread)
                yield Scorer(loaded, raw, thread, workers)
        finally:
            raw.close()
    finally:
        loaded.close()


def check_scores(model: Model) -> None:
    """Raises ModelError unless the model predicts each token from those before it."""
    if not is_causal(model):
        raise ModelError(f"{model.path} is no causal language model: it has no probabilities of next tokens to score")
    if model.vocab.add_eos:
        raise ModelError(f"{model.path} ends every text with an end token, which has no place inside a text")


def _warm_up(context: RawContext, thread: OwnThread) -> None:
    """Decode two tokens and forget them: the first decode of a process pages the weights in."""
    vocab = context.vocab
    tokens = TokenList()
    tokens.add([token for token in (vocab.bos, vocab.eos) if token >= 0] or [0], 0, [0])
    thread.run(context, lambda: context.decode(context.prepare(tokens.tokens().part(0, context.n_batch))))
    context.clear(data=True)


class Rows(NamedTuple):
    """Logits of consecutive tokens of a window, with the tokens they should predict. `last`: the window is complete."""

    window: int
    logits: F32
    targets: I32
    last: bool


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `length` tokens, each `stride` after the one before; their tokens first..end-1 predict the next ones.

    `n_seq` windows are computed together, as sequences of their own.
    """

    tokens: I32
    length: int
    stride: int
    n_windows: int
    first: int
    end: int
    n_seq: int = 1
    bos: int | None = None
    """Takes the place of the first token of each window while it is computed."""

    def rows(self, scorer: Scorer) -> Iterator[Rows]:
        """Decode all windows in order. A row is valid until the next one is asked for."""
        n_batch = scorer.context.n_batch
        for group in range(0, self.n_windows, self.n_seq):
            windows = range(group, min(group + self.n_seq, self.n_windows))
            scorer.clear()
            for start in range(0, self.end, n_batch):
                yield from self._piece(scorer, windows, start, min(start + n_batch, self.length))

    def _piece(self, scorer: Scorer, windows: range, start: int, end: int) -> Iterator[Rows]:
        batch = TokenList()
        low, high = max(self.first, start), min(self.end, end)
        for seq, window in enumerate(windows):
            tokens = self.tokens[window * self.stride :][start:end].copy()
            if start == 0 and self.bos is not None:
                tokens[0] = self.bos
            batch.add(tokens, start, [seq], slice(low - start, high - start) if low < high else None)
        logits = scorer.decode(batch.tokens())
        n = max(high - low, 0)
        for seq, window in enumerate(windows):
            if n:
                at = window * self.stride + low + 1
                yield Rows(window, logits[seq * n : (seq + 1) * n], self.tokens[at : at + n], last=high == self.end)


def windows_of(tokens: I32, n_ctx: int, n_chunks: int, n_seq: int, bos: int | None) -> Windows:
    """Consecutive windows whose second half is scored: tokens n_ctx/2..n_ctx-2 predict their successors."""
    if n_ctx < MIN_CTX:
        raise UsageError(f"a context of {n_ctx} tokens is too short to score anything: give at least {MIN_CTX} (-c)")
    return Windows(tokens, n_ctx, n_ctx, n_chunks, n_ctx // 2, n_ctx - 1, n_seq, bos)


def chunk_count(available: int, chunks: int) -> int:
    """The windows to compute: all that there are if `chunks` is negative. Raises UsageError for none."""
    if chunks == 0:
        raise UsageError("--chunks 0 leaves nothing to compute")
    return available if chunks < 0 else min(chunks, available)


def parallel_layout(params: ContextParams, n_ctx: int) -> Layout:
    """A context in which as many windows as fit a batch are computed together."""
    n_seq = min(max(1, params.n_batch // n_ctx), MAX_SLOTS)
    total = n_seq * n_ctx
    return Layout(total, n_seq, min(params.n_batch, total), bool(params.kv_unified))


def bos_of(model: Model) -> int | None:
    """The token that every text begins with, None if the model wants none."""
    return model.vocab.bos if model.vocab.add_bos and model.vocab.bos >= 0 else None
