"""The Vertex AI route: every instance goes through the whole application as a request of its own, all at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Scope

from minka.errors import MinkaError, UsageError
from minka.protocols.body import decode_json
from minka.protocols.exchange import encode, error_object
from minka.protocols.gcp import Instance, Vertex, decode_instances
from minka.server import about
from minka.server.client import gone
from minka.server.wire import JsonResponse, read_body

_OF_BODY = frozenset({b"content-length", b"content-encoding", b"transfer-encoding", b"x-conversation-id"})
"""Headers of the request that say nothing of its instances."""


def routes(vertex: Vertex, prefix: str, others: Sequence[BaseRoute]) -> list[BaseRoute]:
    """The routes; `others` are those that instances may ask. Raises UsageError if one of them has the path already."""
    paths = [route.path for route in others if isinstance(route, Route)]
    if prefix + vertex.predict in paths:
        raise UsageError(f"AIP_PREDICT_ROUTE {vertex.predict} is a route of the server already")
    posts = [route.path for route in others if isinstance(route, Route) and "POST" in (route.methods or ())]
    known = tuple(path.removeprefix(prefix) for path in posts if "{" not in path)
    made: list[BaseRoute] = [Route(prefix + vertex.predict, partial(predict, prefix, known), methods=["POST"])]
    if vertex.health and prefix + vertex.health not in paths:
        made.append(Route(prefix + vertex.health, about.health, methods=["GET"]))
    return made


async def predict(prefix: str, known: tuple[str, ...], request: Request) -> Response:
    """Answer all instances; one that fails has its error in its place."""
    instances = decode_instances(decode_json(await read_body(request)), known)
    left = asyncio.Event()
    watcher = asyncio.create_task(_watch(request, left))
    try:
        answers = await asyncio.gather(*(_answer(request, prefix, instance, left) for instance in instances))
    finally:
        watcher.cancel()
    return JsonResponse({"predictions": answers})


async def _watch(request: Request, left: asyncio.Event) -> None:
    await gone(request)
    left.set()


async def _answer(request: Request, prefix: str, instance: Instance | MinkaError, left: asyncio.Event) -> object:
    if isinstance(instance, MinkaError):
        return error_object(instance)
    body = encode(instance.body)
    said: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    heard = bytearray()

    async def receive() -> Message:
        if said:
            return said.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        heard.extend(message.get("body", b""))

    await request.app(_scope(request, prefix + instance.path, len(body)), receive, send)
    try:
        return json.loads(bytes(heard))
    except ValueError:
        return heard.decode("utf-8", "replace")  # a route whose answer is no JSON


def _scope(request: Request, path: str, size: int) -> Scope:
    """The request as one for another route: the same client with the same key."""
    headers = [(name, value) for name, value in request.scope["headers"] if name not in _OF_BODY]
    return {
        **{key: value for key, value in request.scope.items() if key not in ("path_params", "endpoint", "router")},
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(size).encode())],
        "state": {},
    }
