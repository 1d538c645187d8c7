"""Cross-origin headers as llama-server sends them, so that web pages can use the API.

They are no protection of the server: a browser asks before it lets a page read an answer, nothing else does.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minka.params import ServerParams
from minka.server.wire import Spelled

_ORIGIN = Spelled(b"Access-Control-Allow-Origin")
_CREDENTIALS = Spelled(b"Access-Control-Allow-Credentials")
_METHODS = Spelled(b"Access-Control-Allow-Methods")
_HEADERS = Spelled(b"Access-Control-Allow-Headers")

_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")


class CorsDoor:
    """Adds the headers, and answers OPTIONS itself."""

    def __init__(self, app: ASGIApp, params: ServerParams) -> None:
        self._app = app
        self._origins = params.cors_origins
        self._credentials = params.cors_credentials
        self._preflight = [
            (_METHODS, ", ".join(params.cors_methods).encode()),
            (_HEADERS, ", ".join(params.cors_headers).encode()),
        ]

    def _allowed(self, origin: str) -> str:
        """The value of Access-Control-Allow-Origin, empty for none."""
        if "*" in self._origins:
            # A wildcard is not valid together with credentials, so the origin itself is named.
            return origin if self._credentials and origin else "*"
        if origin in self._origins or ("localhost" in self._origins and _LOCAL.fullmatch(origin)):
            return origin
        return ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        allowed = self._allowed(Headers(scope=scope).get("origin", ""))

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start" and allowed:
                message["headers"].append((_ORIGIN, allowed.encode("latin-1")))
                if allowed != "*":
                    MutableHeaders(scope=message).add_vary_header("origin")
                    if self._credentials:
                        message["headers"].append((_CREDENTIALS, b"true"))
            await send(message)

        if scope["method"] == "OPTIONS":
            response = Response(b"", 200)
            response.raw_headers += self._preflight
            if not (self._credentials and allowed not in ("", "*")):
                response.raw_headers.append((_CREDENTIALS, b"true" if self._credentials else b"false"))
            await response(scope, receive, add)
            return
        await self._app(scope, receive, add)
