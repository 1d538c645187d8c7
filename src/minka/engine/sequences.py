"""The sequences of the KV cache; every change to one is booked in slot, ledger and backend alike.

Law, checked by `check`: a slot's n_past, the ledger of cells and the backend's sequence length are always equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from minka.engine.cells import Cells
from minka.engine.memory import Memory
from minka.engine.prefix_cache import MIN_SHARED, Placement
from minka.engine.slot import Run, Slot
from minka.errors import NativeError
from minka.native.protocol import Backend


class Sequences:
    """One sequence a slot, and the memory that keeps the text of those that lose their cells."""

    def __init__(self, backend: Backend, slots: Sequence[Slot], memory: Memory) -> None:
        self._backend = backend
        self._slots = slots
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
        """`Backend.floor` of every slot's sequence."""
        return [self._backend.floor(slot.id) for slot in self._slots]

    def known(self, run: Run) -> int:
        """How many tokens of a run the memory could bring back; the last one is always computed, for its logits."""
        return self.memory.known(run.tokens[:-1], run.job.cache_salt) if run.job.cache_prompt else 0

    def take(self, slot: Slot, placement: Placement, run: Run) -> None:
        """Make the slot's sequence hold as much of a run as anyone holds or remembers, and nothing else.

        Raises NativeError if the backend fails; the sequence is empty then.
        """
        n, source = placement.n_reuse, placement.source
        recall = self.known(run) >= n + MIN_SHARED and slot.id not in self._lent
        if recall and not self._backend.kv_unified:
            n, source = 0, -1  # a stream is restored as a whole, so nothing has to be copied into it before
        if source != slot.id or n < slot.n_past:
            self._keep(slot)
        try:
            if source in (-1, slot.id):
                self.cut(slot, n)
            else:
                self._backend.share(source, slot.id, n)
                self._cells.share(source, slot.id, n)
                slot.n_past = n
                if not self._backend.kv_unified:
                    self._lent.add(source)
            self._clear_idle(slot)
            if recall:
                self._recall(slot, run)
        except NativeError:
            self._forget(slot)
            raise

    def _recall(self, slot: Slot, run: Run) -> None:
        recalled = self.memory.recall(slot.id, run.tokens[:-1], run.job.cache_salt)
        if recalled.length > slot.n_past:
            run.n_recalled = recalled.length - slot.n_past
        self._cells.cut(slot.id, recalled.kept)
        self._cells.extend(slot.id, recalled.length - recalled.kept)
        slot.n_past = recalled.length

    def _clear_idle(self, but: Slot) -> None:
        """Attention is paid over every cell in use, so idle text does not stay in a pool that others compute in."""
        if self.memory.clears_idle and self._backend.kv_unified:
            for slot in self._slots:
                if slot.idle and slot is not but and slot.n_past:
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

    def evict(self, slot: Slot) -> None:
        """Take a sequence's cells away; what it held is remembered."""
        self._keep(slot)
        self.cut(slot, 0)

    def evict_oldest(self) -> bool:
        """Take the cells of the idle sequence that was not used for longest. False if no idle one has any."""
        idle = [slot for slot in self._slots if slot.idle and slot.n_past]
        if idle:
            self.evict(min(idle, key=lambda slot: slot.last_used))
        return bool(idle)

    def _keep(self, slot: Slot) -> None:
        if not slot.private:
            self.memory.keep(slot.id, slot.tokens[: slot.n_past], slot.salt)

    def cut(self, slot: Slot, n: int) -> None:
        """Drop a sequence's positions >= n."""
        self._backend.cut(slot.id, n)
        self._cells.cut(slot.id, n)
        slot.n_past = n
        if slot.run is None:
            slot.tokens = slot.tokens[:n]

    def _forget(self, slot: Slot) -> None:
        """Empty a sequence that something failed on half-way."""
        self._backend.cut(slot.id, 0)
        self._cells.cut(slot.id, 0)
        slot.tokens, slot.n_past = [], 0

    def check(self) -> None:
        """Raise NativeError if slots, ledger and backend disagree."""
        for slot in self._slots:
            counts = (slot.n_past, self._cells.length(slot.id), self._backend.length(slot.id))
            if len(set(counts)) > 1 or slot.n_past > len(slot.tokens):
                raise NativeError(f"slot {slot.id}: n_past, ledger and KV cache disagree: {counts}")
