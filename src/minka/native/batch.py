"""A llama_batch filled through numpy views, because a ctypes field access per token would cost more than the token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from minka.errors import NativeError
from minka.native.library import Library


class Batch:
    """Tokens for one decode. Every token belongs to one sequence; `capacity` is the most it holds."""

    def __init__(self, library: Library, capacity: int) -> None:
        self._slow = library.slow
        self.capacity = capacity
        self.native = self._slow.llama_batch_init(capacity, 0, 1)
        self._token = np.ctypeslib.as_array(self.native.token, (capacity,))
        self._pos = np.ctypeslib.as_array(self.native.pos, (capacity,))
        self._n_seq_id = np.ctypeslib.as_array(self.native.n_seq_id, (capacity,))
        self._logits = np.ctypeslib.as_array(self.native.logits, (capacity,))
        # Each seq_id[i] points to a row of its own, of one element here.
        self._seq_id = [self.native.seq_id[i] for i in range(capacity)]
        self._n_seq_id[:] = 1
        self.n_tokens = 0
        self.n_outputs = 0

    def add(self, seq: int, tokens: Sequence[int], pos: int, logits: int) -> int:
        """Append tokens; the last `logits` of them get a logits row. Returns the index of the last token."""
        start, end = self.n_tokens, self.n_tokens + len(tokens)
        if not tokens or end > self.capacity:
            raise NativeError(f"a batch of {self.capacity} tokens cannot take {len(tokens)} more (it has {start})")
        self._token[start:end] = tokens
        self._pos[start:end] = np.arange(pos, pos + len(tokens), dtype=np.int32)
        self._logits[start:end] = 0
        if logits:
            self._logits[end - logits : end] = 1
        for i in range(start, end):
            self._seq_id[i][0] = seq
        self.n_tokens = end
        self.n_outputs += logits
        return end - 1

    def has_logits(self, row: int) -> bool:
        """Whether the token at this index was asked for logits."""
        return 0 <= row < self.capacity and bool(self._logits[row])

    def seal(self) -> ctypes.Structure:
        """The llama_batch with its size filled in."""
        self.native.n_tokens = self.n_tokens
        return self.native  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget the tokens; rows of the last decode stay known to `has_logits` until the next `add`."""
        self.n_tokens = self.n_outputs = 0

    def close(self) -> None:
        """Free the batch. Idempotent."""
        if self.capacity:
            self._slow.llama_batch_free(self.native)
            self.capacity = 0
