"""What an importance matrix says about the weights of a model: how much they see, and how unevenly.

The figures are those of llama-imatrix --show-statistics (tools/imatrix/imatrix.cpp of llama.cpp). Knows no file format
and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minka.tools.imatrix_file import Entry

ACTIVE = 1e-5
"""Mean squared activations up to this are inactive."""

_LAYER = re.compile(r"blk\.([0-9]{1,9})\.")


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """Statistics of the mean squared activations of one weight, over the experts that saw any."""

    name: str
    total: float
    minimum: float
    maximum: float
    mean: float
    std: float
    active: float
    """Share (0..1) of values above ACTIVE."""
    n: int
    """Values."""
    entropy: float
    """Of the values as shares of their total, in bits."""
    outliers: float
    """Share (0..1) of values more than a standard deviation above the mean (the z-score distribution, ZD)."""
    similarity: float
    """Cosine with the same weight of the layer before, 0 where there is none."""

    @property
    def layer(self) -> int | None:
        """Number of the layer, None for a weight outside of them."""
        match = _LAYER.search(self.name)
        return int(match[1]) if match else None

    @property
    def short(self) -> str:
        """The part of the name before `.weight`: what the weight is for."""
        parts = self.name.split(".")
        return parts[parts.index("weight") - 1] if "weight" in parts[1:] else self.name

    @property
    def evenness(self) -> float:
        """The entropy as a share (0..1) of what equal values would have."""
        return self.entropy / float(np.log2(self.n)) if self.n > 1 else 0.0


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """Means over the weights of a layer, each weighted by its number of values."""

    layer: int
    total: float
    outliers: float
    similarity: float


def statistics(entries: Mapping[str, Entry]) -> list[WeightStatistics]:
    """Statistics of all weights that have data, by what they are for and the largest total first."""
    found = [_of_weight(name, entry, _before(entries, name)) for name, entry in entries.items() if entry.n_rows]
    return sorted(found, key=lambda one: (one.short, -one.total, one.name))


def by_layer(found: Sequence[WeightStatistics]) -> list[LayerStatistics]:
    """The weighted means of each layer, in the order of the layers."""
    layers: dict[int, list[WeightStatistics]] = {}
    for one in found:
        if one.layer is not None:
            layers.setdefault(one.layer, []).append(one)
    return [_of_layer(layer, members) for layer, members in sorted(layers.items())]


def _of_layer(layer: int, members: Sequence[WeightStatistics]) -> LayerStatistics:
    n = sum(one.n for one in members)
    return LayerStatistics(
        layer,
        sum(one.total * one.n for one in members) / n,
        sum(one.outliers * one.n for one in members) / n,
        sum(one.similarity * one.n for one in members) / n,
    )


def _before(entries: Mapping[str, Entry], name: str) -> Entry | None:
    match = _LAYER.search(name)
    if match is None:
        return None
    return entries.get(f"{name[: match.start(1)]}{int(match[1]) - 1}{name[match.end(1) :]}")


def _of_weight(name: str, entry: Entry, before: Entry | None) -> WeightStatistics:
    counts = entry.spread(entry.counts.astype(np.float32))
    values = entry.sums[counts > 0].astype(np.float64) / counts[counts > 0]
    total, std = float(values.sum()), float(values.std())
    shares = values[values > 0] / total if total > 0 else values[:0]
    return WeightStatistics(
        name,
        total,
        float(values.min()),
        float(values.max()),
        float(values.mean()),
        std,
        float((values > ACTIVE).mean()),
        values.size,
        -float((shares * np.log2(shares)).sum()),
        float((values - values.mean() > std).mean()) if std > 0 else 0.0,
        0.0 if before is None or before.sums.size != entry.sums.size else _cosine(entry.sums, before.sums),
    )


def _cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    a, b = left.astype(np.float64), right.astype(np.float64)
    length = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / length if length > 0 else 0.0
