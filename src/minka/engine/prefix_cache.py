"""Where a prompt can start from: which slot it gets, and which part of it some sequence holds already or soon will.

Pure policy: it reads slots and returns a Placement for the loop to carry out. It never calls libllama.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from minka.engine.shift import Shift
from minka.engine.slot import Run, Slot, Wait

MIN_SHARED = 16
"""Fewer common tokens than this are computed again: taking them from another sequence would cost about as much."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A slot for a run, and where its first `n_reuse` tokens come from.

    `source` is the slot whose sequence holds them: `slot` itself (go on in place), another (share), or -1 (nothing).
    `wait` is set if another slot is about to compute more of the prompt than anyone holds now. `shifts` are to be done
    first, in place.
    """

    slot: int
    source: int = -1
    n_reuse: int = 0
    wait: Wait | None = None
    shifts: tuple[Shift, ...] = ()


Tokens = TypeVar("Tokens", list[int], tuple[int, ...], str)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that are equal. Slices are compared in C, so this is a few ns a token.

    Both must be of one type: a list is never equal to a tuple.
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def place(
    run: Run, slots: Sequence[Slot], floors: Sequence[int], *, n_known: int = 0, only: int = -1, unit: int = 1
) -> Placement | None:
    """The best idle slot for a run, None if none is idle (or the one that the job asks for is not).

    `floors[i]` is `Backend.floor` of slot i's sequence, `n_known` how many tokens the memory can bring back.
    `only` names the one slot to consider. Only whole `unit`s of tokens are taken over from anyone.
    """
    pinned = run.job.id_slot if only < 0 else only
    idle = [slot for slot in slots if slot.idle and pinned in (-1, slot.id)]
    if not idle:
        return None
    idle.sort(key=lambda slot: (slot.n_past > 0, slot.last_used))  # empty ones, then the one unused for longest
    if not run.job.cache_prompt:
        return Placement(idle[0].id)
    held = [(_usable(run, slot, floors[slot.id], unit), slot) for slot in slots]
    n_reuse, source = max(held, key=lambda pair: (pair[0], pair[1] in idle))
    target = _target(source, n_reuse, idle)
    n_own = next(n for n, slot in held if slot is target)
    if source is not target and n_reuse - n_own < MIN_SHARED:
        n_reuse, source = n_own, target
    wait = _leader(run, slots, floors, max(n_reuse, n_known), unit)
    return Placement(target.id, source.id if n_reuse else -1, n_reuse, wait)


def may_share(run: Run, slot: Slot) -> bool:
    """Whether a run may start from what a slot holds."""
    return slot.salt == run.job.namespace and not slot.private


def _usable(run: Run, slot: Slot, floor: int, unit: int) -> int:
    """How many leading tokens the slot's sequence holds; the last token is always computed, for its logits."""
    if not may_share(run, slot):
        return 0
    n = _common(run, slot, min(slot.n_past, slot.n_sound), unit)
    return n if n >= floor else 0


def _common(run: Run, slot: Slot, limit: int, unit: int) -> int:
    tokens = run.context
    n = min(common_prefix(tokens, slot.tokens[:limit]), len(tokens) - 1, run.n_reusable)
    return n - n % unit


def _target(source: Slot, n_reuse: int, idle: Sequence[Slot]) -> Slot:
    """In place where that loses less than it keeps; else the first of `idle`, and not the text that is to be copied."""
    if source in idle and n_reuse and (len(idle) == 1 or source.n_past - n_reuse <= n_reuse):
        return source
    return next(slot for slot in idle if slot is not source or n_reuse < MIN_SHARED)


def _leader(run: Run, slots: Sequence[Slot], floors: Sequence[int], n_reuse: int, unit: int) -> Wait | None:
    """The slot that is computing a longer part of this prompt than anyone holds.

    Only an older run can lead, so that no two slots ever wait for each other.
    """
    wait, best = None, n_reuse + MIN_SHARED - 1
    for slot in slots:
        if slot.run is None or not slot.prefilling or floors[slot.id] or 0 < run.order <= slot.run.order:
            continue
        if not may_share(run, slot):
            continue
        n = _common(run, slot, slot.n_sound, unit)
        if n > best and n > slot.n_past:
            wait, best = Wait(slot.id, slot.run.order, n), n
    return wait


def wait_is_over(wait: Wait, leader: Slot) -> bool:
    """Whether the leader holds the tokens now, or will never do so for this wait."""
    return leader.run is None or leader.run.order != wait.order or leader.n_past >= wait.n
