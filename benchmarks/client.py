"""A load client far cheaper than a server: HTTP/1.1 and server-sent events by hand on asyncio streams.

While a stream runs, only its frames and their times are kept (a Tape); `streams` decodes them when it has ended. Knows
neither JSON answers nor scenarios.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

READ_SIZE = 65536
REUSE_WITHIN = 1.0
"""Seconds a kept-alive connection may have been idle; servers close one after a few seconds."""

Json = Mapping[str, object]


class LoadError(Exception):
    """A response is not what was asked for; the run it belongs to counts as failed."""


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
                raise LoadError(f"chunk is longer than its size says: {line[:40]!r}")
            self._want = "size"
        else:
            try:
                self._left = int(line.split(b";", 1)[0], 16)
            except ValueError:
                raise LoadError(f"not a chunk size: {line[:40]!r}") from None
            self._want = "data" if self._left else "trailer"


class FrameSplitter:
    """Server-sent events: bytes cut anywhere in, whole frames (without the blank line) out."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes."""
        *frames, self.rest = (self.rest + data).split(b"\n\n")
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
            raise LoadError(f"connection closed before the headers ended ({error.partial[:80]!r})") from None
        status, *lines = block.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._reusable = headers.get("connection", "").lower() != "close"
        return Reply(int(status.split(" ", 2)[1]), headers)

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
        raise LoadError("connection closed in the middle of a body")

    def abort(self) -> None:
        """Drop the connection at once, whatever is under way."""
        self._writer.transport.abort()


class Client:
    """Requests to one server: single exchanges over kept-alive connections, each stream over one of its own.

    llama-server closes the connection after every stream without saying so, so a stream's is not used again.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._idle: list[Connection] = []

    async def connect(self) -> Connection:
        """Open a connection that belongs to the caller. Raises OSError when nobody listens."""
        return Connection(*await asyncio.open_connection(self.host, self.port, limit=2 * READ_SIZE))

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
                raise LoadError(f"POST {path} got {head.status}: {body[:300].decode(errors='replace')}")
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
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Length: {len(body)}\r\n"
        kind = "Content-Type: application/json\r\n" if body else ""
        return f"{head}{kind}\r\n".encode() + body

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
