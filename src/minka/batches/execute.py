"""Requests of a batch at work on an engine: each through the decode path of its route, a bounded number at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from uuid import uuid4

from minka.batches.lines import Line, Result, answered
from minka.engine.follow import follow
from minka.errors import MinkaError, QueueFullError, RequestError, UnavailableError
from minka.protocols.exchange import OPENAI, Exchange
from minka.protocols.route import Completion, Embedding, discover
from minka.runtime import Runtime
from minka.types import Cancelled, Priority

log = logging.getLogger("minka.batches")

TENANT = "batch"
"""Whose turn the jobs of all batches take in the queue."""


@cache
def endpoints() -> Mapping[str, Completion | Embedding]:
    """The routes that a batch may use, by path: those under /v1/ that the engine works on."""
    return MappingProxyType(
        {
            path: route
            for route in discover()
            if isinstance(route, Completion | Embedding)
            for path in route.paths
            if path.startswith("/v1/")
        }
    )


async def execute(lines: Iterable[Line], runtime: Runtime, n_parallel: int) -> AsyncGenerator[list[Result], None]:
    """Work on the lines, `n_parallel` at a time, and yield results as they come, in any order.

    However it is left, no job stays in the engine. Raises UnavailableError when the engine stops: the lines that have
    no result by then have not failed.
    """
    tasks: set[asyncio.Task[Result]] = set()
    try:
        for line in lines:
            tasks.add(asyncio.create_task(_answer(line, runtime)))
            if len(tasks) >= n_parallel:
                yield await _some(tasks)
        while tasks:
            yield await _some(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _some(tasks: set[asyncio.Task[Result]]) -> list[Result]:
    """Wait for some of the tasks and take out those that are done, all of them or, if one raises that, none."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    results = [task.result() for task in done]
    tasks -= done
    return results


async def _answer(line: Line, runtime: Runtime) -> Result:
    """Work on one line. Its errors are its result, but for those that say nothing about it."""
    route, request_id = endpoints()[line.url], uuid4().hex
    wire = route.wire if isinstance(route, Completion) else OPENAI
    while True:
        try:
            match route:
                case Completion():
                    body = await _whole(line, route, runtime)
                case Embedding():
                    body = await _embedded(line, route, runtime)
        except QueueFullError as error:
            await asyncio.sleep(error.retry_after)  # others fill the queue; a batch has time
        except UnavailableError:
            raise
        except MinkaError as error:
            return answered(line, wire.status(error), request_id, wire.error(error, request_id))
        except Exception:
            log.exception("line %d of a batch failed", line.number, extra={"request_id": request_id})
            bug = MinkaError("internal error of the server; its log has the details")
            return answered(line, wire.status(bug), request_id, wire.error(bug, request_id))
        else:
            return answered(line, 200, request_id, body)


async def _whole(line: Line, route: Completion, runtime: Runtime) -> object:
    exchange = await asyncio.to_thread(_decode, line, route, runtime)
    jobs = [replace(job, priority=Priority.LOW, tenant=TENANT) for job in exchange.jobs]
    async with aclosing(follow(runtime.engine, runtime.inbox, jobs)) as steps:
        async for events in steps:
            for event in events:
                if isinstance(event, Cancelled):
                    raise UnavailableError("the job was cancelled")
                exchange.add(event)
    return exchange.whole()


def _decode(line: Line, route: Completion, runtime: Runtime) -> Exchange:
    if line.body.get("stream"):
        raise RequestError('"stream" cannot be used in a batch', param="stream")
    return route.decode(line.body, runtime.served)


async def _embedded(line: Line, route: Embedding, runtime: Runtime) -> object:
    texts = await asyncio.to_thread(route.decode, line.body, runtime.served)
    job = replace(texts.job, priority=Priority.LOW, tenant=TENANT)
    vectors = await asyncio.wrap_future(runtime.engine.embed(job))
    return await asyncio.to_thread(texts.answer, vectors)
