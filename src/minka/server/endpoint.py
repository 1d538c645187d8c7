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
from minka.errors import MinkaError, RequestError, UnavailableError
from minka.protocols.body import JsonObject, decode_json
from minka.protocols.exchange import Decode, Exchange, Lasting
from minka.protocols.served import Served
from minka.runtime import Runtime
from minka.server.client import gone, tenant_of, within_limit
from minka.server.streams import Key, Stream
from minka.server.tracing import trace_of
from minka.server.wire import JsonResponse, StreamResponse, read_body, request_id, wire_of
from minka.types import Cancelled, Event, Failed, Finished, Job, Started

Batches = AsyncGenerator[list[Event], None]
"""Events as they come; an empty batch after a time of silence."""

Chunks = AsyncGenerator[bytes, None]

CONVERSATION = "conversation"
RESPONSE = "response"
"""Kinds of lasting answers: named by the client's header, named by us."""

_MAX_NAME = 512
"""Characters of a conversation's id."""


async def complete(request: Request, runtime: Runtime, decode: Decode) -> Response:
    """Answer a completion request of any protocol. Raises MinkaError for what is found before the first token."""
    body = with_headers(decode_json(await read_body(request)), request.headers)
    exchange = await asyncio.to_thread(decode, body, served_for(request, runtime))
    if (key := _lasting_key(exchange, request)) is not None:
        return await _lasting(key, exchange, runtime, request)
    batches = _run(exchange, runtime, request, watched=True)
    if not exchange.stream:
        return JsonResponse(await _whole(exchange, batches))
    first = await _first(batches)
    return StreamResponse(_frames(exchange, first, batches, request))


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
    tenant, timeout = tenant_of(request), within_limit(job.timeout_ms, request)
    return replace(job, tenant=tenant, timeout_ms=timeout) if tenant or timeout != job.timeout_ms else job


async def _whole(exchange: Exchange, batches: Batches) -> object:
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                exchange.add(event)
    return exchange.whole()


async def _first(batches: Batches) -> list[Event]:
    """Wait for the first thing to tell, so that an error before it is a plain HTTP error."""
    first: list[Event] = []
    async for batch in batches:
        first += batch
        if not batch or not all(isinstance(event, Started) for event in batch):
            break
    return first


async def _frames(exchange: Exchange, first: list[Event], rest: Batches, request: Request) -> Chunks:
    """Chunks of the body: all frames of a step in one. An error after the start ends the stream with its frame."""
    wire = wire_of(request.scope)
    async with aclosing(rest):
        try:
            yield _encode(exchange, first) or wire.ping
            async for batch in rest:
                if not batch:
                    yield wire.ping
                elif chunk := _encode(exchange, batch):
                    yield chunk
            yield b"".join(exchange.last_frames())
        except MinkaError as error:
            told = b"".join(exchange.frames(Failed(exchange.jobs[0].id, error)))
            yield told or wire.error_frame(wire.error(error, request_id(request.scope)))


def _encode(exchange: Exchange, batch: list[Event]) -> bytes:
    return b"".join([frame for event in batch for frame in exchange.frames(event)])


async def _run(exchange: Exchange, runtime: Runtime, request: Request, *, watched: bool) -> Batches:
    """Submit the jobs and yield their events until all have ended. `watched`: they end when the client has gone.

    Raises the error of a job that fails, and ClientDisconnect. However it is left, no job stays in the engine.
    """
    open_ids = [job.id for job in exchange.jobs]
    mailbox = runtime.inbox.open(open_ids)
    watcher = asyncio.create_task(_watch(request, mailbox, open_ids[0])) if watched else None
    patience = exchange.ping_interval if exchange.stream and exchange.ping_interval > 0 else None
    spans = trace_of(request.scope, runtime.served.model.name, request_id(request.scope))
    try:
        for job in exchange.jobs:
            runtime.engine.submit(_of_client(job, request), runtime.inbox)
        while open_ids:
            batch = await mailbox.take(patience)
            told = list(takewhile(lambda event: not isinstance(event, Failed | Cancelled), batch))
            for event in told:
                if isinstance(event, Finished):
                    open_ids.remove(event.id)
                    if spans is not None:
                        spans.finished(event)
            if told or not batch:
                yield told
            if len(told) < len(batch):
                end = batch[len(told)]
                raise end.error if isinstance(end, Failed) else ClientDisconnect
    finally:
        if watcher is not None:
            watcher.cancel()
        runtime.inbox.close(job.id for job in exchange.jobs)
        for id in open_ids:
            runtime.engine.cancel(id)


async def _watch(request: Request, mailbox: Mailbox, id: str) -> None:
    """End the exchange as soon as the client has gone."""
    await gone(request)
    mailbox.put(Cancelled(id))


def served_for(request: Request, runtime: Runtime) -> Served:
    """What a protocol sees of the model and of what is kept, for this request's client."""
    return replace(runtime.served, responses=request.app.state.minka.responses.of(tenant_of(request)))


# -- answers that go on without their client ---------------------------------------------------------------------------


def _lasting_key(exchange: Exchange, request: Request) -> Key | None:
    """The name under which the answer can be found again, None for one that ends with its client."""
    if isinstance(exchange, Lasting) and exchange.background:
        return Key(tenant_of(request), RESPONSE, exchange.id)
    name = request.headers.get("x-conversation-id", "")
    if not name or not exchange.stream:
        return None
    if len(name) > _MAX_NAME:
        raise RequestError(
            f'header "x-conversation-id" has more than {_MAX_NAME} characters', param="x-conversation-id"
        )
    return Key(tenant_of(request), CONVERSATION, name)


async def _lasting(key: Key, exchange: Exchange, runtime: Runtime, request: Request) -> Response:
    """Start the work on its own, and answer from what it writes, or at once if the client wants no more."""
    streams = request.app.state.minka.streams
    batches = _run(exchange, runtime, request, watched=False)

    async def work(stream: Stream) -> None:
        try:
            if not exchange.stream:
                await _whole(exchange, batches)
                return
            first = await _first(batches)
            async with aclosing(_frames(exchange, first, batches, request)) as chunks:
                async for chunk in chunks:
                    stream.write(chunk)
        except ClientDisconnect:  # nobody watches the client, so it was the engine that stopped
            raise UnavailableError("the server is stopping") from None
        finally:
            await batches.aclose()

    def ended(error: MinkaError | None) -> None:
        if isinstance(exchange, Lasting):
            exchange.broken(error)

    stream = await streams.open(key)
    streams.start(stream, work, ended)
    if not exchange.stream:
        assert isinstance(exchange, Lasting), "only those need no client"
        return JsonResponse(exchange.accepted())
    try:
        await stream.opened
    except MinkaError:
        streams.forget(stream)
        raise
    return StreamResponse(read_while_there(stream, 0, request))


async def read_while_there(stream: Stream, start: int, request: Request) -> Chunks:
    """A stream's bytes for a client, until it goes away."""
    left = asyncio.Event()

    async def watch() -> None:
        await gone(request)
        left.set()
        stream.nudge()

    watcher = asyncio.create_task(watch())
    try:
        async with aclosing(stream.read(start, left)) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        watcher.cancel()
