"""Routes of resumable streams, as llama-server has them: read one again, see which there are, stop one."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.errors import NotFoundError, RequestError
from minka.params import json_type
from minka.protocols.body import decode_json
from minka.server.client import tenant_of
from minka.server.endpoint import CONVERSATION, read_while_there
from minka.server.streams import Key, Stream, Streams
from minka.server.wire import JsonResponse, StreamResponse, read_body

MAX_LOOKUP = 1024
"""Ids in one lookup."""

_OFFSET = re.compile(r"[0-9]{1,15}")


def routes(prefix: str) -> list[BaseRoute]:
    """The routes."""
    return [
        Route(f"{prefix}/v1/stream", resume, methods=["GET"]),
        Route(f"{prefix}/v1/stream", stop, methods=["DELETE"]),
        Route(f"{prefix}/v1/streams/lookup", lookup, methods=["POST"]),
    ]


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.minka.streams
    return streams


def _key(request: Request) -> Key:
    name = request.query_params.get("conv_id", "")
    if not name:
        raise RequestError('"conv_id" is required', param="conv_id")
    return Key(tenant_of(request), CONVERSATION, name)


async def resume(request: Request) -> Response:
    """The bytes of a stream from byte `from` on, and what comes of it while the client waits."""
    key = _key(request)
    given = request.query_params.get("from", "0")
    if not _OFFSET.fullmatch(given):
        raise RequestError(f'"from" must be a number of bytes, but is {given[:40]!r}', param="from")
    stream = _streams(request).get(key)
    if stream is None:
        raise NotFoundError(f"there is no stream {key.name[:80]!r}", param="conv_id")
    stream.check(int(given))
    return StreamResponse(read_while_there(stream, int(given), request))


async def stop(request: Request) -> Response:
    """End a stream's generation and forget the stream; well even if there is none."""
    await _streams(request).drop(_key(request))
    return Response(status_code=204)


async def lookup(request: Request) -> Response:
    """What is known of the streams of some conversations."""
    ids = decode_json(await read_body(request)).get("conversation_ids")
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        raise RequestError(
            f'"conversation_ids" must be a list of strings, but is {json_type(ids)}', param="conversation_ids"
        )
    if len(ids) > MAX_LOOKUP:
        raise RequestError(f'"conversation_ids" has more than {MAX_LOOKUP} ids', param="conversation_ids")
    tenant, streams = tenant_of(request), _streams(request)
    found = {stream.key: stream for name in ids for stream in streams.named(tenant, CONVERSATION, name)}
    return JsonResponse([_told(stream) for stream in found.values()])


def _told(stream: Stream) -> dict[str, object]:
    return {
        "conversation_id": stream.key.name,
        "is_done": stream.done,
        "total_bytes": stream.total,
        "started_at": int(stream.started),
        "completed_at": int(stream.completed),
    }
