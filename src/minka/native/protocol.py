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
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minka.params import Adapters, SamplingParams
from minka.types import Adapter, Tokenizer

Logits = NDArray[np.float32]


class Decoded(Enum):
    """How a decode ended."""

    OK = auto()
    NO_SLOT = auto()
    """No room in the KV cache for this batch. Nothing was changed."""


class Block(Protocol):
    """K and V of some consecutive positions, independent of the sequence they came from."""

    @property
    def start(self) -> int:
        """The first position."""

    @property
    def n_tokens(self) -> int:
        """Number of positions."""

    @property
    def n_bytes(self) -> int:
        """Memory that it takes."""

    def slice(self, n: int) -> Block:
        """Its first `n` positions."""

    def to_bytes(self) -> bytes:
        """All of it, for a file."""


class Sampler(Protocol):
    """The sampling state of one job."""

    def sample(self, row: int) -> int:
        """Pick a token from a logits row, and accept it."""

    def guess(self, row: int) -> int:
        """Pick a token as `sample` does, for the caller to `accept`, or to forbid some in the row and pick anew."""

    def candidates(self) -> Sequence[tuple[int, float]]:
        """(token, probability) of what was left after the chain, best first; to be asked right after it picked."""

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
    def n_rows(self) -> int:
        """Most logits rows of one decode; at least one for every sequence."""

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

    def warm_up(self) -> None:
        """Decode something and forget it: the first decode pages the weights in.

        For the thread that will own the backend: OpenMP keeps a team of threads for each thread that ever computed, and
        spins less in all of them once there are more than cores (measured: 16 ms a token instead of 11).
        """

    def adapt(self, adapters: Adapters) -> None:
        """Compute the decodes that follow with these LoRA adapters and no others. The batch must be empty.

        Raises NotFoundError if one of them is not loaded, and changes nothing then.
        """

    def check_adapters(self, adapters: Adapters) -> None:
        """Raise NotFoundError if one of them is not loaded."""

    def load_adapter(self, path: Path, scale: float) -> Adapter:
        """Load a LoRA adapter; nothing computes with it yet. Raises ModelError if the file is none for this model."""

    def unload_adapter(self, id: int) -> None:
        """Free an adapter. What was computed with it can still be held, but not gone on with."""

    def decode(self) -> Decoded:
        """Compute the batch and empty it. With NO_SLOT the cache is as it was."""

    @property
    def n_graphs_reused(self) -> int:
        """Micro-batches so far that could go through the compute graph of the one before."""

    def discard(self) -> None:
        """Empty the batch without computing it."""

    def logits(self, row: int) -> Logits:
        """The row, shape (n_vocab,), float32, without a copy: writing to it changes what a sampler sees."""

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        """A new sampling chain. Raises RequestError for parameters that no chain can be built from."""

    def share(self, src: int, dst: int, n: int) -> None:
        """Make `dst` hold the first `n` positions of `src`: by reference (unified) or as a copy (split).

        What `dst` held is dropped. Needs floor(src) <= n <= length(src). In the split layout the copy is made by the
        next decode: until then `dst` cannot be saved or extracted, and neither can be written to by `insert` or
        `restore`.
        """

    @property
    def can_shift(self) -> bool:
        """Whether positions of this model can be changed (`shift`)."""

    @property
    def can_splice(self) -> bool:
        """Whether `shift` leaves no trace of what it drops but in the keys and values of what it moves."""

    def shift(self, seq: int, keep: int, discard: int) -> None:
        """Drop the `discard` positions from `keep` on, and move what is behind them up to `keep`.

        Needs `can_shift`, keep + discard < length(seq), and that no other sequence shares a cell that moves: a cell has
        one position. What moves is written by the next decode; until then the sequence cannot be saved, nor extracted
        from `keep` on.
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

    @property
    def sliceable(self) -> bool:
        """Whether states of this model can be kept in ranges (`extract`, `insert`), not only as a whole."""

    @property
    def fingerprint(self) -> str:
        """Names all that blocks depend on: model, library, KV types and positions. Usable as a file name."""

    def extract(self, seq: int, ranges: Sequence[tuple[int, int]]) -> Sequence[Block]:
        """Copies of ranges of positions of a sequence. Only if `sliceable`."""

    def insert(self, seq: int, blocks: Sequence[Block]) -> bool:
        """Cut the sequence at the first block's start and append the blocks; they follow each other without holes.

        In the split layout the first block must start at 0. False if there was no room; the sequence is cut then.
        Only if `sliceable`.
        """

    def block(self, raw: bytes) -> Block:
        """The inverse of `Block.to_bytes`. Raises NativeError for bytes that are none, or of another kind of cache."""

    def save(self, seq: int) -> bytes:
        """A copy of a whole sequence, for any model."""

    def restore(self, seq: int, state: bytes) -> bool:
        """Replace a sequence by a saved one. False if there was no room; the sequence is empty then."""

    def portable(self, state: bytes) -> bytes:
        """A state that `save` gave, in the layout of most other contexts, for a file."""

    def adopt(self, state: bytes) -> bytes:
        """A state that a context of another layout saved, as this one saves it; any other state as it is."""

    def close(self) -> None:
        """Free the cache. Idempotent."""
