"""A load client far cheaper than a server: HTTP/1.1 and server-sent events by hand on asyncio streams.

While a stream runs, only its frames and their times are kept (a Tape), to be decoded when it has ended. Knows nothing
of what is asked and answered. Sources: RFC 9112, and the HTML standard's chapter on server-sent events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from minka.errors import MinkaError, UsageError
from minka.ggufs.read import printable

READ_SIZE = 65536
REUSE_WITHIN = 1.0
"""Seconds a kept-alive connection may have been idle; servers close one after a few seconds."""

Json = Mapping[str, object]


class LoadError(MinkaError):
    """A response is not what was asked for, or there is none."""


class ChunkedDecoder:
    """The chunked transfer coding (RFC 9112, 7.1), fed with pieces cut at any byte."""

    def __init__(self) -> None:
        self.done = False
        self._buffer = b""
        self._left = 0
        self._want = "size"

    def feed(self, data: bytes) -> bytes:
        """Return the payload bytes that `data` completes. Raises LoadError when the coding is broken."""
        buffer = self._buffer + data if self._buffer else data
        payload: list[bytes] = []
        start = 0
        while not self.done:
            if self._want == "data":
                piece = buffer[start : start + self._left]
                payload.append(piece)
                start += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._want = "end"
            end = buffer.find(b"\r\n", start)
            if end < 0:
                break
            self._line(buffer[start:end])
            start = end + 2
        self._buffer = buffer[start:]
        return b"".join(payload)

    def _line(self, line: bytes) -> None:
        if self._want == "trailer":
            self.done = not line
        elif self._want == "end":
            if line:
                raise LoadError(f"a chunk is longer than its size says: {line[:40]!r}")
            self._want = "size"
        else:
            try:
                self._left = int(line.split(b";", 1)[0], 16)
            except ValueError:
                raise LoadError(f"this is no chunk size: {line[:40]!r}") from None
            self._want = "data" if self._left else "trailer"


class FrameSplitter:
    """Server-sent events: bytes cut anywhere in, whole frames (without the blank line) out. Line ends become \\n."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes."""
        buffer = self.rest + data
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *frames, self.rest = buffer.split(b"\n\n")
        return frames


@dataclass(slots=True)
class Tape:
    """What one stream brought, and when (seconds of the system's monotonic clock)."""

    sent: float = 0.0
    frames: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    _wake_at: int = 0
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, frames: Sequence[bytes], now: float) -> None:
        """Record frames that arrived together."""
        self.frames += frames
        self.times += [now] * len(frames)
        if self._wake_at and len(self.frames) >= self._wake_at:
            self._woken.set()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = time.monotonic()
        self._woken.set()

    async def reached(self, n_frames: int) -> bool:
        """Wait until `n_frames` frames are here (True) or the stream has ended before (False)."""
        self._wake_at = n_frames
        if len(self.frames) < n_frames and not self.ended:
            self._woken.clear()
            await self._woken.wait()
        return len(self.frames) >= n_frames


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, lower-case headers and, for a reply that is no stream, the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Connection:
    """One keep-alive connection; one exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._reusable = True
        self._idle_since = time.monotonic()

    @property
    def usable(self) -> bool:
        """True when another request may be sent."""
        fresh = time.monotonic() - self._idle_since < REUSE_WITHIN
        return self._reusable and fresh and not self._reader.at_eof() and not self._writer.is_closing()

    def send(self, request: bytes) -> None:
        """Write a request; the operating system's buffer takes it whole, so there is nothing to wait for."""
        self._writer.write(request)

    async def head(self) -> Reply:
        """Read the status line and the headers."""
        try:
            block = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise LoadError(f"the connection was closed before the headers ended ({error.partial[:80]!r})") from None
        status, *lines = block.decode("latin-1").split("\r\n")
        words = status.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise LoadError(f"this is no HTTP/1.1 response: {status[:80]!r}")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._reusable = headers.get("connection", "").lower() != "close"
        return Reply(int(words[1]), headers)

    async def pieces(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without its transfer coding."""
        if "chunked" in headers.get("transfer-encoding", ""):
            decoder = ChunkedDecoder()
            while not decoder.done:
                if payload := decoder.feed(await self._read()):
                    yield payload
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left:
                data = await self._read()
                left -= len(data)
                yield data
        else:
            self._reusable = False
            while data := await self._reader.read(READ_SIZE):
                yield data
        self._idle_since = time.monotonic()

    async def _read(self) -> bytes:
        if data := await self._reader.read(READ_SIZE):
            return data
        raise LoadError("the connection was closed in the middle of a body")

    def abort(self) -> None:
        """Drop the connection at once, whatever is under way."""
        self._writer.transport.abort()


class Client:
    """Requests to one server: single exchanges over kept-alive connections, each stream over one of its own.

    llama-server closes the connection after every stream without saying so, so a stream's is not used again. `headers`
    are sent with every request; `tls` is for https.
    """

    def __init__(self, host: str, port: int, *, tls: bool = False, headers: Mapping[str, str] | None = None) -> None:
        self.host = host
        self.port = port
        self._tls = ssl.create_default_context() if tls else None
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._idle: list[Connection] = []

    @classmethod
    def of_url(cls, url: str, headers: Mapping[str, str] | None = None) -> Self:
        """A client for a URL's server; its path is not looked at. Raises UsageError for another scheme than http(s)."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no URL of a server; give http://HOST:PORT")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls=tls, headers=headers)

    async def connect(self) -> Connection:
        """Open a connection that belongs to the caller. Raises OSError when nobody listens."""
        return Connection(*await asyncio.open_connection(self.host, self.port, limit=2 * READ_SIZE, ssl=self._tls))

    async def request(self, method: str, path: str, payload: Json | None = None) -> Reply:
        """One exchange that is not a stream."""
        connection = await self._take()
        try:
            connection.send(self.encode(method, path, payload))
            head = await connection.head()
            body = b"".join([piece async for piece in connection.pieces(head.headers)])
        except BaseException:
            connection.abort()
            raise
        self._idle.append(connection)
        return Reply(head.status, head.headers, body)

    async def stream(self, path: str, payload: Json, tape: Tape) -> None:
        """POST `payload` and record the event stream on `tape`. Cancelling drops the connection.

        Raises LoadError for a status other than 200 (with the body) and for a stream that breaks off.
        """
        request = self.encode("POST", path, payload)
        splitter = FrameSplitter()
        connection: Connection | None = None
        try:
            connection = await self.connect()
            tape.sent = time.monotonic()
            connection.send(request)
            head = await connection.head()
            if head.status != 200:
                body = b"".join([piece async for piece in connection.pieces(head.headers)])
                raise LoadError(f"POST {path} got {head.status}: {_reason(body)}")
            async for piece in connection.pieces(head.headers):
                if frames := splitter.feed(piece):
                    tape.add(frames, time.monotonic())
        finally:
            tape.end()
            if connection is not None:
                connection.abort()
        if splitter.rest.strip():
            raise LoadError(f"the stream ended inside a frame: {splitter.rest[:80]!r}")

    def encode(self, method: str, path: str, payload: Json | None = None) -> bytes:
        """The bytes of a request."""
        body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nContent-Length: {len(body)}\r\n"
        kind = "Content-Type: application/json\r\n" if body else ""
        return f"{head}{kind}{self._headers}\r\n".encode() + body

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return await self.connect()

    def close(self) -> None:
        """Drop the idle connections."""
        while self._idle:
            self._idle.pop().abort()


def _reason(body: bytes) -> str:
    """What a refusal says, on one line: the message of an OpenAI error, or the beginning of whatever it is."""
    words = body.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        words = str(json.loads(words)["error"]["message"])
    return printable(" ".join(words.split())[:300])
