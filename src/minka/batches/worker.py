"""The worker of a server: takes batches one after the other, the oldest first, and brings each to its end.

It can be stopped or killed at any moment: what has a result is not done again, the rest goes on at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from minka.batches.execute import execute
from minka.batches.lines import Line, Result, check_file, parse_line, read_lines, unanswered
from minka.batches.store import Store
from minka.errors import NotFoundError, RequestError, UnavailableError
from minka.protocols.batches import OPEN, BatchFacts, Problem
from minka.runtime import Runtime

log = logging.getLogger("minka.batches")

RETRY = 10.0
"""Seconds after which a batch is tried again that could not go on because of the disk."""


class Worker:
    """Works on the batches of a store, from one asyncio loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._news = asyncio.Event()
        """Set when a batch came or is to be cancelled."""
        self._task: asyncio.Task[None] | None = None

    def start(self, runtime: Runtime) -> None:
        """Begin to work in the running loop, if it has not begun yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(runtime))

    async def stop(self) -> None:
        """Stop where it is, and let go of the store."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.store.close()

    def notice(self) -> None:
        """There is something new in the store."""
        self._news.set()

    def cancel(self, id: str, tenant: str = "") -> BatchFacts:
        """Cancel a batch; what it has by now is kept. Raises NotFoundError, and RequestError if it has ended."""

        def cancelling(facts: BatchFacts) -> BatchFacts:
            if facts.status not in OPEN:
                raise RequestError(f"a batch that is {facts.status} cannot be cancelled", param="batch_id")
            return replace(facts, status="cancelling", cancelling_at=facts.cancelling_at or int(time.time()))

        return self.store.change(self.store.batch(id, tenant), cancelling)

    async def _work(self, runtime: Runtime) -> None:
        while True:
            self._news.clear()
            try:
                batch = await asyncio.to_thread(self._next)
                if batch is None:
                    await self._news.wait()
                else:
                    await self._bring_on(batch, runtime)
            except UnavailableError:
                return  # the engine stops: the rest is for the next start
            except (OSError, sqlite3.Error):
                log.exception("a batch cannot go on; it is tried again in %d s", RETRY)
                await asyncio.sleep(RETRY)

    def _next(self) -> BatchFacts | None:
        """The batch to work on now: one that is to be cancelled, else the oldest."""
        waiting = self.store.unfinished()
        return next((batch for batch in waiting if batch.status == "cancelling"), waiting[0] if waiting else None)

    async def _bring_on(self, batch: BatchFacts, runtime: Runtime) -> None:
        """Bring a batch to its next state. A bug that is in its way is the end of this batch alone."""
        try:
            facts = await self._next_state(batch, runtime)
        except (UnavailableError, OSError, sqlite3.Error):
            raise
        except Exception:
            log.exception("%s cannot go on", batch.id)
            facts = await asyncio.to_thread(self._give_up, batch)
        log.info(
            "%s is %s: %d done, %d failed, of %d", facts.id, facts.status, facts.completed, facts.failed, facts.total
        )

    async def _next_state(self, batch: BatchFacts, runtime: Runtime) -> BatchFacts:
        match batch.status:
            case "validating":
                return await asyncio.to_thread(self._validate, batch)
            case "in_progress":
                return await self._run(batch, runtime)
            case "finalizing":
                return await asyncio.to_thread(self.store.finish, batch, "completed")
            case _:
                return await asyncio.to_thread(self.store.finish, batch, "cancelled")

    def _give_up(self, batch: BatchFacts) -> BatchFacts:
        """End a batch with what it has."""
        told = Problem("server_error", "internal error of the server; its log has the details")

        def failed(facts: BatchFacts) -> BatchFacts:
            return replace(facts, problems=(told,), status="failed", failed_at=int(time.time()))

        changed = self.store.change(batch, failed)
        return self.store.finish(batch, "failed") if batch.status == "in_progress" else changed

    def _validate(self, batch: BatchFacts) -> BatchFacts:
        try:
            n_lines, problems = check_file(self._input(batch), (batch.endpoint,))
        except NotFoundError as error:
            n_lines, problems = 0, [Problem("file_not_found", error.message, param="input_file_id")]
        now = int(time.time())

        def checked(facts: BatchFacts) -> BatchFacts:
            if facts.status != "validating":
                return facts
            if problems:
                return replace(facts, status="failed", failed_at=now, problems=tuple(problems))
            return replace(facts, status="in_progress", in_progress_at=now, total=n_lines)

        return self.store.change(batch, checked)

    def _input(self, batch: BatchFacts) -> Path:
        return self.store.path(batch.input_file_id, batch.tenant)

    async def _run(self, batch: BatchFacts, runtime: Runtime) -> BatchFacts:
        """Work on the lines that have no result, until there are none, or the batch is cancelled or out of time."""
        running = asyncio.create_task(self._compute(batch, runtime))
        try:
            while not await self._interrupted(running, batch.expires_at):
                self._news.clear()
                facts = await asyncio.to_thread(self.store.batch, batch.id, batch.tenant)
                if facts.status != "in_progress":
                    return facts
        finally:
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled():
            running.result()
            return await asyncio.to_thread(self.store.change, batch, _finalizing)
        return await asyncio.to_thread(self._expire, batch)

    async def _interrupted(self, running: asyncio.Task[None], until: float) -> bool:
        """Wait for news. True if the work has ended, or its time has."""
        news = asyncio.create_task(self._news.wait())
        left = max(0.0, until - time.time())
        try:
            await asyncio.wait({running, news}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        return running.done() or time.time() >= until

    async def _compute(self, batch: BatchFacts, runtime: Runtime) -> None:
        # A slot stays free, so that a batch makes no client wait.
        n_parallel = max(1, runtime.served.n_slots - 1)
        done = await asyncio.to_thread(self.store.done, batch.id)
        async with aclosing(execute(self._lines(batch, done), runtime, n_parallel)) as steps:
            async for results in steps:
                saving = asyncio.ensure_future(asyncio.to_thread(self.store.save, batch.id, results))
                try:
                    await asyncio.shield(saving)
                finally:
                    await asyncio.wait([saving])  # nothing may be written behind the end of a batch

    def _lines(self, batch: BatchFacts, done: frozenset[int]) -> Iterator[Line]:
        for number, raw in read_lines(self._input(batch)):
            if number not in done:
                yield parse_line(number, raw, (batch.endpoint,))

    def _expire(self, batch: BatchFacts) -> BatchFacts:
        """End a batch whose time is over: its other lines are in the error file."""
        done = self.store.done(batch.id)
        message = "This request could not be executed before the completion window expired."
        late: list[Result] = [
            unanswered(number, raw, "batch_expired", message)
            for number, raw in read_lines(self._input(batch))
            if number not in done
        ]
        self.store.save(batch.id, late)
        return self.store.finish(batch, "expired" if late else "completed")


def _finalizing(facts: BatchFacts) -> BatchFacts:
    if facts.status != "in_progress":
        return facts
    return replace(facts, status="finalizing", finalizing_at=int(time.time()))
