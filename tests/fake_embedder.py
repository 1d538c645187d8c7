"""An embedding backend without a model. A text's vector tells its tokens, so that a mix-up shows; time is a clock.

It is stricter than libllama: what would abort the process there is kept in `misuses`, besides being raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from minka.errors import NativeError
from minka.native.embeddings import Part
from minka.types import Vectors
from tests.fakes import FakeClock, Misuse

WIDTH = 4


def vector_of(tokens: Sequence[int]) -> list[float]:
    """The vector that a text gets: its length, its sum, its first and its last token."""
    return [float(len(tokens)), float(sum(tokens)), float(tokens[0]), float(tokens[-1])]


class FakeEmbedder:
    """Implements `EmbeddingBackend`. `cost` is seconds for each token; `hook` is called in each computation."""

    def __init__(
        self,
        *,
        n_batch: int = 32,
        n_seq_max: int = 8,
        n_input_max: int = 256,
        splits: bool = False,
        n_cells: int = 64,
        cost: float = 0.0,
        clock: FakeClock | None = None,
        hook: Callable[[], None] = lambda: None,
    ) -> None:
        self.n_batch, self.n_seq_max, self.n_input_max, self.splits = n_batch, n_seq_max, n_input_max, splits
        self.n_cells = n_cells if splits else n_input_max
        self.batches: list[list[Part]] = []
        self.begun: dict[int, list[int]] = {}
        self.misuses: list[str] = []
        self.fails_next = False
        self.warm = self.closed = False
        self._cost, self._clock, self._hook = cost, clock or FakeClock(), hook

    def _misused(self, what: str) -> NoReturn:
        self.misuses.append(what)
        raise Misuse(what)

    def grow(self, n: int) -> None:
        if self.begun or n > self.n_input_max:
            self._misused(f"grow to {n} with {self.begun}")
        self.n_cells = max(self.n_cells, n)

    def warm_up(self) -> None:
        self.warm = True

    def compute(self, parts: Sequence[Part]) -> list[Vectors | None]:
        self._hook()
        if self.fails_next:
            self.fails_next = False
            self.begun.clear()
            raise NativeError("the fake was told to fail")
        n_tokens = sum(len(part.tokens) for part in parts)
        self._clock.now += self._cost * n_tokens
        self._check(parts, n_tokens)
        self.batches.append(list(parts))
        return [self._one(part) for part in parts]

    def _check(self, parts: Sequence[Part], n_tokens: int) -> None:
        seqs = [part.seq for part in parts]
        if not parts or len(set(seqs)) < len(seqs) or not all(0 <= seq < self.n_seq_max for seq in seqs):
            self._misused(f"sequences {seqs}")
        if n_tokens > self.n_batch and (self.splits or len(parts) > 1):
            self._misused(f"{n_tokens} tokens in a batch of {self.n_batch}")
        if not self.splits and not all(part.is_last for part in parts):
            self._misused("a part of a text that must be whole")

    def _one(self, part: Part) -> Vectors | None:
        known = self.begun.setdefault(part.seq, [])
        if part.pos != len(known) or not part.tokens:
            self._misused(f"position {part.pos} after {len(known)} tokens")
        known += part.tokens
        if sum(map(len, self.begun.values())) > max(self.n_cells, self.n_batch):
            self._misused(f"more than {self.n_cells} cells")
        if not part.is_last:
            return None
        return np.array([vector_of(self.begun.pop(part.seq))], np.float32)

    def drop(self, seq: int) -> None:
        self.begun.pop(seq, None)

    def close(self) -> None:
        self.closed = True

    def verify(self) -> None:
        """Nothing was misused, and no text is in work."""
        assert self.misuses == []
        assert self.begun == {}
