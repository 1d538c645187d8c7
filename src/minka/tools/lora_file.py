"""LoRA adapters as files: what a GGUF adapter changes of which model, read and judged.

A changed weight W has two tensors, `W.lora_a` and `W.lora_b`, whose product is added to it times alpha / rank. Source:
src/llama-adapter.cpp and tools/export-lora of llama.cpp. Knows no merging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError
from minka.ggufs.read import GgufFile, Tensor, open_gguf
from minka.ggufs.values import float_chunks

Floats = NDArray[np.float32]

_A, _B = ".lora_a", ".lora_b"
ALPHA = "adapter.lora.alpha"
INVOCATION = "adapter.alora.invocation_tokens"
EMBEDDINGS = "token_embd"
"""Weights whose names begin so keep their `lora_a` the other way round."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The two tensors that change one weight."""

    weight: str
    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """The inner size of the product."""
        return self.b.dims[0]

    @property
    def transposed(self) -> bool:
        """Whether `a` is stored as (n_out, rank), as it is for embeddings."""
        return self.weight.startswith(EMBEDDINGS)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape that the weight must have, the contiguous dimension first, without further dimensions."""
        return (self.b.dims[1], self.a.dims[1]) if self.transposed else (self.a.dims[0], self.b.dims[1])


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An open adapter."""

    source: GgufFile
    architecture: str
    alpha: float
    """0 if the file has none: then a product counts as it is."""
    pairs: dict[str, LoraPair]
    """By the weight that is changed, in the order of the file."""
    others: tuple[str, ...]
    """Tensors that are no part of a pair, such as norms that were trained with it."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.path

    @property
    def ranks(self) -> tuple[int, ...]:
        """All different ranks, the smallest first."""
        return tuple(sorted({pair.rank for pair in self.pairs.values()}))

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.source.n_bytes(tensor) for tensor in self.source.tensors)

    @property
    def invocation_tokens(self) -> tuple[int, ...]:
        """The tokens from which on the adapter is to count (aLoRA), empty if it always does."""
        tokens = self.source.get(INVOCATION)
        return tuple(token for token in tokens if isinstance(token, int)) if isinstance(tokens, list) else ()

    def factor(self, pair: LoraPair, scale: float) -> float:
        """What a product is multiplied with, when the adapter counts `scale` times."""
        return scale * self.alpha / pair.rank if self.alpha else scale

    def floats(self, tensor: Tensor) -> Floats:
        """A tensor's numbers in numpy's order of dimensions. Raises ModelError if they cannot be had."""
        numbers = np.concatenate(list(float_chunks(self.source, tensor))).astype(np.float32)
        return numbers.reshape(tensor.dims[::-1])


@contextmanager
def open_lora(path: Path) -> Iterator[LoraFile]:
    """Open an adapter. Raises ModelError if it is none, or damaged."""
    with open_gguf(path) as source:
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            if (found := source.get_str(key)) != wanted:
                raise ModelError(f"{path} is no LoRA adapter: its {key} is {found or 'not there'}, not {wanted}")
        for tensor in source.tensors:
            source.require(tensor)
        alpha = source.get(ALPHA)
        pairs = {pair.weight: pair for pair in _pairs(source)}
        parts = {name for pair in pairs for name in (pair + _A, pair + _B)}
        yield LoraFile(
            source,
            source.get_str("general.architecture") or "",
            float(alpha) if isinstance(alpha, int | float) else 0.0,
            pairs,
            tuple(tensor.name for tensor in source.tensors if tensor.name not in parts),
        )


def _pairs(source: GgufFile) -> Iterator[LoraPair]:
    tensors = {tensor.name: tensor for tensor in source.tensors}
    weights = dict.fromkeys(name[: -len(_A)] for name in tensors if name.endswith((_A, _B)))
    for weight in weights:
        a, b = tensors.get(weight + _A), tensors.get(weight + _B)
        if a is None or b is None:
            raise ModelError(f"{source.path} is damaged: {weight} has only one of its two tensors")
        if len(a.dims) < 2 or len(b.dims) < 2 or _inner(weight, a) != b.dims[0] or not b.dims[0]:
            raise ModelError(f"{source.path} is damaged: the two tensors of {weight} cannot be multiplied")
        yield LoraPair(weight, a, b)


def _inner(weight: str, a: Tensor) -> int:
    return a.dims[0] if weight.startswith(EMBEDDINGS) else a.dims[1]


def shape_text(dims: Sequence[int]) -> str:
    """Sizes as they are shown, the contiguous one first."""
    return " x ".join(map(str, dims))
