"""The route by which a client ends the reasoning of an answer that it reads: `POST /v1/chat/completions/control`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minka.protocols.body import decode_json
from minka.protocols.chat_control import NOT_INSIDE, control_object, decode_control, jobs_of, refusal
from minka.server.client import tenant_of
from minka.server.state import State
from minka.server.wire import JsonResponse, read_body


def routes(prefix: str) -> list[BaseRoute]:
    """The route, under both its names."""
    paths = ("/v1/chat/completions/control", "/chat/completions/control")
    return [Route(prefix + path, control, methods=["POST"]) for path in paths]


async def control(request: Request) -> Response:
    """Let the reasoning end with the running step."""
    id = decode_control(decode_json(await read_body(request)))
    state: State = request.app.state.minka
    engine = state.loaded.engine
    view = await asyncio.wrap_future(engine.view())
    jobs = [job for job in jobs_of(id, view.slots) if job.tenant == tenant_of(request)]
    if message := refusal(jobs):
        return JsonResponse(control_object(success=False, message=message))
    ended = await asyncio.gather(*(asyncio.wrap_future(engine.end_thinking(job.id)) for job in jobs))
    return JsonResponse(control_object(success=any(ended), message="" if any(ended) else NOT_INSIDE))
