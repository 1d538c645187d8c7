"""The application: routes and the doors in front of them. Serves 503 until a runtime is set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as HttpRoute
from starlette.staticfiles import StaticFiles

from minka.errors import UsageError
from minka.params import ServerParams
from minka.protocols.body import decode_json
from minka.protocols.exchange import OPENAI
from minka.protocols.gcp import Vertex
from minka.protocols.route import Completion, Computed, Embedding, Prefill, Route, discover
from minka.server import about, batches, control, docs, lora, responses, resume, thinking
from minka.server import vertex as predictions
from minka.server.auth import KeyDoor, load_keys
from minka.server.cors import CorsDoor
from minka.server.doors import ErrorDoor, ReadyDoor, http_error
from minka.server.embed import embed
from minka.server.endpoint import complete, served_for
from minka.server.state import State
from minka.server.unread import Unread
from minka.server.wire import JsonResponse, read_body

App = Starlette


def build_app(params: ServerParams, vertex: Vertex | None = None) -> App:
    """The ASGI application. Set `app.state.minka.runtime` when the model is loaded.

    `vertex`: it serves Google's predictions as well.
    Raises UsageError for a key file, a directory or a prefix that cannot be used.
    """
    prefix = params.api_prefix.rstrip("/")
    if prefix and not prefix.startswith("/"):
        raise UsageError(f"--api-prefix must start with a slash, but is {params.api_prefix!r}")
    unread = Unread()
    routes: list[BaseRoute] = [
        HttpRoute(prefix + path, partial(_serve, unread.watched(route)), methods=["POST"])
        for route in discover()
        for path in route.paths
    ]
    routes += about.routes(prefix)
    routes += control.routes(prefix, params)
    routes += docs.routes(prefix)
    routes += lora.routes(prefix)
    routes += thinking.routes(prefix)
    routes += resume.routes(prefix)
    routes += responses.routes(prefix)
    routes += batches.routes(prefix)
    if vertex is not None:
        routes += predictions.routes(vertex, prefix, routes)
    routes += _pages(prefix, params)
    pages = {prefix + path for path in docs.PATHS}
    health = {vertex.health} if vertex is not None and vertex.health else set()
    public = pages | {prefix + path for path in about.PUBLIC | health}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(CorsDoor, params=params),  # outermost, so that a page can read errors as well
            Middleware(ErrorDoor),
            Middleware(ReadyDoor, pages=pages),
            Middleware(KeyDoor, keys=load_keys(params), public=public),
        ],
        exception_handlers={404: http_error, 405: http_error},
    )
    app.router.redirect_slashes = False
    app.state.minka = State(params, responses=responses.open_store(params))
    app.state.body_limit = params.body_limit << 20
    app.state.batches = batches.make_worker(params)
    app.state.wires = [
        (prefix + path, route.wire)
        for route in discover()
        if isinstance(route, Completion | Computed) and route.wire is not OPENAI
        for path in route.paths
    ]
    return app


async def _serve(route: Route, request: Request) -> Response:
    runtime = request.app.state.minka.loaded
    match route:
        case Completion() | Prefill():
            return await complete(request, runtime, route.decode)
        case Embedding():
            return await embed(request, runtime, route.decode)
        case Computed():
            body = decode_json(await read_body(request))
            return JsonResponse(await asyncio.to_thread(route.answer, body, served_for(request, runtime)))


def _pages(prefix: str, params: ServerParams) -> Sequence[BaseRoute]:
    """What a browser gets at `/`: the user's own directory, our page, or nothing."""
    if not params.ui:
        return ()
    if params.path is None:
        return (HttpRoute(f"{prefix}/", docs.page, methods=["GET"]),)
    try:
        return (Mount(prefix or "/", StaticFiles(directory=params.path, html=True)),)
    except RuntimeError:
        raise UsageError(f"--path {params.path} is no directory") from None
