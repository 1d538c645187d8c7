"""Listening and stopping: sockets that the user named; a signal drains, a second one stops at once."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from minka.errors import UsageError
from minka.params import ServerParams

_BACKLOG = 2048

MAX_HEAD = 1 << 18
"""Bytes of a request's first line and headers, at least: what comes in one read may be more."""


def bind(params: ServerParams) -> list[socket.socket]:
    """Sockets bound to every --host. Raises UsageError with the reason if one cannot be bound, or for a certificate
    that cannot be used."""
    _check_certificate(params)
    bound: list[socket.socket] = []
    try:
        for host in params.host:
            bound.append(_bind(host, params))  # noqa: PERF401 (what is bound must be known if the next one fails)
    except OSError as error:
        for sock in bound:
            sock.close()
        where = f"{params.host[len(bound)]} port {params.port}"
        raise UsageError(f"cannot listen on {where}: {error.strerror}; give another --port or --host") from None
    return bound


def _check_certificate(params: ServerParams) -> None:
    certificate, key = params.ssl_cert_file, params.ssl_key_file
    if not certificate and not key:
        return
    if not certificate or not key:
        raise UsageError("--ssl-cert-file and --ssl-key-file belong together: give both")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--ssl-cert-file {certificate} with --ssl-key-file {key}: {reason}") from None


def _bind(host: str, params: ServerParams) -> socket.socket:
    options: list[tuple[int, int]] = []
    address: str | tuple[object, ...] = host
    if host.endswith(".sock"):
        if Path(host).is_socket() and not _is_served(host):
            Path(host).unlink()  # left by a server that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, params.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        options = _options(family, params)
    try:
        for level, option in options:
            sock.setsockopt(level, option, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # only a socket that listens has its port for itself
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(True)
    return sock


def _is_served(path: str) -> bool:
    """Whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(path) == 0


def _options(family: int, params: ServerParams) -> list[tuple[int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_REUSEADDR)]
    if params.reuse_port:
        options.append((socket.SOL_SOCKET, socket.SO_REUSEPORT))
    if family == socket.AF_INET6:
        options.append((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    return options


def urls(sockets: Sequence[socket.socket], params: ServerParams) -> list[str]:
    """Where the server can be reached."""
    scheme = "https" if params.ssl_cert_file else "http"
    found = []
    for sock in sockets:
        name = sock.getsockname()
        if isinstance(name, tuple):
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            found.append(f"{scheme}://{host}:{name[1]}")
        else:
            found.append(f"unix:{os.fsdecode(name)}")
    return found


class _Http(HttpToolsProtocol):
    """uvicorn's, with a limit for what is kept of a request before anybody can look at it."""

    _is_in_head = False
    _n_head = 0

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        self._is_in_head, self._n_head = True, 0

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._is_in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            return
        self._n_head += len(data)
        if self._n_head > MAX_HEAD:
            if self._answers:
                self.transport.abort()
            else:
                self.send_400_response("The head of the request is too large.")

    @property
    def _answers(self) -> bool:
        """Whether the answer to the request before is under way; nothing may be written into that."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete


class Server(uvicorn.Server):
    """uvicorn with our rule for signals: the first drains, a second of any kind stops at once."""

    def __init__(self, app: Starlette, params: ServerParams) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                loop="uvloop" if _has_uvloop() else "asyncio",
                http=_Http,
                ws="none",
                backlog=_BACKLOG,
                timeout_keep_alive=params.timeout,
                timeout_graceful_shutdown=params.drain_timeout,
                ssl_keyfile=params.ssl_key_file,
                ssl_certfile=params.ssl_cert_file,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGINT and SIGTERM."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:
            # Since Python 3.12 a closed server waits for its connections, so those have to go, too.
            for connection in list(self.server_state.connections):
                connection.transport.abort()


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True
