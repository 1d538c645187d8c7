"""The ledger of KV cells: which sequence holds how many, and how many are in use at all.

A mirror of what libllama does, kept because libllama does not tell. In the unified layout a cell can belong to several
sequences; in the split layout every sequence has cells of its own. Knows no tokens and no policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count


class Cells:
    """Cells by sequence. Law: `used` is the number of different cells that any sequence holds."""

    def __init__(self, n_seq: int, *, unified: bool) -> None:
        self._unified = unified
        self._held: list[list[int]] = [[] for _ in range(n_seq)]
        self._owners: Counter[int] = Counter()
        self._names = count()

    @property
    def used(self) -> int:
        """Cells in use, each counted once however many sequences share it."""
        return len(self._owners)

    def length(self, seq: int) -> int:
        """Cells that a sequence holds."""
        return len(self._held[seq])

    def used_by(self, seqs: Iterable[int]) -> int:
        """Cells that any of these sequences holds, each counted once."""
        return len(set().union(*(self._held[seq] for seq in seqs)))

    def extend(self, seq: int, n: int) -> None:
        """The sequence grew by `n` new cells."""
        self._hold(seq, [next(self._names) for _ in range(n)])

    def share(self, src: int, dst: int, n: int) -> None:
        """`dst` now holds the first `n` positions of `src` instead of what it held."""
        self.cut(dst, 0)
        if self._unified:
            self._hold(dst, self._held[src][:n])
        else:
            self.extend(dst, n)

    def cut(self, seq: int, n: int) -> None:
        """The sequence lost its positions >= n."""
        self.drop(seq, n, len(self._held[seq]))

    def drop(self, seq: int, start: int, end: int) -> None:
        """The sequence lost its positions start..end-1, and those behind them moved up."""
        for cell in self._held[seq][start:end]:
            self._owners[cell] -= 1
            if not self._owners[cell]:
                del self._owners[cell]
        del self._held[seq][start:end]

    def own(self, seq: int) -> int:
        """The position from which on the sequence shares its cells with no other."""
        held = self._held[seq]
        if not self._unified:
            return 0
        return next((i for i in range(len(held), 0, -1) if self._owners[held[i - 1]] > 1), 0)

    def _hold(self, seq: int, cells: list[int]) -> None:
        self._held[seq] += cells
        self._owners.update(cells)
