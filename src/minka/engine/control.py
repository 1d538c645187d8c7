"""What is done to slots and cache from outside, between two steps: commands of a closed set, each with its reply.

A command that needs a slot waits until that is free, and nothing else waits for it. Knows no files and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minka.engine.reply import answer, refuse
from minka.engine.sequences import Sequences
from minka.engine.slot import Slot
from minka.errors import MinkaError, RequestError
from minka.native.protocol import Backend
from minka.types import Adapter, CacheView, Counters, TierView


@dataclass(frozen=True, slots=True)
class SlotState:
    """The tokens that a sequence holds, and its state as `Backend.save` gives it."""

    tokens: tuple[int, ...]
    state: bytes


@dataclass(frozen=True, slots=True)
class LookAtCache:
    """How full the tiers are, and what they were good for."""

    reply: Future[CacheView]


@dataclass(frozen=True, slots=True)
class Unpin:
    """Let go of a pinned prefix; False if there is none of that name."""

    name: str
    reply: Future[bool]


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Drop all text that is not pinned, in every tier; the number of entries dropped."""

    reply: Future[int]


@dataclass(frozen=True, slots=True, eq=False)
class SaveSlot:
    """A copy of what a slot holds."""

    slot: int
    reply: Future[SlotState]


@dataclass(frozen=True, slots=True, eq=False)
class RestoreSlot:
    """Make a slot hold a saved state, for prompts of this salt; what it held before goes to memory.

    Fails with RequestError, and llama-server's reason, if the state fits neither its tokens nor this context.
    """

    slot: int
    saved: SlotState
    salt: str
    reply: Future[None]


@dataclass(frozen=True, slots=True, eq=False)
class EraseSlot:
    """Empty a slot; the number of tokens that it held."""

    slot: int
    reply: Future[int]


@dataclass(frozen=True, slots=True, eq=False)
class LoadAdapter:
    """Load a LoRA adapter from a file; its `scale` is only noted."""

    path: Path
    scale: float
    reply: Future[Adapter]


@dataclass(frozen=True, slots=True, eq=False)
class UnloadAdapter:
    """Free an adapter as soon as no slot computes with it. Jobs that still want it then fail."""

    id: int
    reply: Future[None]


SlotCommand = SaveSlot | RestoreSlot | EraseSlot
Waiting = SlotCommand | UnloadAdapter
Command = LookAtCache | Unpin | ClearCache | LoadAdapter | Waiting


class Control:
    """Carries out commands on one loop's slots. Only the engine's thread uses it."""

    def __init__(
        self,
        backend: Backend,
        slots: Sequence[Slot],
        sequences: Sequences,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._sequences = sequences
        self._counters = counters
        self._clock = clock
        self._waiting: list[Waiting] = []

    @property
    def waits(self) -> bool:
        """Whether a command waits for slots."""
        return bool(self._waiting)

    def do(self, command: Command) -> None:
        """Carry out a command, or note it until its slot is free. Its reply gets the result or the error."""
        match command:
            case LookAtCache(reply):
                answer(reply, self._look)
            case Unpin(name, reply):
                answer(reply, partial(self._sequences.memory.unpin, name))
            case ClearCache(reply):
                answer(reply, self._clear)
            case LoadAdapter(path, scale, reply):
                answer(reply, partial(self._backend.load_adapter, path, scale))
            case UnloadAdapter():
                self._waiting.append(command)
                self.settle()
            case _ if not 0 <= command.slot < len(self._slots):
                refuse(command.reply, RequestError("Invalid slot ID", param="id_slot"))
            case _:
                self._waiting.append(command)
                self.settle()

    def settle(self) -> None:
        """Carry out what waited for a slot that is free now, in the order it came."""
        for command in list(self._waiting):
            if command.reply.cancelled() or self._is_free(command):
                self._waiting.remove(command)
                self._act(command)

    def _is_free(self, command: Waiting) -> bool:
        """Whether no running job is in the way of a command."""
        if not isinstance(command, UnloadAdapter):
            return self._slots[command.slot].idle
        runs = [slot.run for slot in self._slots if slot.run is not None]
        return all(id != command.id for run in runs for id, _scale in run.job.lora)

    def _act(self, command: Waiting) -> None:
        if isinstance(command, UnloadAdapter):
            answer(command.reply, partial(self._backend.unload_adapter, command.id))
            return
        slot = self._slots[command.slot]
        match command:
            case SaveSlot(_, reply):
                answer(reply, partial(self._save, slot))
            case RestoreSlot(_, saved, salt, reply):
                answer(reply, partial(self._restore, slot, saved, salt))
            case EraseSlot(_, reply):
                answer(reply, partial(self._erase, slot))

    def abandon(self, error: MinkaError) -> None:
        """Nothing that waits will be done."""
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            refuse(command.reply, error)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _save(self, slot: Slot) -> SlotState:
        if slot.lora and slot.n_past:
            raise RequestError("Unable to save slot: LoRA adapters computed its text, and a file does not tell which")
        if self._sequences.was_moved(slot):
            raise RequestError("Unable to save slot: a part of its text was moved, so it is not what its tokens give")
        return SlotState(tuple(slot.tokens[: slot.n_past]), self._backend.portable(self._backend.save(slot.id)))

    def _restore(self, slot: Slot, saved: SlotState, salt: str) -> None:
        n_vocab = self._backend.vocab.n_tokens
        if len(saved.tokens) > self._backend.n_ctx_seq:
            raise _unrestored("Restored prompt does not fit in the slot context")
        if not all(0 <= token < n_vocab for token in saved.tokens):
            raise _unrestored("Invalid tokens in slot save file")
        if not self._sequences.restore(slot, saved.tokens, self._backend.adopt(saved.state), salt):
            raise _unrestored("No available space in KV cache or invalid slot save file")
        slot.last_used = self._clock()

    def _erase(self, slot: Slot) -> int:
        n = slot.n_past
        self._sequences.cut(slot, 0)
        return n

    # -- cache -------------------------------------------------------------------------------------------------------

    def _look(self) -> CacheView:
        memory, counters = self._sequences.memory, self._counters
        device = TierView(
            name="device",
            entries=sum(slot.n_past > 0 for slot in self._slots),
            tokens=self._sequences.used_cells,
            n_bytes=None,
            limit=self._backend.n_ctx,
            hits=counters.device_hits,
            served=counters.cached_tokens - counters.recalled_tokens,
        )
        return CacheView(memory.enabled and not memory.in_blocks, (device, *memory.tiers()), memory.pins())

    def _clear(self) -> int:
        held = [slot for slot in self._slots if slot.idle and slot.n_past]
        for slot in held:
            self._sequences.cut(slot, 0)
        return len(held) + self._sequences.memory.clear()


def _unrestored(reason: str) -> RequestError:
    return RequestError(f"Unable to restore slot: {reason}")
