"""Routes of kept responses: read one, follow one that is made, see what it was made from, stop it, forget it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.errors import NotFoundError, RequestError, UsageError
from minka.params import ServerParams
from minka.protocols.responses_store import FILE, Kept, ResponseStore, Shelf
from minka.server.client import tenant_of
from minka.server.endpoint import RESPONSE, read_while_there
from minka.server.streams import Key, Streams
from minka.server.wire import JsonResponse, StreamResponse

MAX_PAGE = 100
"""Items in one answer of a list."""

_NUMBER = re.compile(r"[0-9]{1,15}")


def routes(prefix: str) -> list[BaseRoute]:
    """The routes, each under both of its names."""
    return [
        route
        for path in (f"{prefix}/v1/responses/{{id}}", f"{prefix}/responses/{{id}}")
        for route in (
            Route(path, get, methods=["GET"]),
            Route(path, delete, methods=["DELETE"]),
            Route(path + "/input_items", input_items, methods=["GET"]),
            Route(path + "/cancel", cancel, methods=["POST"]),
        )
    ]


def open_store(params: ServerParams) -> ResponseStore:
    """The store in --data-dir, or one in memory. Raises UsageError for a directory that cannot be used."""
    if not params.data_dir:
        return ResponseStore()
    directory = Path(params.data_dir).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot use --data-dir {directory}: {error.strerror}") from None
    return ResponseStore(directory / FILE)


def _shelf(request: Request) -> Shelf:
    store: ResponseStore = request.app.state.minka.responses
    return store.of(tenant_of(request))


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.minka.streams
    return streams


def _key(request: Request) -> Key:
    return Key(tenant_of(request), RESPONSE, request.path_params["id"])


def _missing(request: Request) -> NotFoundError:
    return NotFoundError(f"Response with id {request.path_params['id'][:80]!r} not found.", param="response_id")


async def _kept(request: Request) -> Kept:
    kept = await asyncio.to_thread(_shelf(request).get, request.path_params["id"])
    if kept is None:
        raise _missing(request)
    return kept


async def get(request: Request) -> Response:
    """A response as it is now, or with `stream=true` the events of one that is made in the background."""
    kept = await _kept(request)
    if request.query_params.get("stream") not in ("true", "1"):
        return JsonResponse(kept.body)
    after = request.query_params.get("starting_after", "")
    if after and not _NUMBER.fullmatch(after):
        raise RequestError("starting_after must be the number of an event", param="starting_after")
    stream = _streams(request).get(_key(request))
    if stream is None or not stream.total:
        raise RequestError(
            "only a response that was created with background and stream can be streamed, and for some minutes after "
            "its end",
            param="stream",
        )
    if stream.lost:
        raise RequestError("the first events of this response are not kept any more", param="starting_after")
    chunks = read_while_there(stream, 0, request)
    return StreamResponse(_after(chunks, int(after)) if after else chunks)


async def _after(chunks: AsyncGenerator[bytes, None], number: int) -> AsyncGenerator[bytes, None]:
    """Without the events up to that number."""
    async with aclosing(chunks):
        async for chunk in chunks:
            frames = [frame for frame in chunk.split(b"\n\n") if frame]
            kept = [frame + b"\n\n" for frame in frames if _number(frame) > number]
            if kept:
                yield b"".join(kept)


def _number(frame: bytes) -> int:
    """The number of an event; signs of life have none and count as past."""
    _, _, data = frame.partition(b"data: ")
    value = json.loads(data) if data else {}
    number = value.get("sequence_number", -1)
    assert isinstance(number, int), "made by the protocol"
    return number


async def delete(request: Request) -> Response:
    """Forget a response; one that is made is stopped."""
    id = request.path_params["id"]
    await _streams(request).drop(_key(request))
    if not await asyncio.to_thread(_shelf(request).delete, id):
        raise _missing(request)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


async def cancel(request: Request) -> Response:
    """Stop a response that is made in the background; one that has ended stays as it is."""
    kept = await _kept(request)
    if not kept.body.get("background"):
        raise RequestError("only a response that was created with background can be cancelled", param="response_id")
    if (stream := _streams(request).get(_key(request))) is not None:
        await stream.stop()
    return JsonResponse((await _kept(request)).body)


async def input_items(request: Request) -> Response:
    """The items of a response's request, the newest first unless `order=asc`."""
    kept = await _kept(request)
    query = request.query_params
    order, limit = query.get("order", "desc"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise RequestError('order must be "asc" or "desc"', param="order")
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_PAGE:
        raise RequestError(f"limit must be a number from 1 to {MAX_PAGE}", param="limit")
    items = list(kept.input) if order == "asc" else list(kept.input)[::-1]
    if after := query.get("after"):
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise RequestError("after names no item of this response", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return JsonResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0].get("id") if page else None,
            "last_id": page[-1].get("id") if page else None,
            "has_more": len(items) > len(page),
        }
    )
