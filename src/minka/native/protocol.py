"""What the engine sees of libllama: a backend that holds sequences of tokens and computes logits for their ends.

`native.context.Context` is the real one, `tests.fakes.FakeBackend` the other. Contracts, for all methods:
  * a sequence is a number 0 <= seq < n_seq_max and holds positions 0..length(seq)-1 without holes;
  * a logits row is valid from the `decode` that made it until the next one;
  * nothing here is thread-safe: one thread owns a backend;
  * what libllama would answer with an abort of the process is a NativeError here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minka.params import SamplingParams
from minka.types import Tokenizer

Logits = NDArray[np.float32]


class Decoded(Enum):
    """How a decode ended."""

    OK = auto()
    NO_SLOT = auto()
    """No room in the KV cache for this batch. Nothing was changed."""


class Sampler(Protocol):
    """The sampling state of one job."""

    def sample(self, row: int) -> int:
        """Pick a token from a logits row, and accept it."""

    def candidates(self) -> Sequence[tuple[int, float]]:
        """(token, probability) of what was left after the chain in the last `sample`, best first."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Count tokens that were not sampled here (the prompt) as said."""

    def close(self) -> None:
        """Free what C holds. Idempotent."""


class Backend(Protocol):
    """One model with one KV cache."""

    @property
    def n_ctx(self) -> int:
        """Cells in the whole cache."""

    @property
    def n_ctx_seq(self) -> int:
        """Most positions of one sequence."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one decode."""

    @property
    def n_seq_max(self) -> int:
        """Number of sequences."""

    @property
    def kv_unified(self) -> bool:
        """True: one pool of cells, shared by reference. False: each sequence has n_ctx_seq cells of its own."""

    @property
    def vocab(self) -> Tokenizer:
        """The model's vocabulary."""

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        """Append tokens at position `pos` of a sequence to the batch, the last `logits` of them with a logits row.

        `pos` must be the sequence's length, counting what the batch already holds. Returns the row of the last token.
        """

    def decode(self) -> Decoded:
        """Compute the batch and empty it. With NO_SLOT the cache is as it was."""

    def discard(self) -> None:
        """Empty the batch without computing it."""

    def logits(self, row: int) -> Logits:
        """The row, shape (n_vocab,), float32, without a copy: writing to it changes what a sampler sees."""

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        """A new sampling chain. Raises RequestError for parameters that no chain can be built from."""

    def share(self, src: int, dst: int, n: int) -> None:
        """Make `dst` hold the first `n` positions of `src`: by reference (unified) or as a copy (split).

        What `dst` held is dropped. Needs floor(src) <= n <= length(src).
        """

    def cut(self, seq: int, n: int) -> None:
        """Drop positions >= n. Needs n == 0 or n >= floor(seq)."""

    def floor(self, seq: int) -> int:
        """The shortest length, other than 0, to which the sequence can be cut and go on.

        0 for plain attention; the whole length for recurrent and hybrid models, whose state has no past; in between for
        sliding windows, which have dropped cells that a shorter text would need.
        """

    def length(self, seq: int) -> int:
        """Positions that the sequence holds."""

    def close(self) -> None:
        """Free the cache. Idempotent."""
