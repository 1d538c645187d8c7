"""Runs that wait for a slot: by priority, then in the order they came; bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from minka.engine.slot import Run
from minka.types import Priority


class Queue:
    """Three lines of runs. A run that had a slot already goes to the front of its line."""

    def __init__(self) -> None:
        self._lines: dict[Priority, deque[Run]] = {priority: deque() for priority in sorted(Priority, reverse=True)}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the order in which they would be admitted."""
        for line in self._lines.values():
            yield from line

    def put(self, run: Run) -> None:
        """Append a new run to its line."""
        self._lines[run.job.priority].append(run)

    def put_back(self, run: Run) -> None:
        """Put a run that lost its slot in front of its line."""
        self._lines[run.job.priority].appendleft(run)

    def take(self, run: Run) -> None:
        """Take out a run, to admit it."""
        self._lines[run.job.priority].remove(run)

    def remove(self, match: Callable[[Run], bool]) -> list[Run]:
        """Take out all runs that match."""
        removed = [run for run in self if match(run)]
        for run in removed:
            self.take(run)
        return removed
