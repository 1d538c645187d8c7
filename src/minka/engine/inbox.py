"""Where events arrive: for a thread that iterates, and for an asyncio loop with many jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from minka.types import Event


class ThreadInbox:
    """Events of one job for a plain thread."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()

    def deliver(self, events: Sequence[Event]) -> None:
        """Called by the engine."""
        for event in events:
            self._events.put(event)

    def get(self) -> Event:
        """The next event; waits for it."""
        return self._events.get()


class Mailbox:
    """Events of some jobs for one task of an asyncio loop, taken in batches. Used from that loop only."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the task that waits."""
        self._events.append(event)
        self._wake()

    async def take(self, patience: float | None = None) -> list[Event]:
        """All events so far; waits for the first one. An empty list after `patience` seconds without any."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(patience, self._wake) if patience else None
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        events, self._events = self._events, []
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LoopInbox:
    """Events of all jobs of an asyncio loop: one wake-up of the loop a step, then each job's mailbox."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._mailboxes: dict[str, Mailbox] = {}

    def deliver(self, events: Sequence[Event]) -> None:
        """Called by the engine, from its thread. A loop that is closed needs no events any more."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._spread, events)

    def _spread(self, events: Sequence[Event]) -> None:
        for event in events:
            if mailbox := self._mailboxes.get(event.id):
                mailbox.put(event)

    def open(self, ids: Iterable[str]) -> Mailbox:
        """A mailbox for the events of these jobs."""
        mailbox = Mailbox()
        self._mailboxes.update(dict.fromkeys(ids, mailbox))
        return mailbox

    def close(self, ids: Iterable[str]) -> None:
        """Forget these jobs; their further events are dropped."""
        for id in ids:
            self._mailboxes.pop(id, None)
