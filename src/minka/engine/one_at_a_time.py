"""Deterministic plans: a text is computed in pieces that depend on nothing but itself, alone and among any others.

libllama's kernels give slightly different numbers for another shape of a batch. So a step computes one sequence only;
its prompt in chunks that end at multiples of one size, counted from its beginning, and whatever follows the prompt
token by token, also when it is computed again. Pure policy, like `scheduler`: it returns grants for the loop to obey.
"""

from __future__ import annotations

from collections.abc import Sequence

from minka.engine.scheduler import Grant, Speed
from minka.engine.slot import Slot

CHUNK = 64
"""Prompt tokens of one step: few enough that running streams do not wait long, and a block of the prefix cache."""


class OneAtATime:
    """Plans steps of a single slot: every running stream a token in turn, and after each round one prompt chunk.

    What a slot holds can serve others up to a multiple of `chunk`, as far as it was computed as a prompt.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._stream = -1
        """The stream that had the last turn of this round, -1 before the first."""
        self._prompt = -1
        self.speed = Speed()
        """Measured for nobody: the shapes here do not follow it."""

    def plan(self, slots: Sequence[Slot], others: Sequence[Slot] = ()) -> list[Grant]:
        """The grant of the next step, or none if there is nothing to compute; nothing depends on `others`."""
        streams = [slot for slot in slots if slot.generating]
        prompts = [slot for slot in slots if slot.prefilling and slot.wait is None]
        if slot := next((slot for slot in streams if slot.id > self._stream), None):
            self._stream = slot.id
            return [Grant(slot.id, 1)]
        self._stream = -1
        if prompts:
            slot = next((slot for slot in prompts if slot.id > self._prompt), prompts[0])
            self._prompt = slot.id
            return [Grant(slot.id, self._piece(slot))]
        return self.plan(streams) if streams else []

    def _piece(self, slot: Slot) -> int:
        """Tokens up to the end of the chunk or of the prompt; behind the prompt one by one."""
        assert slot.run is not None, "a busy slot has a run"
        end = min(slot.n_past // self._chunk * self._chunk + self._chunk, slot.run.n_prompt)
        return max(end - slot.n_past, 1)
