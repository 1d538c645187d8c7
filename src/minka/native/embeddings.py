"""What the engine sees of a model that makes embeddings: texts in, vectors out, several texts a computation.

`native.embedder.Embedder` is the real one, `tests.fake_embedder.FakeEmbedder` the other. One thread owns it. What
libllama would answer with an abort of the process is a NativeError here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from minka.types import Vectors


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one text for the next computation: those from position `pos` on; `is_last` if the text ends here."""

    seq: int
    tokens: Sequence[int]
    pos: int
    is_last: bool


class EmbeddingBackend(Protocol):
    """One model that turns texts into vectors. A text that is computed in parts keeps its sequence until the last."""

    @property
    def n_input_max(self) -> int:
        """Most tokens of one text."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one computation; only a text that must not be split may have more, and is alone then."""

    @property
    def n_seq_max(self) -> int:
        """Most texts that are in work at once; sequences are 0 <= seq < n_seq_max."""

    @property
    def splits(self) -> bool:
        """Whether a text can be computed in parts: its tokens look back only."""

    @property
    def n_cells(self) -> int:
        """Most tokens of all texts together that are in work at once, at their full lengths."""

    def grow(self, n: int) -> None:
        """Make `n_cells` at least `n`, which is at most `n_input_max`. No text may be in work."""

    def warm_up(self) -> None:
        """Get everything ready for the first text. For the thread that will own the backend."""

    def compute(self, parts: Sequence[Part]) -> list[Vectors | None]:
        """Compute the parts; of each the text's vectors if it is the last one, else None.

        Raises NativeError if that fails; no text is in work after that.
        """

    def drop(self, seq: int) -> None:
        """Forget a text, if it is in work."""

    def close(self) -> None:
        """Free everything. Idempotent."""
