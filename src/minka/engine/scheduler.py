"""Who computes what in the next step. Pure policy: it reads slots and speeds and returns grants for the loop to obey.

Every generating slot gets its tokens first. Prompts share what is left of a token budget that is sized from measured
speed, so that the gap between two tokens of a running stream stays bounded whatever prompt arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minka.engine.slot import Run, Slot

IDLE_CHUNK = 512
"""Prompt tokens in a step while nobody generates: as fast as larger ones, and a new request waits for one only."""

MIN_CHUNK = 8
"""Prompt tokens that a step always has room for: a prompt has to get on even where every step is slow."""

UNMEASURED_CHUNK = 32
"""Prompt tokens beside running streams while no speed was measured yet."""

PORTION = 16
"""Prompt tokens under which parts of several prompts cost clearly more than a larger part of one, because each sequence
of a batch has a cost of its own: 85 ms for 8 tokens of one prompt, 141 ms for 2 of each of four."""

MIN_LANES = 2
"""Prompts that a step always has room for: the oldest, and one that is done soon."""

GAP_IN_STEPS = 3
"""A gap of this many decode steps is never too long, however slow the model."""

_NEW = 0.25
"""Weight of a new measurement in the running means."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`n` tokens of a slot go into the next batch."""

    slot: int
    n: int


@dataclass(slots=True)
class Speed:
    """What a step costs, in seconds, as running means of measurements; 0 is unknown."""

    decode: float = 0.0
    """A step without prompt tokens."""
    prefill: float = 0.0
    """Each prompt token of a step, on top of that."""
    since: float = 0.0
    """What has passed since the step before: embeddings, commands, text that was brought back."""
    stride: int = 1
    """Steps from one of a stream's to its next: more than 1 where sets of adapters take turns."""

    def observe(self, n_prefill: int, n_decode: int, seconds: float) -> None:
        """Learn from a step that computed so many tokens of prompts and of running streams."""
        if not n_prefill:
            self.decode = _mean(self.decode, seconds)
        elif n_prefill >= MIN_CHUNK:
            own = seconds - (self.decode if n_decode else 0.0)
            self.prefill = _mean(self.prefill, max(own, 0.1 * seconds) / n_prefill)


def _mean(mean: float, value: float) -> float:
    return value if not mean else (1 - _NEW) * mean + _NEW * value


class Scheduler:
    """Plans steps of at most `n_batch` tokens. `max_gap` is the longest pause of a running stream, in seconds."""

    def __init__(self, n_batch: int, max_gap: float) -> None:
        self._n_batch = n_batch
        self._max_gap = max_gap
        self.speed = Speed()

    def plan(self, slots: Sequence[Slot], others: Sequence[Slot] = ()) -> list[Grant]:
        """Grants for the next step, in slot order, at most one a slot; empty if there is nothing to compute.

        Slot order keeps the lanes of decode steps stable, which lets libllama reuse its graph. `others` wait for the
        step, as they cannot be computed together with `slots`.
        """
        decode = {slot.id: slot.pending for slot in slots if slot.generating}
        waiting = [slot for slot in slots if slot.prefilling and slot.wait is None]
        room = self._n_batch - sum(decode.values())
        n_streams = len(decode) + sum(slot.generating for slot in others)
        budget = min(room, self._budget(n_streams))
        prefill = _share(budget, waiting, _followers(slots)) if budget > 0 else {}
        grants = decode | prefill
        return [Grant(slot, grants[slot]) for slot in sorted(grants)]

    def _budget(self, n_streams: int) -> int:
        """Prompt tokens of a step."""
        if not n_streams:
            return IDLE_CHUNK
        if not self.speed.prefill or not self.speed.decode:
            return UNMEASURED_CHUNK
        gap = max(self._max_gap / self.speed.stride, GAP_IN_STEPS * self.speed.decode) - self.speed.since
        return max(MIN_CHUNK, int((gap - self.speed.decode) / self.speed.prefill))


def _followers(slots: Sequence[Slot]) -> Counter[int]:
    """How many slots wait for each slot's tokens, directly: a leader computes for them too."""
    return Counter(slot.wait.leader for slot in slots if slot.wait is not None)


def _share(budget: int, slots: Sequence[Slot], followers: Counter[int]) -> dict[int, int]:
    """Split the budget in proportion to weight; what a short prompt does not need goes to the others."""
    grants: dict[int, int] = {}
    left = sorted(_served(budget, slots, followers), key=lambda slot: _weighted(slot, followers))
    for index, slot in enumerate(left):
        total = sum(1 + followers[other.id] for other in left[index:])
        part = -(-budget * (1 + followers[slot.id]) // total)
        grants[slot.id] = n = min(part, slot.pending, budget - (len(left) - index - 1))
        budget -= n
    return grants


def _served(budget: int, slots: Sequence[Slot], followers: Counter[int]) -> list[Slot]:
    """The prompts that get a part: the oldest, so that none starves, and of the others those that need least: as many
    as can have PORTION tokens, and more while these need less than the budget."""
    in_age = sorted(slots, key=lambda slot: _run(slot).order)
    served: list[Slot] = []
    needed = 0
    for slot in in_age[:1] + sorted(in_age[1:], key=lambda slot: _weighted(slot, followers)):
        if len(served) >= max(MIN_LANES, budget // PORTION) and needed >= budget:
            break
        served.append(slot)
        needed += slot.pending
    return served[:budget]


def _weighted(slot: Slot, followers: Counter[int]) -> float:
    return slot.pending / (1 + followers[slot.id])


def victim(slots: Sequence[Slot]) -> Slot | None:
    """The slot whose run gives way when KV cells run out: of the lowest priority, the youngest. None if it is alone."""
    busy = [slot for slot in slots if slot.run is not None]
    return min(busy, key=_worth) if len(busy) > 1 else None


def _worth(slot: Slot) -> tuple[int, int]:
    run = _run(slot)
    return run.job.priority, -run.order


def _run(slot: Slot) -> Run:
    assert slot.run is not None, "a busy slot has a run"
    return slot.run


def has_room(need: int, slots: Sequence[Slot], n_ctx: int, n_busy_cells: int) -> bool:
    """Whether a run that adds `need` cells can be admitted: beside what busy slots hold and are known to need.

    Text of idle slots does not count, it gives way. A run that would be alone is always admitted.
    """
    busy = [slot for slot in slots if slot.run is not None]
    known = sum(slot.pending - (slot.wait.n - slot.n_past if slot.wait else 0) for slot in busy)
    return not busy or n_busy_cells + known + need <= n_ctx
