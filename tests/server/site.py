"""What server tests stand on: the application on a fake backend, called in-process or over a real socket.

`Site` is for plain requests, `Live` for what only a connection shows: streams as they come, clients that go away.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

import httpx
import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.grammar.compiler import Grammars
from minka.native.model import Model
from minka.params import ServerParams
from minka.protocols.gcp import Vertex
from minka.runtime import Runtime
from minka.server.app import build_app
from minka.server.listen import Server, bind, urls
from minka.types import EngineView
from tests.fakes import WAIT, FakeBackend
from tests.protocols.values import made_served

Body = Mapping[str, object] | bytes | None

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


class _NoModel:
    def close(self) -> None:
        """There is nothing to free."""


def fake_runtime(
    backend: FakeBackend,
    *,
    queue_size: int = 64,
    template: str = "chatml",
    memory: MemoryConfig | None = None,
    grammars: Grammars | None = None,
) -> Runtime:
    """A runtime on a fake backend; it closes the backend. Without `memory` nothing is kept outside the KV cache."""
    served = made_served(backend.vocab, n_ctx=backend.n_ctx_seq, n_slots=backend.n_seq_max, template=template)
    served = replace(served, grammars=grammars)
    config = EngineConfig(queue_size=queue_size, memory=memory or MemoryConfig(), check=True)
    engine = Engine(backend, config, constraints=grammars)
    return Runtime(cast("Model", _NoModel()), engine, served)


def _in_small_letters(app: ASGIApp) -> ASGIApp:
    """The application as httpx expects it: names of headers that do not insist on their spelling."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def lower(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(bytes(name).lower(), value) for name, value in message["headers"]]
            await send(message)

        await app(scope, receive, lower)

    return call


class Site:
    """The application in this process, without a socket."""

    def __init__(
        self, params: ServerParams | None = None, runtime: Runtime | None = None, vertex: Vertex | None = None
    ) -> None:
        self.app = build_app(params or ServerParams(), vertex)
        self.app.state.minka.runtime = runtime
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if runtime := self.app.state.minka.runtime:
            runtime.close()
        self._runner.close()

    def request(
        self, method: str, path: str, body: Body | Callable[[], AsyncIterator[bytes]] = None, **headers: str
    ) -> httpx.Response:
        """Send a request and wait for the whole answer. Underscores in header names stand for dashes."""
        content = body() if callable(body) else json.dumps(body).encode() if isinstance(body, Mapping) else body
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(_in_small_letters(self.app))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, content=content, headers=named)

        return self._runner.run(send())

    def view(self) -> EngineView:
        """The engine between two steps."""
        engine = self.app.state.minka.loaded.engine
        assert isinstance(engine, Engine)
        return engine.view().result(WAIT)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, None, **headers)

    def post(self, path: str, body: Body | Callable[[], AsyncIterator[bytes]] = None, **headers: str) -> httpx.Response:
        return self.request("POST", path, body, **headers)


class _Server(Server):
    def __init__(self, app: Starlette, params: ServerParams) -> None:
        super().__init__(app, params)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


class Live:
    """The application on a free port of the loopback interface, in a thread of its own."""

    def __init__(self, runtime: Runtime, params: ServerParams | None = None) -> None:
        params = replace(params or ServerParams(), port=0)
        self.runtime = runtime
        app = build_app(params)
        app.state.minka.runtime = runtime
        sockets = bind(params)
        (self.url,) = urls(sockets, params)
        self._server = _Server(app, params)
        self._thread = threading.Thread(target=self._serve, args=(sockets,))
        self._thread.start()
        assert self._server.listens.wait(WAIT), "the server does not listen"

    def _serve(self, sockets: list[socket.socket]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=sockets))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.force_exit = self._server.should_exit = True
        self._thread.join()
        self.runtime.close()

    def view(self) -> EngineView:
        """The engine between two steps."""
        return self.runtime.engine.view().result(WAIT)

    def connect(self) -> Connection:
        """A connection of a client."""
        return Connection(self.url)


class Connection:
    """One connection of a client, which can be left at any moment."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WAIT)
        self._answer: http.client.HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def send(self, path: str, **fields: object) -> None:
        """Send a request, and do not wait for its answer."""
        self._http.request("POST", path, json.dumps(fields), {"content-type": "application/json"})

    def options(self, path: str, **headers: str) -> None:
        """Ask what a page may do, as a browser does."""
        self._http.request("OPTIONS", path, None, headers)

    def answer(self) -> http.client.HTTPResponse:
        """The head of the answer; its body can still be read."""
        self._answer = self._http.getresponse()
        return self._answer

    def post(self, path: str, **fields: object) -> http.client.HTTPResponse:
        """Send a request and wait for the head of its answer."""
        self.send(path, **fields)
        return self.answer()

    @property
    def local_port(self) -> int:
        """The port that tells this connection from another one."""
        port = self._http.sock.getsockname()[1]
        assert isinstance(port, int)
        return port

    def leave(self) -> None:
        """Close the connection, whatever is under way."""
        if self._answer is not None:
            self._answer.close()
        self._http.close()


def events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The frames of a stream as they come, without their `data: `; a comment is its colon."""
    while line := answer.readline().decode():
        if line != "\n":
            yield line.rstrip("\n").removeprefix("data: ")


def error_of(response: httpx.Response, status: int) -> dict[str, object]:
    """The error of a response, which must have the one shape and this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    assert response.headers["x-request-id"]
    body = response.json()
    assert list(body) == ["error"]
    error = cast("dict[str, object]", body["error"])
    assert list(error)[:4] == ["message", "type", "param", "code"]
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert error["message"]
    return error
