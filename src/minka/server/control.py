"""Routes that look into the engine and act on it: the prefix cache, slots to and from files, metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.engine.control import SlotState
from minka.errors import MinkaError, NativeError, NotFoundError, NotSupportedError, RequestError, UsageError
from minka.native import slot_file
from minka.params import ServerParams
from minka.protocols.body import decode_json
from minka.protocols.cache import cache_object
from minka.protocols.metrics import MEDIA_TYPE, Scrape, metrics_text
from minka.protocols.slot_files import (
    decode_action,
    decode_filename,
    decode_salt,
    decode_slot,
    erased_object,
    restored_object,
    saved_object,
)
from minka.server.client import reply_of
from minka.server.state import State
from minka.server.wire import JsonResponse, Spelled, read_body


def routes(prefix: str, params: ServerParams) -> list[BaseRoute]:
    """The routes. Raises UsageError if slots cannot be saved where they should be."""
    if params.slot_save_path is not None and not Path(params.slot_save_path).is_dir():
        raise UsageError(f"--slot-save-path {params.slot_save_path} is no directory")
    return [
        Route(f"{prefix}/cache", cache, methods=["GET"]),
        Route(f"{prefix}/cache", clear, methods=["DELETE"]),
        Route(f"{prefix}/cache/pins/{{name}}", unpin, methods=["DELETE"]),
        Route(f"{prefix}/slots/{{id_slot}}", slot, methods=["POST"]),
        Route(f"{prefix}/metrics", metrics, methods=["GET"]),
    ]


def _state(request: Request) -> State:
    state: State = request.app.state.minka
    return state


# -- cache -------------------------------------------------------------------------------------------------------------


async def cache(request: Request) -> Response:
    """What every tier holds."""
    engine = _state(request).loaded.engine
    engine.require_cache()
    return JsonResponse(cache_object(await asyncio.wrap_future(engine.cache())))


async def clear(request: Request) -> Response:
    """Drop everything that is not pinned."""
    return JsonResponse({"n_dropped": await asyncio.wrap_future(_state(request).loaded.engine.clear_cache())})


async def unpin(request: Request) -> Response:
    """Let go of a pin."""
    name = request.path_params["name"]
    if not await asyncio.wrap_future(_state(request).loaded.engine.unpin(name)):
        raise NotFoundError(f"nothing is pinned under the name {name!r}", param="name")
    return JsonResponse({"success": True})


# -- slots -------------------------------------------------------------------------------------------------------------


async def slot(request: Request) -> Response:
    """Save, restore or erase a slot, as soon as it is free."""
    directory = _state(request).params.slot_save_path
    if directory is None:
        raise NotSupportedError("This server does not support slots action. Start it with `--slot-save-path`")
    id_slot = decode_slot(request.path_params["id_slot"])
    match decode_action(request.query_params.get("action")):
        case "save":
            return await _save(request, id_slot, Path(directory))
        case "restore":
            return await _restore(request, id_slot, Path(directory))
        case _:
            return await _erase(request, id_slot)


async def _save(request: Request, id_slot: int, directory: Path) -> Response:
    name = decode_filename(decode_json(await read_body(request)))
    saved = await reply_of(request, _state(request).loaded.engine.save_slot(id_slot))
    began = perf_counter()
    try:
        size = await asyncio.to_thread(slot_file.write, directory / name, saved.tokens, saved.state)
    except OSError as error:
        raise MinkaError(f"Unable to save slot: {error.strerror}") from error
    return JsonResponse(saved_object(id_slot, name, len(saved.tokens), size, _milliseconds(began)))


async def _restore(request: Request, id_slot: int, directory: Path) -> Response:
    body = decode_json(await read_body(request))
    name, salt, runtime = decode_filename(body), decode_salt(body), _state(request).loaded
    began = perf_counter()
    try:
        file = await asyncio.to_thread(slot_file.read, directory / name, runtime.served.n_ctx)
    except NativeError as error:
        raise RequestError(f"Unable to restore slot: {error}", param="filename") from None
    await reply_of(request, runtime.engine.restore_slot(id_slot, SlotState(file.tokens, file.state), salt))
    return JsonResponse(restored_object(id_slot, name, len(file.tokens), file.n_bytes, _milliseconds(began)))


async def _erase(request: Request, id_slot: int) -> Response:
    await read_body(request)
    return JsonResponse(
        erased_object(id_slot, await reply_of(request, _state(request).loaded.engine.erase_slot(id_slot)))
    )


def _milliseconds(began: float) -> float:
    return (perf_counter() - began) * 1e3


# -- metrics -----------------------------------------------------------------------------------------------------------


async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    state = _state(request)
    if not state.params.metrics:
        raise NotSupportedError("This server does not support metrics endpoint. Start it with `--metrics`")
    engine = state.loaded.engine
    view, tiers = await asyncio.gather(asyncio.wrap_future(engine.view()), asyncio.wrap_future(engine.cache()))
    served = state.loaded.served
    text = metrics_text(Scrape(view, tiers, state.scraped, engine.measured(), served.model.name))
    state.scraped = view.counters
    response = Response(text, media_type=MEDIA_TYPE)
    response.raw_headers.append((Spelled(b"Process-Start-Time-Unix"), str(state.started).encode()))
    return response
