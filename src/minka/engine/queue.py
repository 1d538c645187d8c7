"""Runs that wait for a slot: by priority, then in turn between tenants, then in the order they came.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with requests of equal cost: a tenant's runs are numbered, and a lower
number goes first, so whoever sends many does not push back who sends few. Waiting raises the priority, so that nothing
waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minka.engine.slot import Run

AGING = 30.0
"""Seconds of waiting that count as much as one level of priority."""


_IDLE_TENANTS = 64
"""Tenants without a waiting run that are remembered before those are looked for that can be forgotten."""


class Queue:
    """The waiting runs. A run that had a slot already keeps its turn, which comes before all newer ones."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._turns: dict[str, int] = {}
        """The last turn that each tenant was given."""
        self._now = 0
        """The turn of the run that was taken last."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the order they came."""
        return iter(self._runs)

    def in_order(self, now: float) -> list[Run]:
        """All runs, in the order in which they should be admitted at this time (of the engine's clock)."""

        def rank(run: Run) -> tuple[int, int, float]:
            aged = run.job.priority + int((now - run.submitted) / AGING)
            return -aged, run.turn, run.submitted

        return sorted(self._runs, key=rank)

    def put(self, run: Run) -> None:
        """Add a new run, with the next turn of its tenant."""
        tenant = run.job.tenant
        run.turn = self._turns[tenant] = max(self._turns.get(tenant, 0) + 1, self._now)
        self._runs.append(run)

    def put_back(self, run: Run) -> None:
        """Add a run that lost its slot; it keeps its turn."""
        self._runs.append(run)

    def take(self, run: Run) -> None:
        """Take out a run, to admit it."""
        self._runs.remove(run)
        self._now = max(self._now, run.turn)
        if not self._runs:
            self._turns.clear()
        elif len(self._turns) > 2 * len(self._runs) + _IDLE_TENANTS:
            waiting = {run.job.tenant for run in self._runs}
            self._turns = {who: turn for who, turn in self._turns.items() if who in waiting or turn > self._now}

    def remove(self, match: Callable[[Run], bool]) -> list[Run]:
        """Take out all runs that match."""
        removed = [run for run in self._runs if match(run)]
        self._runs = [run for run in self._runs if not match(run)]
        return removed
