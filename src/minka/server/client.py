"""Who asks, how long it may take, and whether the client is still there: for every route that has work to wait for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


def tenant_of(request: Request) -> str:
    """Whose request it is: a name made from its key, empty without keys."""
    tenant: str = request.scope.get("state", {}).get("tenant", "")
    return tenant


def within_limit(timeout_ms: int, request: Request) -> int:
    """A request's own time, -1 for none, within the server's limit."""
    limit: int = request.app.state.minka.params.request_timeout * 1000
    return min(limit, timeout_ms) if limit and timeout_ms >= 0 else limit or timeout_ms


async def gone(request: Request) -> None:
    """Return when the client has gone. Its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def reply_of(request: Request, order: Future[T]) -> T:
    """The engine's reply, however long it takes. A client that goes away takes its order back: ClientDisconnect."""
    reply = asyncio.wrap_future(order)
    left = asyncio.create_task(gone(request))
    try:
        either: list[asyncio.Future[T] | asyncio.Future[None]] = [reply, left]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientDisconnect
        return reply.result()
    finally:
        left.cancel()
        order.cancel()
