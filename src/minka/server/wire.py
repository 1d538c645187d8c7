"""Bodies on the wire: reading one within its limit, JSON answers, and streams of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minka.errors import MinkaError, QueueFullError, TooLargeError
from minka.protocols.exchange import encode, error_object


async def read_body(request: Request) -> bytes:
    """The request's body. Raises TooLargeError as soon as it is over the server's limit."""
    limit: int = request.app.state.body_limit
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the request body is over the limit of {limit >> 20} MiB (--body-limit)")


class JsonResponse(Response):
    """A JSON value."""

    media_type = "application/json; charset=utf-8"

    def __init__(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode(value), status, headers)


def error_response(error: MinkaError) -> JsonResponse:
    """An error with its status."""
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, QueueFullError) else None
    return JsonResponse(error_object(error), error.status, headers)


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
