"""Parts of a prompt that a sequence holds in another place: they are moved instead of being computed again.

llama-server's rule (`--cache-reuse`): behind the common beginning, every run of at least N equal tokens that the
sequence has further on moves up to where the prompt has it. Its keys and values were computed behind another text, so
the result is an approximation, which is why a request has to ask for it. Pure: it reads tokens and returns shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.engine.prefix_cache import Placement, common_prefix, may_share
from minka.engine.shift import Shift
from minka.engine.slot import Run, Slot

MAX_SHIFTS = 256
"""Runs that are moved for one prompt: each costs a walk over all cells, and a request decides how short they are."""


@dataclass(frozen=True, slots=True)
class Splice:
    """The shifts that make a sequence hold the first `n` tokens of a prompt, to be done in this order."""

    n: int
    shifts: tuple[Shift, ...] = ()


def splice(held: list[int], wanted: list[int], at_least: int, movable: int = 0) -> Splice:
    """How a sequence that holds the tokens `held` comes to hold as much of the prompt `wanted` as it can.

    Runs of `at_least` tokens or more are moved; those that begin under position `movable` cannot be. The prompt's last
    token is never taken over: it is computed for its logits.
    """
    n = common_prefix(held, wanted)
    # Every token as one character: so a run is found in linear time.
    text, sought = "".join(map(chr, held)), "".join(map(chr, wanted))
    shifts: list[Shift] = []
    at, dropped = max(n, movable), 0
    while len(sought) - n >= at_least and len(shifts) < MAX_SHIFTS:
        found = text.find(sought[n : n + at_least], at)
        if found < 0:
            break
        length = common_prefix(text[found:], sought[n:])
        shifts.append(Shift(n, found - dropped - n))
        n, at, dropped = n + length, found + length, found - n
    return Splice(min(n, len(wanted) - 1), tuple(shifts))


def improve(
    placement: Placement,
    run: Run,
    slots: Sequence[Slot],
    floors: Sequence[int],
    movable: Sequence[int],
    *,
    n_known: int,
    only: int = -1,
) -> Placement:
    """A better placement for a run that wants parts to be moved, or the one that it has.

    It goes to the idle slot whose sequence comes to hold most of its prompt, if that is more than what anyone can give
    without moving. `movable[i]` is the first position of slot i's sequence that can be moved, the rest as in `place`.
    What is to be pinned is computed.
    """
    if not run.job.cache_prompt or run.job.pin or run.scores:
        return placement
    pinned = run.job.id_slot if only < 0 else only
    best, n = placement, placement.wait.n if placement.wait else max(placement.n_reuse, n_known)
    for slot in slots:
        if not slot.idle or pinned not in (-1, slot.id) or floors[slot.id] or not may_share(run, slot):
            continue
        found = splice(slot.tokens[: slot.n_past], run.context, run.job.n_cache_reuse, movable[slot.id])
        if found.n > n:
            best, n = Placement(slot.id, slot.id, found.n, shifts=found.shifts), found.n
    return best
