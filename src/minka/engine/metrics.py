"""Copies of the engine's state that may leave its thread, and what its jobs took, as histograms.

Durations are those that the events themselves carry, so what is measured is what each client is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from types import MappingProxyType

from minka.engine.slot import Slot
from minka.types import (
    Cancelled,
    Event,
    Failed,
    Finished,
    FinishReason,
    Histogram,
    Measured,
    SlotView,
    Timings,
    Token,
)

FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
EACH_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(10**power * step) for power in range(6) for step in (1, 2, 5))
"""Bounds of the buckets: seconds, and numbers of tokens. They are vLLM's, so that its dashboards and alerts fit, and
some below them for what a small model does."""

_ENDS = (*(reason.value for reason in FinishReason if reason is not FinishReason.NONE), "cancelled", "failed")


class _Buckets:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def view(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


class Meters:
    """What jobs took. The engine's thread observes; any thread may look: all that it reads only grows."""

    def __init__(self) -> None:
        self._queue, self._first_token = _Buckets(REQUEST), _Buckets(FIRST_TOKEN)
        self._prefill, self._decode, self._whole = _Buckets(REQUEST), _Buckets(REQUEST), _Buckets(REQUEST)
        self._gap, self._per_token = _Buckets(EACH_TOKEN), _Buckets(EACH_TOKEN)
        self._prompt_tokens, self._predicted_tokens = _Buckets(TOKENS), _Buckets(TOKENS)
        self._ends = Counter(dict.fromkeys(_ENDS, 0))
        self._last: dict[str, float] = {}
        """When a running job's last token came, in milliseconds since its first."""

    def observe(self, event: Event) -> None:
        """Take an event of any job. Called for every token, so it does next to nothing there."""
        if isinstance(event, Token):
            now = event.timings.predicted_ms
            before = self._last.get(event.id)
            self._last[event.id] = now
            if before is not None:
                self._gap.add((now - before) / 1e3)
        elif isinstance(event, Finished | Failed | Cancelled):
            self._last.pop(event.id, None)
            self._end(event)

    def _end(self, event: Finished | Failed | Cancelled) -> None:
        match event:
            case Finished():
                self._ends[event.reason.value] += 1
                self._finished(event.timings)
            case Cancelled():
                self._ends["cancelled"] += 1
            case Failed():
                self._ends["failed"] += 1

    def _finished(self, timings: Timings) -> None:
        self._queue.add(timings.queue_ms / 1e3)
        self._prefill.add(timings.prompt_ms / 1e3)
        self._whole.add((timings.queue_ms + timings.prompt_ms + timings.predicted_ms) / 1e3)
        self._prompt_tokens.add(timings.cache_n + timings.prompt_n)
        self._predicted_tokens.add(timings.predicted_n)
        if timings.predicted_n:
            self._first_token.add((timings.queue_ms + timings.prompt_ms) / 1e3)
            self._decode.add(timings.predicted_ms / 1e3)
        if timings.predicted_n > 1:
            self._per_token.add(timings.predicted_ms / 1e3 / (timings.predicted_n - 1))

    def view(self) -> Measured:
        """A copy of it all."""
        return Measured(
            queue=self._queue.view(),
            prefill=self._prefill.view(),
            first_token=self._first_token.view(),
            gap=self._gap.view(),
            per_token=self._per_token.view(),
            decode=self._decode.view(),
            whole=self._whole.view(),
            prompt_tokens=self._prompt_tokens.view(),
            predicted_tokens=self._predicted_tokens.view(),
            ends=MappingProxyType(dict(self._ends)),
        )


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
