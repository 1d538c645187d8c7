"""Who computes together: a decode has one set of LoRA adapters and so many logits rows. Pure policy, around a planner.

Sets of adapters take turns. A turn is a few steps, because a change of the set makes libllama plan its graphs anew; and
it ends as soon as nobody of the set has anything to compute. So every set gets the same number of steps, and a stream
waits for the turns of the others at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from minka.engine.scheduler import Grant, Speed
from minka.engine.slot import Slot
from minka.params import Adapters

TURN = 4
"""Steps of one set of adapters while others wait."""


class Planner(Protocol):
    """Decides what slots of one set of adapters compute; see `scheduler.Scheduler`."""

    @property
    def speed(self) -> Speed:
        """What steps cost."""

    def plan(self, slots: Sequence[Slot], others: Sequence[Slot] = ()) -> list[Grant]:
        """Grants for the next step of `slots`; `others` have to wait for it."""


class Turns:
    """Plans steps that a backend can compute as one decode. `n_rows` is how many logits rows that has."""

    def __init__(self, planner: Planner, n_rows: int) -> None:
        self._planner = planner
        self._n_rows = n_rows
        self._current: Adapters = ()
        self._left = TURN
        """Steps that the current set may still take before the others."""
        self._served: dict[Adapters, int] = {}
        """When each set had its last turn, for those that have slots."""
        self._n_turns = 0

    @property
    def speed(self) -> Speed:
        """What steps cost."""
        return self._planner.speed

    @property
    def adapters(self) -> Adapters:
        """The set of adapters of the last plan."""
        return self._current

    def plan(self, slots: Sequence[Slot]) -> list[Grant]:
        """Grants for the next step, all of slots with one set of adapters; empty if there is nothing to compute."""
        ready = [slot for slot in slots if slot.generating or (slot.prefilling and slot.wait is None)]
        sets = list(dict.fromkeys(slot.lora for slot in ready))
        if not sets:
            return []
        self._take_turn(sets)
        self.speed.stride = 1 + TURN * (len(sets) - 1)
        mine = [slot for slot in slots if slot.lora == self._current]
        others = [slot for slot in ready if slot.lora != self._current]
        return self._fit(self._planner.plan(mine, others), slots)

    def _take_turn(self, sets: Sequence[Adapters]) -> None:
        if self._current not in sets or not self._left:
            self._current = min(sets, key=lambda adapters: self._served.get(adapters, 0))
            self._n_turns += 1
            self._served = {adapters: turn for adapters, turn in self._served.items() if adapters in sets}
            self._served[self._current] = self._n_turns
            self._left = TURN
        self._left -= 1

    def _fit(self, grants: list[Grant], slots: Sequence[Slot]) -> list[Grant]:
        """Shorten what scores its prompt, so that the rows suffice: each token of it needs one, every other slot one.

        There is a row for every slot at least, so nobody is left without.
        """
        scoring = {slot.id for slot in slots if slot.run is not None and slot.run.scores}
        n = sum(grant.slot in scoring for grant in grants)
        if not n:
            return grants
        part = (self._n_rows - (len(grants) - n)) // n
        return [replace(grant, n=min(grant.n, part)) if grant.slot in scoring else grant for grant in grants]
