"""GET routes that tell of the server: health, models, props, slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.errors import NotSupportedError, UnavailableError
from minka.protocols.about import models_object, one_model_object, props_object, slots_object
from minka.protocols.tokenizer_info import tokenizer_object
from minka.server.state import State
from minka.server.wire import JsonResponse

PUBLIC = frozenset({"/health", "/v1/health"})
"""Paths that need no key."""


def routes(prefix: str) -> list[BaseRoute]:
    """The routes, each under all its names."""
    table: dict[tuple[str, ...], tuple[str, Callable[[Request], Awaitable[Response]]]] = {
        ("/health", "/v1/health"): ("GET", health),
        ("/v1/models", "/models"): ("GET", models),
        ("/v1/models/{name:path}",): ("GET", one_model),
        ("/props",): ("GET", props),
        ("/slots",): ("GET", slots),
        ("/tokenizer_info",): ("GET", tokenizer),
    }
    found: list[BaseRoute] = [
        Route(prefix + path, endpoint, methods=[method])
        for paths, (method, endpoint) in table.items()
        for path in paths
    ]
    return [*found, Route(f"{prefix}/props", set_props, methods=["POST"])]


def _state(request: Request) -> State:
    state: State = request.app.state.minka
    return state


async def health(request: Request) -> Response:
    """The server is up, its model loaded, and the engine works; before that, a door in front answers 503."""
    _state(request).loaded.engine.check_alive()
    return JsonResponse({"status": "ok"})


async def models(request: Request) -> Response:
    """The list of models."""
    return JsonResponse(models_object(_state(request).loaded.served))


async def one_model(request: Request) -> Response:
    """One model by name."""
    return JsonResponse(one_model_object(_state(request).loaded.served, request.path_params["name"]))


async def props(request: Request) -> Response:
    """Properties of server and model."""
    state = _state(request)
    return JsonResponse(await asyncio.to_thread(props_object, state.loaded.served, state.params))


async def tokenizer(request: Request) -> Response:
    """The tokenizer, for clients that have none of their own."""
    return JsonResponse(await asyncio.to_thread(tokenizer_object, _state(request).loaded.served))


async def set_props(request: Request) -> Response:
    """llama-server's placeholder: it accepts everything and changes nothing."""
    if not _state(request).params.props:
        raise NotSupportedError("This server does not support changing global properties. Start it with `--props`")
    return JsonResponse({"success": True})


async def slots(request: Request) -> Response:
    """The state of every slot."""
    state = _state(request)
    if not state.params.slots:
        raise NotSupportedError("This server does not support slots endpoint. Start it with `--slots`")
    view = await asyncio.wrap_future(state.loaded.engine.view())
    if request.query_params.get("fail_on_no_slot") and all(slot.busy for slot in view.slots):
        raise UnavailableError("no slot available")
    return JsonResponse(slots_object(view.slots, state.loaded.served))
