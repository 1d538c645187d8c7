"""Bodies on the wire: reading one within its limit, JSON answers, and streams of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minka.errors import MinkaError, QueueFullError, TooLargeError
from minka.protocols.exchange import OPENAI, Wire, encode


async def read_body(request: Request) -> bytes:
    """The request's body. Raises TooLargeError as soon as it is over the server's limit."""
    return b"".join([chunk async for chunk in bounded(request)])


async def bounded(request: Request) -> AsyncGenerator[bytes, None]:
    """The request's body as it comes. Raises TooLargeError as soon as it is over the server's limit."""
    limit: int = request.app.state.body_limit
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        yield chunk


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the request body is over the limit of {limit >> 20} MiB (--body-limit)")


class Spelled(bytes):
    """A header's name as llama-server spells it. uvicorn asks for small letters, and some clients compare by them."""

    def lower(self) -> Self:
        """Itself."""
        return self


class JsonResponse(Response):
    """A JSON value."""

    media_type = "application/json; charset=utf-8"

    def __init__(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode(value), status, headers)


def wire_of(scope: Scope) -> Wire:
    """How the API of a request's path speaks; what lies under a path speaks as it does."""
    path: str = scope["path"]
    wires: Sequence[tuple[str, Wire]] = scope["app"].state.wires
    return next((wire for own, wire in wires if path == own or path.startswith(own + "/")), OPENAI)


def request_id(scope: Scope) -> str:
    """The request's id, empty before it has one."""
    given: str = scope.get("state", {}).get("request_id", "")
    return given


def error_response(error: MinkaError, scope: Scope) -> JsonResponse:
    """An error with its status, in the shape of the API that was called."""
    wire, id = wire_of(scope), request_id(scope)
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, QueueFullError) else None
    return JsonResponse(wire.error(error, id), wire.status(error), headers)


class StreamResponse(Response):
    """Server-sent events. Chunks are sent as they come; the generator is closed however the sending ends."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        self.init_headers({"x-accel-buffering": "no", "cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
