"""Tensor data as numbers: dequantised chunk by chunk, and the statistics of a tensor.

The PyPI package `gguf` dequantises all types it knows; Q1_0 and Q2_0, which it lacks, are done here (source:
ggml/src/ggml-quants.c of llama.cpp). At most one chunk of a tensor is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from minka.errors import ModelError
from minka.ggufs.endian import swap_blocks
from minka.ggufs.layout import TensorType
from minka.ggufs.progress import Meter
from minka.ggufs.read import GgufFile, Tensor

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 20
"""Elements dequantised at a time: a multiple of every block size."""

_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def can_dequantize(kind: TensorType) -> bool:
    """Whether data of this type can be turned into numbers here; what `gguf` knows depends on its version."""
    if kind.name in _PLAIN or kind.name in _OWN:
        return True
    if not kind.known:
        return False
    try:
        dequantize(np.zeros((1, kind.size), np.uint8), GGMLQuantizationType(kind.id))
    except (ValueError, NotImplementedError):
        return False
    return True


def _one_bit(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Q1_0: a scale and 128 signs, the lowest bit first."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, scale, -scale)


def _two_bit(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Q2_0: a scale and 64 codes of two bits that mean -1, 0, 1 and 2."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return (codes.reshape(len(blocks), -1).astype(np.float32) - 1) * scale


_OWN: dict[str, Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]] = {"Q1_0": _one_bit, "Q2_0": _two_bit}


def to_floats(kind: TensorType, data: bytes) -> Floats:
    """Whole little-endian blocks as one row of numbers: float64 for F64, I32 and I64, else float32.

    Raises:
        ModelError: there is no dequantiser for the type.
    """
    if not can_dequantize(kind):
        raise ModelError(f"{kind.name} data cannot be turned into numbers")
    if kind.name in _PLAIN:
        plain = np.frombuffer(data, _PLAIN[kind.name])
        return plain.astype(np.float64) if kind.name in ("F64", "I32", "I64") else plain.astype(np.float32)
    blocks: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(-1, kind.size)
    if kind.name in _OWN:
        return _OWN[kind.name](blocks).reshape(-1)
    # A NaN scale makes numpy warn; to the caller it is a value like any other.
    with np.errstate(all="ignore"):
        floats: npt.NDArray[np.float32] = dequantize(blocks, GGMLQuantizationType(kind.id)).reshape(-1)
    return floats


def float_chunks(source: GgufFile, tensor: Tensor, n_elements: int = CHUNK_ELEMENTS) -> Iterator[Floats]:
    """A tensor's numbers in pieces of `n_elements`, the last one shorter.

    Raises:
        ModelError: the file is truncated, or the type cannot be dequantised in this byte order.
    """
    kind = tensor.type
    if not kind.known:
        raise ModelError(f"tensor {tensor.name} is of the unknown type {tensor.type_id}")
    for chunk in source.chunks(tensor, n_elements // kind.block * kind.size):
        yield to_floats(kind, chunk if source.order == "little" else swap_blocks(kind, chunk))


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one tensor's finite values; NaN where it has none."""

    minimum: float
    maximum: float
    mean: float
    std: float
    n_nonfinite: int
    """Values that are NaN or infinite."""


def stats(source: GgufFile, tensor: Tensor, meter: Meter | None = None) -> Stats:
    """Statistics of a tensor in one pass. Raises what `float_chunks` raises."""
    n, total, squares, nonfinite = 0, 0.0, 0.0, 0
    low, high = math.inf, -math.inf
    for chunk in float_chunks(source, tensor):
        is_finite = np.isfinite(chunk)
        finite = chunk if is_finite.all() else chunk[is_finite]
        nonfinite += chunk.size - finite.size
        if finite.size:
            n += finite.size
            total += float(finite.sum(dtype=np.float64))
            squares += float(np.einsum("i,i->", finite, finite, dtype=np.float64))
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        if meter:
            meter.add(chunk.size // tensor.type.block * tensor.type.size)
    if not n:
        return Stats(math.nan, math.nan, math.nan, math.nan, nonfinite)
    mean = total / n
    return Stats(low, high, mean, math.sqrt(max(squares / n - mean * mean, 0.0)), nonfinite)
