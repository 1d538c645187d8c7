"""Jobs as an asyncio task sees them: submit some, take their events in batches, and leave none behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from minka.engine.engine import Engine
from minka.engine.inbox import LoopInbox
from minka.types import Cancelled, Event, Failed, Finished, Job


async def follow(engine: Engine, inbox: LoopInbox, jobs: Sequence[Job]) -> AsyncGenerator[list[Event], None]:
    """Submit the jobs and yield their events, a list a step, until all have ended. `inbox` is the running loop's.

    Raises what `Engine.submit` raises, and the error of a job that fails. However it is left, no job stays in the
    engine.
    """
    running = {job.id for job in jobs}
    mailbox = inbox.open(running)
    try:
        for job in jobs:
            engine.submit(job, inbox)
        while running:
            events = await mailbox.take()
            for event in events:
                if isinstance(event, Failed):
                    running.discard(event.id)
                    raise event.error
                if isinstance(event, Finished | Cancelled):
                    running.discard(event.id)
            yield events
    finally:
        inbox.close(job.id for job in jobs)
        for id in running:
            engine.cancel(id)
