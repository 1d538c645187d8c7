"""Finds NaN and infinity in tensor data: in the elements of a float type, in the scales of a quantised one.

One bad scale spoils a whole block and with it every output of the layer. The same fields are looked at as in
`ggml_validate_row_data` of llama.cpp (ggml/src/ggml-quants.c). Knows no file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minka.ggufs.endian import whole_blocks
from minka.ggufs.layout import FloatField, TensorType
from minka.ggufs.progress import Meter
from minka.ggufs.read import GgufFile, Tensor

_F16_EXPONENT = 0x7C00


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Blocks of a tensor that hold NaN or infinity; for a float type a block is an element."""

    n_blocks: int
    first: int
    """Index of the first such block."""


def count_nonfinite(source: GgufFile, tensor: Tensor, meter: Meter) -> NonFinite | None:
    """The bad blocks of a tensor of known type, or None when there are none.

    Raises:
        ModelError: the file is truncated.
    """
    kind = tensor.type
    found, first, seen = 0, -1, 0
    for chunk in source.chunks(tensor, whole_blocks(kind)):
        whole = len(chunk) // kind.size * kind.size
        blocks = np.frombuffer(chunk[:whole], np.uint8).reshape(-1, kind.size)
        bad = bad_blocks(kind, blocks, source.prefix)
        if bad.any():
            first = seen + int(bad.argmax()) if first < 0 else first
            found += int(bad.sum())
        seen += len(blocks)
        meter.add(len(chunk))
    return NonFinite(found, first) if found else None


def bad_blocks(kind: TensorType, blocks: npt.NDArray[np.uint8], prefix: str) -> npt.NDArray[np.bool_]:
    """For each block (row of bytes) whether one of its floating-point fields is NaN or infinite."""
    bad = np.zeros(len(blocks), np.bool_)
    for field in kind.floats:
        bad |= _exponent_full(field, blocks, prefix)
    if kind.name == "IQ1_M":
        bad |= _iq1_m_bad(blocks, prefix)
    return bad


def _exponent_full(field: FloatField, blocks: npt.NDArray[np.uint8], prefix: str) -> npt.NDArray[np.bool_]:
    raw = np.ascontiguousarray(blocks[:, field.offset : field.offset + field.width])
    bits = raw.view(f"{prefix}u{field.width}").reshape(-1)
    mask = bits.dtype.type(field.exponent)
    full: npt.NDArray[np.bool_] = (bits & mask) == mask
    return full


def _iq1_m_bad(blocks: npt.NDArray[np.uint8], prefix: str) -> npt.NDArray[np.bool_]:
    """IQ1_M spreads its half-precision scale over the top four bits of its four last words."""
    words = np.ascontiguousarray(blocks[:, 48:56]).view(f"{prefix}u2").astype(np.uint16)
    shifts = np.array([12, 8, 4, 0], np.uint16)
    masks = np.array([0x000F, 0x00F0, 0x0F00, 0xF000], np.uint16)
    bits = np.bitwise_or.reduce((words >> shifts) & masks, axis=1)
    full: npt.NDArray[np.bool_] = (bits & _F16_EXPONENT) == _F16_EXPONENT
    return full
