"""Doors that every request passes: errors become JSON, each request gets an id and a log line, 503 while loading."""

from __future__ import annotations

import logging
import re
from asyncio import CancelledError
from collections.abc import Collection
from difflib import get_close_matches
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minka.errors import MethodError, MinkaError, NotFoundError, UnavailableError
from minka.logs import REQUEST_ID
from minka.server.state import State
from minka.server.wire import error_response, wire_of

log = logging.getLogger("minka.server")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MAX_PATH = 100
"""Characters of an unknown path that are quoted; longer ones are compared with nothing."""


def state_of(scope: Scope) -> State:
    """The server's state."""
    state: State = scope["app"].state.minka
    return state


async def http_error(request: Request, error: Exception) -> Response:
    """Router errors in our shape: an unknown path, a known one with the wrong method."""
    assert isinstance(error, HTTPException), "registered for HTTP errors only"
    path = request.scope["path"]
    if error.status_code == 405:
        headers = error.headers or {}
        use = f"; use {headers['Allow']}" if "Allow" in headers else ""
        response = error_response(MethodError(f"{path} does not take {request.method}{use}"), request.scope)
        response.headers.update(headers)
        return response
    return error_response(NotFoundError(f"there is no {path[:_MAX_PATH]}{_like(path, request)}"), request.scope)


def _like(path: str, request: Request) -> str:
    """What the client may have meant: a path that is spelled almost like this one."""
    known = [route.path for route in request.app.routes if isinstance(route, Route)]
    near = get_close_matches(path, known, 1, 0.8) if len(path) <= _MAX_PATH else []
    return f"; did you mean {near[0]}?" if near else "; /docs lists what there is"


class ErrorDoor:
    """Gives the request its id, answers with JSON whatever is raised inside, and logs one line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        REQUEST_ID.set(request_id)  # a request is a task of its own
        id_header = wire_of(scope).id_header
        began, status = perf_counter(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if id_header:
                    headers[id_header] = request_id
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except ClientDisconnect:
            status = status or 499
        except CancelledError:  # a drain that took too long; nobody waits for this task
            status = status or 503
        except Exception as error:
            if not isinstance(error, MinkaError):
                log.exception("request %s failed", request_id, extra={"request_id": request_id})
                error = MinkaError("internal error of the server; its log has the details")
            if not status:
                await error_response(error, scope)(scope, receive, watch)
        finally:
            self._log(scope, status, perf_counter() - began, request_id)

    @staticmethod
    def _log(scope: Scope, status: int, seconds: float, request_id: str) -> None:
        level = logging.DEBUG if scope["path"] in ("/health", "/v1/health", "/metrics") else logging.INFO
        line = "%s %s %d %.3f s %s"
        facts = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
        log.log(level, line, *facts.values(), request_id, extra={"request_id": request_id, "facts": facts})


class ReadyDoor:
    """503 for everything while the model loads, except for `pages`, which a browser shows meanwhile."""

    def __init__(self, app: ASGIApp, pages: Collection[str]) -> None:
        self._app, self._pages = app, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        if scope["type"] == "http" and state_of(scope).runtime is None and scope["path"] not in self._pages:
            await error_response(UnavailableError("Loading model"), scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)
