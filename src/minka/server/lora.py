"""Routes of LoRA adapters: which are loaded, their factors, loading and unloading while requests are served."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.errors import ModelError, RequestError
from minka.protocols.body import decode_json
from minka.protocols.lora import adapter_object, adapters_object, decode_load, decode_scales, decode_unload
from minka.runtime import Runtime
from minka.server.wire import JsonResponse, read_body


def routes(prefix: str) -> list[BaseRoute]:
    """The routes."""
    return [
        Route(f"{prefix}/lora-adapters", adapters, methods=["GET"]),
        Route(f"{prefix}/lora-adapters", set_scales, methods=["POST"]),
        Route(f"{prefix}/lora-adapters/load", load, methods=["POST"]),
        Route(f"{prefix}/lora-adapters/unload", unload, methods=["POST"]),
    ]


def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.minka.loaded
    return runtime


async def adapters(request: Request) -> Response:
    """What is loaded."""
    return JsonResponse(adapters_object(_runtime(request).served))


async def set_scales(request: Request) -> Response:
    """Set the factors of requests that say nothing themselves, from now on."""
    raw, runtime = await read_body(request), _runtime(request)
    runtime.served = replace(runtime.served, adapters=decode_scales(raw, runtime.served.adapters))
    return JsonResponse({"success": True})


async def load(request: Request) -> Response:
    """Load a file; running requests wait meanwhile."""
    name, scale = decode_load(decode_json(await read_body(request)))
    runtime = _runtime(request)
    file = runtime.lora_files.find(name)
    try:
        adapter = await asyncio.wrap_future(runtime.engine.load_adapter(file, scale))
    except ModelError as error:
        raise RequestError(f'"path": {error}', param="path") from None
    runtime.served = replace(runtime.served, adapters=(*runtime.served.adapters, adapter))
    return JsonResponse(adapter_object(adapter))


async def unload(request: Request) -> Response:
    """Unload an adapter, as soon as no running request needs it. Requests that come later must not name it."""
    id, runtime = decode_unload(decode_json(await read_body(request))), _runtime(request)
    before = runtime.served.adapters
    runtime.served = replace(runtime.served, adapters=tuple(adapter for adapter in before if adapter.id != id))
    await asyncio.wrap_future(runtime.engine.unload_adapter(id))
    return JsonResponse({"success": True})
