"""The seam between a protocol and the path that embeds for all of them: texts to compute, and the answer of vectors.

Also what the protocols do with vectors: norms, cuts, base64. Knows no wire format.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minka.errors import NotSupportedError
from minka.protocols.body import JsonObject
from minka.protocols.served import EmbeddingFacts, Served
from minka.types import EmbedJob, Vectors

INT16 = 32760.0
"""The largest value after normalisation 0, llama.cpp's for embeddings that are stored as 16 bit integers."""


class Texts(Protocol):
    """One request: what it asks of the engine, and how its answer looks on the wire."""

    @property
    def job(self) -> EmbedJob:
        """The texts."""

    def answer(self, vectors: Sequence[Vectors]) -> object:
        """The answer as a JSON value, of each text's vectors."""


DecodeTexts = Callable[[JsonObject, Served], Texts]


def facts(served: Served) -> EmbeddingFacts:
    """How the server embeds. Raises NotSupportedError if it does not."""
    if served.embeddings is None:
        raise NotSupportedError("this server makes no embeddings")
    return served.embeddings


def normalized(vectors: Vectors, norm: int) -> Vectors:
    """Each row with the given norm (see `EmbeddingParams.embd_normalize`); rows of zeros stay what they are."""
    if norm < 0:
        return vectors
    wide = vectors.astype(np.float64)
    sizes = np.abs(wide)
    largest = sizes.max(axis=-1, keepdims=True)
    if norm == 0:
        lengths = largest / INT16
    else:
        # Of values up to 1, so that high powers neither overflow nor vanish.
        relative = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0)
        lengths = largest * (relative**norm).sum(axis=-1, keepdims=True) ** (1 / norm)
    unit: NDArray[np.float64] = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit.astype(np.float32)


def encoded(vector: Vectors) -> str:
    """The numbers as base64 of little-endian float32."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii")
