"""Events of one step, collected by inbox, so that each inbox is woken once a step however many jobs it has."""

from __future__ import annotations

from collections.abc import Callable

from minka.types import Cancelled, Event, Failed, Finished, Inbox


class Outbox:
    """Collects events and delivers them on `send`.

    `on_end` is called with the id of each job that ended, `observe` with each event.
    """

    def __init__(self, on_end: Callable[[str], None], observe: Callable[[Event], None] | None = None) -> None:
        self._on_end, self._observe = on_end, observe
        self._events: dict[int, tuple[Inbox, list[Event]]] = {}

    def put(self, inbox: Inbox, event: Event) -> None:
        """Add an event for an inbox."""
        self._events.setdefault(id(inbox), (inbox, []))[1].append(event)
        if self._observe is not None:
            self._observe(event)
        if isinstance(event, Finished | Failed | Cancelled):
            self._on_end(event.id)

    def send(self) -> None:
        """Deliver what was collected."""
        ready, self._events = self._events, {}
        for inbox, events in ready.values():
            inbox.deliver(events)
