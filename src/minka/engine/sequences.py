"""The sequences of the KV cache; every change to one is booked in slot, ledger and backend alike.

Law, checked by `check`: a slot's n_past, the ledger of cells and the backend's sequence length are always equal.
And one that `Slot.n_sound` is for: nobody else starts from, and nothing remembers, what is not sound.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from minka.engine.cells import Cells
from minka.engine.memory import Found, Memory
from minka.engine.prefix_cache import MIN_SHARED, Placement
from minka.engine.shift import Shift
from minka.engine.slot import ALL, Run, Slot
from minka.errors import NativeError, RequestError
from minka.native.protocol import Backend

log = logging.getLogger("minka.engine")


class Sequences:
    """One sequence a slot, and the memory that keeps the text of those that lose their cells."""

    def __init__(self, backend: Backend, slots: Sequence[Slot], memory: Memory, *, unit: int = 1) -> None:
        """With a `unit` over 1 only whole units of tokens that were computed as a prompt are sound."""
        self._backend = backend
        self._slots = slots
        self._unit = unit
        self._cells = Cells(backend.n_seq_max, unified=backend.kv_unified)
        self._lent: set[int] = set()
        """Streams that the next decode copies from: nothing may be restored over them before."""
        self.memory = memory

    @property
    def used_cells(self) -> int:
        """Cells that hold anything."""
        return self._cells.used

    def busy_cells(self) -> int:
        """Cells that hold tokens of slots with a run."""
        return self._cells.used_by(slot.id for slot in self._slots if not slot.idle)

    def floors(self) -> list[int]:
        """`Backend.floor` of every slot's sequence.

        Cells that took the place of others lie in another order, and sums come out differently: whole units are never
        taken from such a sequence.
        """
        floors = [self._backend.floor(slot.id) for slot in self._slots]
        return floors if self._unit == 1 else [ALL if floor else 0 for floor in floors]

    def movable(self) -> list[int]:
        """The position of every slot's sequence from which on its cells can be moved: no other sequence has them."""
        return [self._cells.own(slot.id) for slot in self._slots]

    def known(self, run: Run) -> int:
        """How many tokens of a run the memory could bring back; the last one is always computed, for its logits."""
        if not run.job.cache_prompt or not self._remembers:
            return 0
        n = min(self.memory.known(run.context[:-1], run.job.namespace), run.n_reusable)
        return n - n % self._unit

    @property
    def _remembers(self) -> bool:
        """Whether memory is of any use: a state that cannot be cut is never just whole units of a prompt."""
        return self.memory.enabled and (self._unit == 1 or self._backend.sliceable)

    def take(self, slot: Slot, placement: Placement, run: Run) -> None:
        """Make the slot's sequence hold as much of a run as anyone holds or remembers, and nothing else.

        Raises NativeError if the backend fails; the sequence is empty then.
        """
        n, source, shifts = placement.n_reuse, placement.source, placement.shifts
        found = self._fetch(slot, run, n) if not shifts else None
        if found is not None and (found.state or not self._backend.kv_unified):
            n, source = 0, -1  # it is restored as a whole, so nothing has to be copied into it before
        if source != slot.id or n < slot.n_past:
            self._keep(slot)
        try:
            if source in (-1, slot.id):
                for shift in shifts:
                    self._move(slot, shift)
                self.cut(slot, n)
            else:
                self._share(source, slot, n)
            self._clear_idle(slot)
            if source != slot.id:
                run.n_recalled = 0
            if found is not None:
                self._recall(slot, run, found)
            if self._unit > 1:
                slot.n_sound = run.n_prompt - run.n_prompt % self._unit
        except NativeError:
            self._forget(slot)
            raise

    def _fetch(self, slot: Slot, run: Run, n: int) -> Found | None:
        """What memory has of a run, if that is worth more than the `n` tokens that the slot can have without it.

        It is taken out before anything is kept, which could make it give way.
        """
        n_known = self.known(run)
        if slot.id in self._lent or n_known < n + MIN_SHARED:
            return None
        start = n if self._backend.kv_unified else 0
        found = self.memory.fetch(run.context[:n_known], run.job.namespace, start)
        return found if found.n >= n + MIN_SHARED else None

    def _share(self, source: int, slot: Slot, n: int) -> None:
        self._backend.share(source, slot.id, n)
        self._cells.share(source, slot.id, n)
        slot.n_past, slot.n_sound = n, self._sound(n)
        if not self._backend.kv_unified:
            self._lent.add(source)

    def shift(self, slot: Slot, shift: Shift) -> None:
        """Drop a part of a busy slot's sequence, and let what follows it move up.

        A cell has one position, whoever shares it. So where another sequence has cells that would move, this one gives
        up its own and computes them again.
        """
        if shift.end < slot.n_past and self._cells.own(slot.id) <= shift.end:
            self._move(slot, shift)
        else:
            self.cut(slot, shift.keep if shift.keep >= self._backend.floor(slot.id) else 0)

    def _move(self, slot: Slot, shift: Shift) -> None:
        self._backend.shift(slot.id, shift.keep, shift.discard)
        self._cells.drop(slot.id, shift.keep, shift.end)
        slot.n_past -= shift.discard
        slot.n_sound = min(slot.n_sound, shift.keep)
        if slot.run is None:
            slot.tokens = shift.apply(slot.tokens)

    def was_moved(self, slot: Slot) -> bool:
        """Whether a slot holds anything at another position than it was computed for."""
        return self._unit == 1 and slot.n_sound < slot.n_past

    def _sound(self, n: int) -> int:
        """`Slot.n_sound` of a sequence that was brought to `n` sound positions, whatever it computes next."""
        return ALL if self._unit == 1 else n

    def _recall(self, slot: Slot, run: Run, found: Found) -> None:
        before = slot.n_past
        log.debug("updating prompt cache: slot %d takes back positions %d to %d", slot.id, found.start, found.n)
        self.cut(slot, found.start)
        if self._backend.kv_unified:
            while self._cells.used + found.n - found.start > self._backend.n_ctx and self.evict_oldest(slot):
                pass
        self.memory.recall(slot.id, found)
        length = self._backend.length(slot.id)
        self._cells.extend(slot.id, length - slot.n_past)
        slot.n_past = length
        run.n_recalled += max(0, length - before)
        self.memory.note_served(found, max(0, length - before))

    def _clear_idle(self, but: Slot) -> None:
        """Attention is paid over every cell in use, so idle text does not stay in a pool that others compute in."""
        if self.memory.clears_idle and self._backend.kv_unified:
            for slot in self._slots:
                if slot.idle and slot is not but and slot.n_past:
                    log.debug("__TEST_TAG_CACHE_IDLE_SLOT__ %d: %d tokens move to memory", slot.id, slot.n_past)
                    self.evict(slot)

    def grow(self, slot: Slot, n: int) -> None:
        """Book `n` tokens that the backend has computed."""
        self._lent.clear()
        self._cells.extend(slot.id, n)
        slot.n_past += n

    def snapshot(self, slot: Slot) -> None:
        """Remember a state that could not be cut back to later."""
        if self.memory.enabled and not self._backend.sliceable:
            self._keep(slot)

    def pin(self, slot: Slot, name: str) -> None:
        """Pin what a slot holds under a name. Raises RequestError if memory has no room or no use for it."""
        if not self._remembers:
            raise RequestError("a deterministic server can pin nothing of a model with whole states only", param="pin")
        self.memory.pin(name, slot.id, slot.tokens[: slot.n_past], slot.salt)

    def restore(self, slot: Slot, tokens: Sequence[int], state: bytes, salt: str) -> bool:
        """Make an idle slot hold a saved state; what it held is remembered.

        False, and the slot is empty, if there is no room or the state is not one of exactly these tokens.
        """
        self.evict(slot)
        if self._backend.kv_unified:
            while self._cells.used + len(tokens) > self._backend.n_ctx and self.evict_oldest(slot):
                pass
        if tokens and not (self._backend.restore(slot.id, state) and self._proves(slot.id, len(tokens))):
            self._forget(slot)
            return False
        self._cells.extend(slot.id, len(tokens))
        slot.tokens, slot.n_past, slot.salt, slot.private, slot.lora = list(tokens), len(tokens), salt, False, ()
        return True

    def _proves(self, seq: int, n: int) -> bool:
        """Whether a sequence that came from outside has every position up to `n`, and no more."""
        if self._backend.length(seq) != n:
            return False
        if not self.memory.in_blocks:
            return True
        try:
            return bool(self._backend.extract(seq, [(0, n)]))
        except NativeError:
            return False

    def evict(self, slot: Slot) -> None:
        """Take a sequence's cells away; what it held is remembered."""
        self._keep(slot)
        self.cut(slot, 0)

    def evict_oldest(self, but: Slot | None = None) -> bool:
        """Take the cells of the idle sequence that was not used for longest. False if no (other) idle one has any."""
        idle = [slot for slot in self._slots if slot.idle and slot.n_past and slot is not but]
        if idle:
            self.evict(min(idle, key=lambda slot: slot.last_used))
        return bool(idle)

    def keep_one(self) -> bool:
        """Remember the text of one idle slot, for which the next run would wait. False if there is none to do."""
        if not self.memory.clears_idle or not self._backend.kv_unified:
            return False
        slot = next((slot for slot in self._slots if slot.idle and slot.n_past != slot.n_kept), None)
        if slot is not None:
            self._keep(slot)
            slot.n_kept = slot.n_past
        return slot is not None

    def _keep(self, slot: Slot) -> None:
        """Remember what a sequence holds. Where that fails it is computed again, so nobody has to know."""
        n = min(slot.n_past, slot.n_sound)
        if slot.private or not self._remembers or (n < slot.n_past and not self._backend.sliceable):
            return
        try:
            self.memory.keep(slot.id, slot.tokens[:n], slot.salt)
        except (NativeError, MemoryError) as error:
            log.warning("the text of slot %d is not remembered: %s", slot.id, str(error) or "out of memory")

    def cut(self, slot: Slot, n: int) -> None:
        """Drop a sequence's positions >= n."""
        self._backend.cut(slot.id, n)
        self._cells.cut(slot.id, n)
        slot.n_past = n
        if n <= slot.n_sound:
            slot.n_sound = self._sound(n)
        if slot.run is None:
            slot.tokens = slot.tokens[:n]

    def _forget(self, slot: Slot) -> None:
        """Empty a sequence that something failed on half-way."""
        self.cut(slot, 0)
        slot.tokens = []

    def check(self) -> None:
        """Raise NativeError if slots, ledger and backend disagree."""
        for slot in self._slots:
            counts = (slot.n_past, self._cells.length(slot.id), self._backend.length(slot.id))
            if len(set(counts)) > 1 or slot.n_past > len(slot.tokens):
                raise NativeError(f"slot {slot.id}: n_past, ledger and KV cache disagree: {counts}")
