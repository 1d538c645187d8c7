"""The one asynchronous path that every completion API takes: decode, submit, answer, whole or as a stream.

Crossing 1 is `engine.submit`; crossing 2 the inbox, which wakes the event loop once a step for all streams together.
Knows no protocol and no model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import takewhile

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from minka.engine.inbox import Mailbox
from minka.errors import MinkaError, RequestError
from minka.protocols.body import JsonObject, decode_json
from minka.protocols.exchange import PING, Decode, Exchange, error_object, frame
from minka.runtime import Runtime
from minka.server.wire import JsonResponse, StreamResponse, read_body
from minka.types import Cancelled, Event, Failed, Finished, Job, Started

Batches = AsyncGenerator[list[Event], None]
"""Events as they come; an empty batch after a time of silence."""


async def complete(request: Request, runtime: Runtime, decode: Decode) -> Response:
    """Answer a completion request of any protocol. Raises MinkaError for what is found before the first token."""
    body = with_headers(decode_json(await read_body(request)), request.headers)
    exchange = await asyncio.to_thread(decode, body, runtime.served)
    batches = _run(exchange, runtime, request)
    return await (_stream if exchange.stream else _whole)(exchange, batches)


def with_headers(body: JsonObject, headers: Headers) -> JsonObject:
    """The body with what may be said in headers too: `x-priority` (-1, 0, 1) and `x-request-timeout` (seconds)."""
    said: dict[str, object] = {}
    for name, field, scale in (("x-priority", "priority", 1), ("x-request-timeout", "timeout_ms", 1000)):
        if (text := headers.get(name)) is not None and body.get(field) is None:
            try:
                said[field] = round(float(text) * scale)
            except (ValueError, OverflowError):
                raise RequestError(f'header "{name}" must be a number, but is {text!r}', param=name) from None
    return {**body, **said} if said else body


def _of_client(job: Job, request: Request) -> Job:
    """The job with whose turn it takes, and within the server's time limit."""
    limit = request.app.state.minka.params.request_timeout * 1000
    tenant = request.scope.get("state", {}).get("tenant", "")
    timeout = min(limit, job.timeout_ms) if limit and job.timeout_ms >= 0 else limit or job.timeout_ms
    return replace(job, tenant=tenant, timeout_ms=timeout) if tenant or timeout != job.timeout_ms else job


async def _whole(exchange: Exchange, batches: Batches) -> Response:
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                exchange.add(event)
    return JsonResponse(exchange.whole())


async def _stream(exchange: Exchange, batches: Batches) -> Response:
    """Wait for the first thing to tell, so that an error before it is a plain HTTP error; then start to stream."""
    first: list[Event] = []
    async for batch in batches:
        first += batch
        if not batch or not all(isinstance(event, Started) for event in batch):
            break
    return StreamResponse(_frames(exchange, first, batches))


async def _frames(exchange: Exchange, first: list[Event], rest: Batches) -> AsyncGenerator[bytes, None]:
    """Chunks of the body: all frames of a step in one. An error after the start ends the stream with its frame."""
    async with aclosing(rest):
        try:
            yield _encode(exchange, first) or PING
            async for batch in rest:
                if chunk := _encode(exchange, batch):
                    yield chunk
            yield b"".join(exchange.last_frames())
        except MinkaError as error:
            yield frame(error_object(error))


def _encode(exchange: Exchange, batch: list[Event]) -> bytes:
    return b"".join([frame for event in batch for frame in exchange.frames(event)]) if batch else PING


async def _run(exchange: Exchange, runtime: Runtime, request: Request) -> Batches:
    """Submit the jobs and yield their events until all have ended.

    Raises the error of a job that fails, and ClientDisconnect. However it is left, no job stays in the engine.
    """
    open_ids = [job.id for job in exchange.jobs]
    mailbox = runtime.inbox.open(open_ids)
    watcher = asyncio.create_task(_watch(request, mailbox, open_ids[0]))
    patience = exchange.ping_interval if exchange.stream and exchange.ping_interval > 0 else None
    try:
        for job in exchange.jobs:
            runtime.engine.submit(_of_client(job, request), runtime.inbox)
        while open_ids:
            batch = await mailbox.take(patience)
            told = list(takewhile(lambda event: not isinstance(event, Failed | Cancelled), batch))
            for event in told:
                if isinstance(event, Finished):
                    open_ids.remove(event.id)
            if told or not batch:
                yield told
            if len(told) < len(batch):
                end = batch[len(told)]
                raise end.error if isinstance(end, Failed) else ClientDisconnect
    finally:
        watcher.cancel()
        runtime.inbox.close(job.id for job in exchange.jobs)
        for id in open_ids:
            runtime.engine.cancel(id)


async def _watch(request: Request, mailbox: Mailbox, id: str) -> None:
    """End the exchange as soon as the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    mailbox.put(Cancelled(id))
