"""The API described: `/openapi.json`, a page at `/docs` to read it, and the page at `/`; all without any other host."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from minka.protocols.openapi import openapi_object
from minka.server.state import State
from minka.server.wire import JsonResponse

PATHS = ("/", "/docs", "/openapi.json")
"""Paths for browsers. They need no key, which a browser could not send, and tell nothing of the model or its users."""


def routes(prefix: str) -> list[BaseRoute]:
    """The routes of the description."""
    return [
        Route(f"{prefix}/openapi.json", openapi, methods=["GET"]),
        Route(f"{prefix}/docs", docs, methods=["GET"]),
    ]


async def openapi(request: Request) -> Response:
    """The OpenAPI document of this server."""
    state: State = request.app.state.minka
    served = state.runtime.served if state.runtime else None
    defaults = (served.sampling, served.generation) if served else (None, None)
    return JsonResponse(openapi_object(state.params.api_prefix.rstrip("/"), *defaults))


async def docs(_request: Request) -> Response:
    """A page that shows the document."""
    return _page("docs.html")


async def page(_request: Request) -> Response:
    """The page that a browser gets at `/`."""
    return _page("index.html")


def _page(name: str) -> Response:
    text = _read(name)
    return HTMLResponse(text, headers={"content-security-policy": _policy(text), "x-content-type-options": "nosniff"})


@cache
def _read(name: str) -> str:
    return files("minka.server.ui").joinpath(name).read_text(encoding="utf-8")


@cache
def _policy(page: str) -> str:
    """Allows the script and the style that the page has, requests to this server, and nothing else."""
    sources = {tag: " ".join(_hash(text) for text in _inside(tag, page)) for tag in ("script", "style")}
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
        f"img-src data:; script-src {sources['script']}; style-src {sources['style']}"
    )


def _inside(tag: str, page: str) -> list[str]:
    return re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
