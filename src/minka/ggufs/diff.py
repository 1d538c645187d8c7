"""Compares two GGUF files: metadata keys, the tensors they list, and on request the tensors' values.

Order does not count. Values are compared after dequantising, so a tensor can be compared with its quantised form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minka.ggufs.dump import Json
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import CHUNK, GgufFile, Tensor, Value
from minka.ggufs.values import can_dequantize, float_chunks


@dataclass(frozen=True, slots=True)
class KeyDiff:
    """A metadata key that is not the same in both files. None: the file does not have it."""

    key: str
    left: Value | None
    right: Value | None
    left_type: str | None
    right_type: str | None


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A tensor whose type or shape differs, or which only one file has (the other side is None)."""

    name: str
    left: Tensor | None
    right: Tensor | None


@dataclass(frozen=True, slots=True)
class DataDiff:
    """How far the values of a tensor are apart in the two files."""

    name: str
    max_abs: float | None
    """Largest absolute difference: infinite where only one side is NaN or infinite, None if not comparable."""
    rms: float | None
    """Root of the mean squared difference."""
    note: str = ""
    """Why the values could not be compared."""


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs; empty when the files say the same."""

    keys: tuple[KeyDiff, ...]
    tensors: tuple[TensorDiff, ...]
    data: tuple[DataDiff, ...]
    """Tensors of both files, of the same shape, whose data differs; empty if data was not looked at."""
    n_same_data: int = 0
    """Tensors whose data was found equal."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.keys or self.tensors or self.data)


def compare(left: GgufFile, right: GgufFile, *, data: bool = False, progress: Progress = silent) -> Diff:
    """What differs between two files.

    Raises:
        ModelError: with `data`, when a file is truncated.
    """
    pairs = _pairs(left.tensors, right.tensors)
    keys = _compare_keys(left, right)
    tensors = tuple(
        TensorDiff(name, a, b) for name, (a, b) in pairs.items() if a is None or b is None or not _same_info(a, b)
    )
    if not data:
        return Diff(keys, tensors, ())
    both = [(a, b) for a, b in pairs.values() if a is not None and b is not None and a.dims == b.dims]
    meter = Meter(sum(left.n_bytes(a) + right.n_bytes(b) for a, b in both), progress)
    found = []
    for a, b in both:
        if not _same_bytes(left, a, right, b):
            found.append(_compare_values(left, a, right, b))
        meter.add(left.n_bytes(a) + right.n_bytes(b))
    return Diff(keys, tensors, tuple(found), len(both) - len(found))


def to_json(diff: Diff) -> dict[str, Json]:
    """The difference for programs. A number that JSON has not (NaN, infinity) is a string."""
    return {
        "same": diff.same,
        "metadata": [
            {
                "key": key.key,
                "left": _json_value(key.left),
                "left_type": key.left_type,
                "right": _json_value(key.right),
                "right_type": key.right_type,
            }
            for key in diff.keys
        ],
        "tensors": [
            {"name": pair.name, "left": _json_tensor(pair.left), "right": _json_tensor(pair.right)}
            for pair in diff.tensors
        ],
        "data": [
            {"name": item.name, "max_abs": _json_value(item.max_abs), "rms": _json_value(item.rms), "note": item.note}
            for item in diff.data
        ],
        "n_same_data": diff.n_same_data,
    }


def _json_value(value: Value | None) -> Json:
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _json_tensor(tensor: Tensor | None) -> Json:
    return None if tensor is None else {"type": tensor.type.name, "shape": list(tensor.dims)}


def _same_info(a: Tensor, b: Tensor) -> bool:
    return a.dims == b.dims and a.type_id == b.type_id


def _pairs(left: Sequence[Tensor], right: Sequence[Tensor]) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    by_name = {tensor.name: tensor for tensor in right}
    pairs: dict[str, tuple[Tensor | None, Tensor | None]] = {t.name: (t, by_name.get(t.name)) for t in left}
    return pairs | {tensor.name: (None, tensor) for tensor in right if tensor.name not in pairs}


def _compare_keys(left: GgufFile, right: GgufFile) -> tuple[KeyDiff, ...]:
    keys = list(dict.fromkeys(field.key for source in (left, right) for field in source.fields))
    found = []
    for key in keys:
        a, b = left.field(key), right.field(key)
        x, y = None if a is None else left.value(a), None if b is None else right.value(b)
        left_type, right_type = None if a is None else a.type_name, None if b is None else b.type_name
        # NaN differs from itself; its text does not.
        if left_type != right_type or (x != y and repr(x) != repr(y)):
            found.append(KeyDiff(key, x, y, left_type, right_type))
    return tuple(found)


def _same_bytes(left: GgufFile, a: Tensor, right: GgufFile, b: Tensor) -> bool:
    if a.type_id != b.type_id or left.order != right.order or left.n_bytes(a) != right.n_bytes(b):
        return False
    return all(x == y for x, y in zip(left.chunks(a, CHUNK), right.chunks(b, CHUNK), strict=True))


def _compare_values(left: GgufFile, a: Tensor, right: GgufFile, b: Tensor) -> DataDiff:
    for source, tensor in ((left, a), (right, b)):
        if not can_dequantize(tensor.type) or (source.order == "big" and tensor.type.words is None):
            return DataDiff(a.name, None, None, f"{tensor.type.name} data cannot be turned into numbers")
    largest, squares = 0.0, 0.0
    for x, y in zip(float_chunks(left, a), float_chunks(right, b), strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
        # Equal infinities and NaN on both sides are no difference; NaN on one side is an infinite one.
        gap[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        gap[np.isnan(gap)] = math.inf
        if gap.size:
            largest = max(largest, float(gap.max()))
            squares += float(np.square(gap).sum())
    return DataDiff(a.name, largest, math.sqrt(squares / max(a.n_elements, 1)))
