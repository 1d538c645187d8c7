"""Evaluates a text in chunks while somebody watches, and estimates its perplexity on the way.

A chunk begins at position 0 with the model's BOS token, if it wants one, in place of its first token; the second half
of each chunk is scored. Both are llama-imatrix's way (tools/imatrix/imatrix.cpp of llama.cpp). One batch of logits is
in memory at a time. Knows nothing of importance matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError, NativeError, UsageError
from minka.ggufs.layout import pad
from minka.native.model import Model
from minka.native.observer import ObservedContext, Observer
from minka.native.protocol import Decoded
from minka.native.threadpool import Threadpools
from minka.params import ContextParams
from minka.tools.scoring_context import Hardware

Tokens = NDArray[np.int32]

_MAX_EXPONENT = 700.0
"""exp of more does not fit a float."""
_CELLS = 256
"""libllama gives each sequence a multiple of this many cells."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp(mean negative log-likelihood) of the second half of each chunk."""

    value: float
    error: float | None
    """Standard error, None where the spread cannot be told."""


@dataclass(slots=True)
class Likelihood:
    """Running sums of the negative log-likelihood, in float64."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    _buffer: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, logits: NDArray[np.float32], token: int) -> None:
        """Count a token that followed where `logits` were computed. Raises ModelError if they are no numbers."""
        if self._buffer.size != logits.size:
            self._buffer = np.empty_like(logits)
        best = logits.max()
        np.subtract(logits, best, out=self._buffer)
        value = -float(self._buffer[token])
        np.exp(self._buffer, out=self._buffer)
        value += math.log(float(self._buffer.sum(dtype=np.float64)))
        if math.isnan(value):
            raise ModelError("the model's logits are NaN: it is damaged, or its numbers overflow")
        self.n += 1
        self.total += value
        self.squares += value * value

    def perplexity(self) -> Perplexity | None:
        """The estimate so far, None without any token."""
        if not self.n:
            return None
        mean = self.total / self.n
        variance = self.squares / self.n - mean * mean
        value = math.exp(mean) if mean < _MAX_EXPONENT else math.inf
        return Perplexity(value, value * math.sqrt(variance / (self.n - 1)) if variance > 0 and self.n > 1 else None)


class Windows:
    """Evaluates chunks, each as a sequence of its own from position 0, with logits for every token.

    All tokens ask for logits even where nobody reads them: libllama computes the end of the last layer only for those.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        chunk_size: int,
        observer: Observer,
        hardware: Hardware,
        threadpools: Threadpools,
    ) -> None:
        if 0 < model.n_ctx_train < chunk_size:
            raise UsageError(
                f"a chunk of {chunk_size} tokens is longer than the {model.n_ctx_train} that the model was trained "
                "with; give a smaller --ctx-size"
            )
        self.chunk_size = chunk_size
        self.n_seq = max(1, params.n_batch // chunk_size)
        self._context = ObservedContext(
            model,
            replace(
                params,
                n_ctx=self.n_seq * pad(chunk_size, _CELLS),
                n_batch=min(params.n_batch, self.n_seq * chunk_size),
                # A cache that keeps no more than the window would only take smaller batches, see native.context, and
                # the shape of a batch shows in the values: those of llama-imatrix come from whole ones.
                swa_full=True,
                parallel=self.n_seq,
                kv_unified=False,
                kv_unified_per_slot=0,
                warmup=False,
            ),
            observer,
            threadpools,
        )
        try:
            hardware.adapt(model, self._context)
        except BaseException:
            self._context.close()
            raise
        self._bos = model.vocab.bos if model.vocab.add_bos else None

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def evaluate(self, chunks: Tokens, likelihood: Likelihood | None) -> None:
        """Compute up to `n_seq` chunks, shape (n, chunk_size), and count the likelihood of their second halves."""
        self._context.clear()
        inputs = chunks.copy()
        if self._bos is not None:
            inputs[:, 0] = self._bos
        step = self._context.n_batch if len(chunks) == 1 else self.chunk_size
        for start in range(0, self.chunk_size, step):
            piece = inputs[:, start : start + step]
            for seq, tokens in enumerate(piece):
                self._context.add(seq, tokens.tolist(), start, logits=len(tokens))
            if self._context.decode() is not Decoded.OK:
                raise NativeError(
                    f"libllama found no room for a batch of {piece.size} tokens; give a smaller --batch-size"
                )
            if likelihood is not None:
                self._score(chunks, start, piece.shape[1], likelihood)

    def _score(self, chunks: Tokens, start: int, n: int, likelihood: Likelihood) -> None:
        """Count the tokens that follow positions `start` to `start + n` - 1, from the middle of the chunk on."""
        first = max(start, self.chunk_size // 2)
        last = min(start + n, self.chunk_size - 1)
        for seq, tokens in enumerate(chunks):
            for position in range(first, last):
                row = seq * n + position - start
                likelihood.add(self._context.logits(row), int(tokens[position + 1]))
