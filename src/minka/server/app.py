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
from minka.protocols.route import Completion, Computed, Prefill, Route, discover
from minka.server import about, control, docs
from minka.server.auth import KeyDoor, load_keys
from minka.server.cors import CorsDoor
from minka.server.doors import ErrorDoor, ReadyDoor, http_error
from minka.server.endpoint import complete
from minka.server.state import State
from minka.server.wire import JsonResponse, read_body

App = Starlette


def build_app(params: ServerParams) -> App:
    """The ASGI application. Set `app.state.minka.runtime` when the model is loaded.

    Raises UsageError for a key file, a directory or a prefix that cannot be used.
    """
    prefix = params.api_prefix.rstrip("/")
    if prefix and not prefix.startswith("/"):
        raise UsageError(f"--api-prefix must start with a slash, but is {params.api_prefix!r}")
    routes: list[BaseRoute] = [
        HttpRoute(prefix + path, partial(_serve, route), methods=["POST"])
        for route in discover()
        for path in route.paths
    ]
    routes += about.routes(prefix)
    routes += control.routes(prefix, params)
    routes += docs.routes(prefix)
    routes += _pages(prefix, params)
    pages = {prefix + path for path in docs.PATHS}
    public = pages | {prefix + path for path in about.PUBLIC}
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
    app.state.minka = State(params)
    app.state.body_limit = params.body_limit << 20
    return app


async def _serve(route: Route, request: Request) -> Response:
    runtime = request.app.state.minka.loaded
    match route:
        case Completion() | Prefill():
            return await complete(request, runtime, route.decode)
        case Computed():
            body = decode_json(await read_body(request))
            return JsonResponse(await asyncio.to_thread(route.answer, body, runtime.served))


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
