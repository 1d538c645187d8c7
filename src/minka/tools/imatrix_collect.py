"""Sums of squared activations, collected from the matrix products that a model computes.

What is collected, and how products with several matrices are counted, follows llama.cpp's llama-imatrix
(tools/imatrix/imatrix.cpp), so that either tool continues the other's files. Knows no file and no command.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError
from minka.native.observer import Product
from minka.tools.imatrix_file import Entry, Imatrix

MIN_ROWS = 16
"""Products with fewer rows are left out, as llama-imatrix does; those with experts are not."""
OUTPUT = "output.weight"
_BLOCK = 64
"""Rows that are squared at a time: few enough to stay in the cache of a core."""

Floats = NDArray[np.float32]


class Collector:
    """Implements `native.observer.Observer`. Raises ModelError for activations that are not finite."""

    def __init__(self, *, process_output: bool = False) -> None:
        self._process_output = process_output
        self._squares = np.empty((0, 0), np.float32)
        self._last = (np.empty(0, np.float32), np.empty(0, np.float32))
        """The sums of the last dense product before and after it."""
        self.entries: dict[str, Entry] = {}

    def wants(self, weight: str, *, routed: bool, n_rows: int) -> bool:
        """Weights of layers, those with experts, and the output layer if it was asked for."""
        if routed:
            return True
        return n_rows >= MIN_ROWS and (weight.startswith("blk.") or (self._process_output and weight == OUTPUT))

    def see(self, product: Product) -> None:
        """Add the squares of the activations."""
        if product.experts is None:
            self._dense(product)
        else:
            self._routed(product, product.experts)

    def chunks(self, chunk_size: int) -> int:
        """Whole chunks that the most used matrix has seen."""
        return max((entry.n_rows for entry in self.entries.values()), default=0) // chunk_size

    def merge(self, found: Imatrix, chunk_size: int, source: str) -> None:
        """Add what a file holds. A legacy one counts in chunks, which are taken to be `chunk_size` long.

        Raises:
            ModelError: `source`, the file, does not fit what is there already.
        """
        for name, entry in found.entries.items():
            scale = chunk_size if found.legacy else 1
            sums, counts = entry.sums * np.float32(scale), entry.counts * scale
            own = self.entries.get(name)
            if own is None:
                self.entries[name] = Entry(sums, counts)
                continue
            if counts.size != own.counts.size and min(counts.size, own.counts.size) == 1:
                n = max(counts.size, own.counts.size)
                own.counts, counts = np.resize(own.counts, n), np.resize(counts, n)
            if sums.size != own.sums.size or counts.size != own.counts.size:
                raise ModelError(f"{source} does not fit: {name} has {sums.size} values there, {own.sums.size} here")
            own.sums += sums
            own.counts += counts

    def _entry(self, name: str, n_values: int, n_counts: int) -> Entry:
        entry = self.entries.get(name)
        if entry is None:
            entry = Entry(np.zeros(n_values, np.float32), np.zeros(n_counts, np.int64))
            self.entries[name] = entry
        if entry.sums.size != n_values:
            raise ModelError(f"{name} has {n_values} values in this model, but {entry.sums.size} in the merged files")
        return entry

    def _dense(self, product: Product) -> None:
        width, _, n2, n3 = product.shape
        n_matrices = n2 * n3
        entry = self._entry(product.weight, width * n_matrices, 1)
        if entry.counts.size > 1 and (entry.counts == entry.counts[0]).all():
            # Older files count each matrix of a weight, although all see the same rows.
            entry.counts = entry.counts[:1].copy()
        before = entry.sums.copy()
        if product.repeats and np.array_equal(before, self._last[0]):
            entry.sums[:] = self._last[1]
        else:
            self._sum(product, entry.sums.reshape(n_matrices, width))
        self._last = before, entry.sums.copy()
        _require_finite(product.weight, entry.sums)
        entry.counts += product.x[..., 0].size // n_matrices

    def _sum(self, product: Product, sums: Floats) -> None:
        _, _, n2, n3 = product.shape
        for i3, cube in enumerate(product.x):
            for i2, rows in enumerate(cube):
                # A weight with fewer matrices than the activations is used again for the others.
                self._add(sums[(i3 % n3) * n2 + i2 % n2], rows)

    def _routed(self, product: Product, experts: NDArray[np.int32]) -> None:
        width, _, n_experts, _ = product.shape
        entry = self._entry(product.weight, width * n_experts, n_experts)
        if entry.counts.size == 1 and n_experts > 1:
            entry.counts = np.resize(entry.counts, n_experts)
        if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) < n_experts:
            raise ModelError(f"{product.weight}: a token was routed to an expert that is not there")
        x, sums = product.x[0], entry.sums.reshape(n_experts, width)
        n_used = x.shape[1]  # 1 where all experts of a token see the same row
        for expert in np.unique(experts):
            places, tokens = np.nonzero(expert == experts.T)
            self._add(sums[expert], x[tokens, places % n_used])
            entry.counts[expert] += len(tokens)
            _require_finite(product.weight, sums[expert])

    def _add(self, sums: Floats, rows: Floats) -> None:
        """Add the squares of rows to sums, one row after the other in float32: llama-imatrix's very roundings."""
        width = rows.shape[1]
        if self._squares.shape[-1] != width:
            self._squares = np.empty((_BLOCK + 1, width), np.float32)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            squares = self._squares[: len(block) + 1]
            squares[0] = sums
            np.square(block, out=squares[1:])
            np.add.reduce(squares, axis=0, out=sums)


def _require_finite(weight: str, sums: Floats) -> None:
    if not np.isfinite(sums).all():
        raise ModelError(f"the activations at {weight} are not finite: the model is damaged, or its numbers overflow")
