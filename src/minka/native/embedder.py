"""Embeddings from libllama: llama_contexts that are opened when the first text comes, beside a generating one or alone.

Texts that look back only go through a KV cache in parts of any size, and are pooled here, because libllama pools each
part for itself. All others must be computed whole and in one micro-batch: long ones have a context of their own, so
that short ones need not pay for its size.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError, NativeError
from minka.native.attention import SHORT_UBATCH, prefers_plain
from minka.native.embedding_context import POOLING, EmbeddingContext, Size
from minka.native.embeddings import Part
from minka.native.library import library
from minka.native.model import Model
from minka.native.threadpool import Threadpools
from minka.params import ContextParams
from minka.types import Pooling, RankFrame, Vectors

log = logging.getLogger("minka.native")

N_SEQ_MAX = 64
"""Texts in one computation."""
BATCH = 512
"""Tokens in one computation, at most."""
FEW = 60
"""Up to so many tokens, flash attention on a CPU goes through them one by one: slower, and rounding more, than the
plain kernel. From 64 on it is the faster one, by far for many, since it leaves out tokens of other texts."""
CELLS = 2048
"""Cells of a KV cache as long as no text needs more."""


def rank_frame(model: Model) -> RankFrame:
    """How the model wants a query and a document to be put together (llama.cpp, tools/server/server-common.cpp)."""
    slow, vocab = library().slow, model.vocab
    sep = int(slow.llama_vocab_sep(vocab.pointer))
    ends = (vocab.eos if vocab.eos >= 0 else sep,) if vocab.add_eos else ()
    between = (*ends, sep) if slow.llama_vocab_get_add_sep(vocab.pointer) else ends
    return RankFrame(model.chat_template("rerank"), (vocab.bos,) if vocab.add_bos else (), between, ends)


def choose_pooling(model: Model, wanted: str | None) -> Pooling:
    """The pooling that is asked for, else the model's, else the mean, which suits models that were not trained for any.

    Raises ModelError for a metadata value that libllama does not know either.
    """
    trained = model.meta(f"{model.meta('general.architecture')}.pooling_type")
    if wanted:
        if wanted == Pooling.RANK and trained != str(POOLING[Pooling.RANK]):
            log.warning("the file does not say that this model ranks; without a head for it scores mean nothing")
        return Pooling(wanted)
    if trained is None:
        return Pooling.MEAN
    for pooling, number in POOLING.items():
        if trained == str(number):
            return pooling
    raise ModelError(f"the model {model.path} has the pooling type {trained}, which is none of libllama's")


class Embedder:
    """Implements `embeddings.EmbeddingBackend`; model and thread pools outlive it. Nothing is opened before it is used.

    `generates`: the model has a KV cache, and so a text's tokens usually look back only.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        pooling: Pooling,
        *,
        generates: bool,
        threadpools: Threadpools | None = None,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self._params = params
        self._generates = generates
        self._threadpools = threadpools
        architecture = model.meta("general.architecture")
        self.splits = generates and model.meta(f"{architecture}.attention.causal") != "false"
        limits = [model.n_ctx_train, params.n_ctx]
        self.n_input_max = min(limit for limit in limits if limit > 0)
        self.n_cells = min(self.n_input_max, CELLS) if self.splits else self.n_input_max
        largest = SHORT_UBATCH if self.splits and self._prefers_plain(self.n_cells) else BATCH
        self.n_batch = min(largest, params.n_ubatch, self.n_input_max)
        # States of recurrent models are large, and there is one for each sequence.
        self.n_seq_max = min(4 if model.has_state else N_SEQ_MAX, self.n_batch)
        # Else libllama rounds it up while it plans the graph of the mean, whose sizes do not fit then, and aborts.
        self.n_batch -= self.n_batch % self.n_seq_max
        self.width = int(library().slow.llama_model_n_embd_out(model.pointer))
        if pooling is Pooling.RANK:
            self.width = int(library().slow.llama_model_n_cls_out(model.pointer))
        self._begun: dict[int, _Begun] = {}
        self._rooms: dict[int, EmbeddingContext] = {}
        """Open contexts by the most tokens of a computation."""

    def grow(self, n: int) -> None:
        """See `EmbeddingBackend.grow`. The cache is doubled until it is large enough."""
        if n > self.n_input_max or self._begun:
            raise NativeError(f"cannot make room for {n} of at most {self.n_input_max} tokens")
        if n > self.n_cells:
            while self.n_cells < n:
                self.n_cells = min(2 * self.n_cells, self.n_input_max)
            self._close_rooms()

    def warm_up(self) -> None:
        """See `EmbeddingBackend.warm_up`."""
        for n_tokens in (1, self.n_batch):
            room = self._room(n_tokens)
            if self._params.warmup:
                room.compute([Part(0, [max(self.model.vocab.bos, 0)], 0, is_last=True)])
                room.drop(0)

    def compute(self, parts: Sequence[Part]) -> list[Vectors | None]:
        """See `EmbeddingBackend.compute`. Raises NativeError for anything that would make libllama abort."""
        n_tokens = self._check(parts)
        room = self._room(n_tokens)
        try:
            rows = self._rows(room, parts)
        except NativeError:
            self._begun.clear()
            self._close_rooms()
            raise
        vectors: list[Vectors | None] = []
        for part, own in zip(parts, rows, strict=True):
            begun = self._begun.setdefault(part.seq, _Begun(self.pooling))
            begun.add(own, len(part.tokens))
            vectors.append(begun.vectors() if part.is_last else None)
            if part.is_last:
                self.drop(part.seq)
        return vectors

    def _rows(self, room: EmbeddingContext, parts: Sequence[Part]) -> list[NDArray[np.float32]]:
        """The rows of each part. Texts that are whole need no sequence for longer, so they get the first ones."""
        if self.splits:
            return room.compute(parts)
        rows = room.compute([replace(part, seq=seq) for seq, part in enumerate(parts)])
        for seq in range(len(parts)):
            room.drop(seq)
        return rows

    def drop(self, seq: int) -> None:
        """See `EmbeddingBackend.drop`."""
        self._begun.pop(seq, None)
        if self.splits:
            for room in self._rooms.values():
                room.drop(seq)

    def close(self) -> None:
        """Free all contexts. Idempotent."""
        self._close_rooms()

    def _check(self, parts: Sequence[Part]) -> int:
        """The number of tokens."""
        n_tokens = sum(len(part.tokens) for part in parts)
        whole = self.n_input_max if not self.splits and len(parts) == 1 else self.n_batch
        if not 1 <= n_tokens <= whole:
            raise NativeError(f"{n_tokens} tokens are not between 1 and the {whole} of one computation")
        if len({part.seq for part in parts}) < len(parts):
            raise NativeError("a text can have one part in a computation only")
        vocab = self.model.vocab
        for part in parts:
            begun = self._begun.get(part.seq)
            done = begun.n_tokens if begun else 0
            if not 0 <= part.seq < self.n_seq_max or part.pos != done:
                raise NativeError(f"text {part.seq} cannot go on at position {part.pos}, it has {done} tokens")
            if not part.tokens or part.pos + len(part.tokens) > self.n_input_max:
                raise NativeError(f"text {part.seq} must have 1 to {self.n_input_max} tokens")
            if not self.splits and not part.is_last:
                raise NativeError("this model must see a text as a whole")
            for token in part.tokens:
                vocab.check(token)
        return n_tokens

    def _room(self, n_tokens: int) -> EmbeddingContext:
        """The context for a computation of so many tokens."""
        if n_tokens <= FEW < self.n_batch and not self.splits:
            return self._rooms.get(FEW) or self._open(FEW, FEW)
        if n_tokens <= self.n_batch:
            return self._rooms.get(self.n_batch) or self._open(self.n_batch, self.n_seq_max)
        n_batch = self.n_batch
        while n_batch < n_tokens:
            n_batch = min(2 * n_batch, self.n_input_max)
        if n_batch not in self._rooms:  # of those for one long text only the last one stays
            for size in [size for size in self._rooms if size > self.n_batch]:
                self._rooms.pop(size).close()
        return self._rooms.get(n_batch) or self._open(n_batch, 1)

    def _prefers_plain(self, n_kv: int) -> bool:
        on_cpu = not (library().supports_gpu and self._params.kv_offload)
        return prefers_plain(self._params, on_cpu=on_cpu, n_head=self.model.n_head, n_kv=n_kv)

    def _open(self, n_batch: int, n_seq_max: int) -> EmbeddingContext:
        n_cells = max(self.n_cells, n_batch) if self.splits else n_batch
        pooled_here = self.splits and self.pooling is not Pooling.RANK
        pooling = Pooling.NONE if pooled_here else self.pooling
        plain = self._prefers_plain(n_cells) and (self.splits or n_batch <= FEW)
        size = Size(n_cells, n_batch, n_seq_max, pooling, cached=self._generates, causal=self.splits, plain=plain)
        self._rooms[n_batch] = EmbeddingContext(self.model, self._params, size, self._threadpools)
        return self._rooms[n_batch]

    def _close_rooms(self) -> None:
        while self._rooms:
            self._rooms.popitem()[1].close()


class _Begun:
    """What is known of a text so far: all its rows, or of a pooled one their sum and its first and last row."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._rows: list[NDArray[np.float32]] = []
        self._sum: NDArray[np.float64] | None = None
        self._last: NDArray[np.float32] | None = None
        self.n_tokens = 0

    def add(self, rows: NDArray[np.float32], n_tokens: int) -> None:
        """Take the rows of further tokens; of what libllama pooled there is one."""
        self.n_tokens += n_tokens
        self._last = rows[-1]
        if self._pooling is Pooling.NONE or (self._pooling is Pooling.CLS and not self._rows):
            self._rows.append(rows)
        if self._pooling is Pooling.MEAN:
            total = rows.sum(axis=0, dtype=np.float64) * (n_tokens / len(rows))
            self._sum = total if self._sum is None else self._sum + total

    def vectors(self) -> Vectors:
        """The vectors of the whole text."""
        assert self._last is not None, "a text has tokens"
        match self._pooling:
            case Pooling.NONE:
                return np.concatenate(self._rows)
            case Pooling.CLS:
                return self._rows[0][:1].copy()
            case Pooling.MEAN:
                assert self._sum is not None, "a text has tokens"
                return (self._sum / self.n_tokens).astype(np.float32)[None]
            case _:
                return self._last[None].copy()
