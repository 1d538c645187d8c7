"""Copies of the engine's state that may leave its thread."""

from __future__ import annotations

from minka.engine.slot import Slot
from minka.types import SlotView


def view_slot(slot: Slot) -> SlotView:
    """A copy of a slot's state."""
    run = slot.run
    n_prompt = run.n_prompt if run else 0
    return SlotView(
        id=slot.id,
        busy=run is not None,
        job=run.job if run else slot.last_job,
        n_past=slot.n_past,
        n_prompt=n_prompt,
        n_cached=run.n_cached if run else 0,
        n_processed=min(slot.n_past, n_prompt),
        n_generated=run.n_generated if run else 0,
        has_new_line=run.has_new_line if run else False,
        order=run.order if run else -1,
    )
