"""What the fake backend holds: cells that know how they were computed, sequences of them, and blocks cut out of these.

A cell's K and V are its token, so that a test sees at once what a sequence holds.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from minka.params import Adapters
from tests.fake_vocab import digest


def kind_of(adapters: Adapters) -> int:
    """A number that stands for a set of adapters: 0 for none."""
    return 1 + digest(tuple(int(1000 * part) for pair in adapters for part in pair)) % 2**30 if adapters else 0


@dataclass(frozen=True, slots=True)
class FakeBlock:
    """Implements `minka.native.protocol.Block`: its K and V are the tokens, and a digest of those before them."""

    start: int
    before: int
    tokens: tuple[int, ...]
    shapes: tuple[int, ...] = ()
    """See `Cell.shape`; empty where they are not known."""
    kind: int = 0
    """See `Cell.kind`."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        return 4 * len(self.tokens)

    def slice(self, n: int) -> FakeBlock:
        return FakeBlock(self.start, self.before, self.tokens[:n], self.shapes[:n], self.kind)

    def to_bytes(self) -> bytes:
        return array("q", (self.start, self.before, self.kind, *self.tokens)).tobytes()

    def cells(self) -> list[Cell]:
        """New cells that hold it."""
        shapes = self.shapes or (0,) * self.n_tokens
        return [Cell(token, shape=shape, kind=self.kind) for token, shape in zip(self.tokens, shapes, strict=True)]


@dataclass(slots=True, eq=False)
class Cell:
    """A KV cell. In the unified layout several sequences may hold the very same."""

    token: int
    sound: bool = True
    """Whether it was computed behind the tokens that are before it now."""
    shape: int = 0
    """Stands for the shape of the batch that it was computed in, and its place there."""
    kind: int = 0
    """Stands for the LoRA adapters that it was computed with, 0 for none; see `kind_of`."""


@dataclass(slots=True)
class FakeSequence:
    """The cells of a sequence, by position."""

    cells: list[Cell] = field(default_factory=list)
    oldest: int = 0
    """First position that a sliding window still holds."""

    @property
    def tokens(self) -> list[int]:
        return [cell.token for cell in self.cells]

    @property
    def shapes(self) -> list[int]:
        return [cell.shape for cell in self.cells]

    @property
    def sound(self) -> int:
        """How many of its first cells hold what computing its tokens gives."""
        return next((i for i, cell in enumerate(self.cells) if not cell.sound), len(self.cells))

    def block(self, start: int, end: int) -> FakeBlock:
        """A copy of its positions start..end-1."""
        tokens, shapes = tuple(self.tokens[start:end]), tuple(self.shapes[start:end])
        return FakeBlock(start, digest(self.tokens[:start]), tokens, shapes, self.kind)

    @property
    def kind(self) -> int:
        """Which adapters computed it; the same for all cells."""
        return self.cells[0].kind if self.cells else 0
