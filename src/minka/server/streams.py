"""Answers that go on without their client: what was sent is kept for a while, and can be read again from any byte.

A stream's memory is bounded: of a long one only the end is kept, finished ones go after a time, and the oldest of them
go first when all together are too large. Belongs to one asyncio loop. Knows no protocol and no engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass

from minka.errors import MinkaError, RequestError

log = logging.getLogger("minka.server")

CAPACITY = 4 << 20
"""Bytes of one stream that are kept."""
TOTAL = 256 << 20
"""Bytes of all streams together, beyond which finished ones are dropped."""
OVERHEAD = 4096
"""Bytes that each of them counts for besides what was sent."""
LIFETIME = 300.0
"""Seconds that a finished stream is kept."""


Work = Callable[["Stream"], Coroutine[None, None, None]]
"""Writes a stream until it is complete."""
Broken = Callable[[MinkaError | None], None]
"""Told of the error that ended the work, or of None if somebody stopped it."""


@dataclass(frozen=True, slots=True)
class Key:
    """Whose stream it is, what kind of name it has, and the name."""

    tenant: str
    kind: str
    name: str


class Stream:
    """One answer while it is made and for a while after. `started` and `completed` are Unix times, the latter 0 before.

    `lost` bytes at its beginning are not kept any more.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.started = time.time()
        self.completed = 0.0
        self.lost = 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the answer's first part is there; has the error of an answer that never began."""
        self._kept = bytearray()
        self._news = asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    @property
    def total(self) -> int:
        """Bytes so far."""
        return self.lost + len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._kept)

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.completed > 0

    def write(self, chunk: bytes) -> None:
        """Add to the stream."""
        self._kept += chunk
        if (n_over := len(self._kept) - CAPACITY) > 0:
            del self._kept[:n_over]
            self.lost += n_over
        if not self.opened.done():
            self.opened.set_result(None)
        self._wake()

    def check(self, start: int) -> None:
        """Raises RequestError if the stream cannot be read from this byte."""
        if start < self.lost:
            raise RequestError(f"bytes before {self.lost} of this stream are not kept any more", param="from")
        if start > self.total:
            raise RequestError(f"this stream has only {self.total} bytes so far", param="from")

    async def read(self, start: int, gone: asyncio.Event | None = None) -> AsyncGenerator[bytes, None]:
        """All bytes from `start` on, as they come, until the end or until `gone` is set (and `nudge` called).

        A reader that is slower than the stream by more than what is kept is cut off: a gap would go unnoticed.
        """
        while start >= self.lost and not (gone is not None and gone.is_set()):
            if chunk := bytes(self._kept[start - self.lost :]):
                start += len(chunk)
                yield chunk
            elif self.done:
                return
            else:
                await self._news.wait()
        if start < self.lost:
            log.warning("a reader of stream %r was too slow and has been cut off", self.key.name)

    def nudge(self) -> None:
        """Let readers see whether they are still wanted."""
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def run(self, work: Work, broken: Broken) -> None:
        """Start the work that writes the stream; `broken` is called if it fails or is stopped."""
        self._task = asyncio.ensure_future(work(self))
        self._task.add_done_callback(lambda task: self._end(task, broken))

    def _end(self, task: asyncio.Future[None], broken: Broken) -> None:
        """The work is over, perhaps before it began."""
        error = self._error(task)
        if error is not None:
            try:
                broken(None if task.cancelled() else error)
            except Exception:  # the disk may be full: whoever reads must not wait for ever because of that
                log.exception("the end of stream %r cannot be kept", self.key.name)
        self.completed = time.time()
        if not self.opened.done():
            if error is None:
                self.opened.set_result(None)
            else:
                self.opened.set_exception(error)
                self.opened.exception()  # whoever waits gets it; nobody has to
        self._wake()

    def _error(self, task: asyncio.Future[None]) -> MinkaError | None:
        if task.cancelled():
            return RequestError("the request was cancelled")
        raised = task.exception()
        if raised is None or isinstance(raised, MinkaError):
            return raised
        log.error("stream %r failed", self.key.name, exc_info=raised)
        return MinkaError("internal error of the server; its log has the details")

    def when_done(self, call: Callable[[], object]) -> None:
        """Call something when the work has ended, however it ends."""
        assert self._task is not None, "nothing has been started"
        self._task.add_done_callback(lambda _task: call())

    async def stop(self) -> None:
        """End the work and wait until it has ended."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))


class Streams:
    """All streams of a server."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Stream] = {}

    async def open(self, key: Key) -> Stream:
        """A new stream of that name; one that has it already is stopped and forgotten."""
        while await self.drop(key):
            pass  # another request of that name may have begun while the one before was stopped
        self._make_room()
        stream = self._by_key[key] = Stream(key)
        return stream

    def get(self, key: Key) -> Stream | None:
        """The stream of that name."""
        return self._by_key.get(key)

    def named(self, tenant: str, kind: str, name: str) -> Iterator[Stream]:
        """The streams of a name, and of that name with a suffix behind `::`."""
        for key, stream in self._by_key.items():
            mine = key.tenant == tenant and key.kind == kind
            if mine and (key.name == name or key.name.startswith(name + "::")):
                yield stream

    def start(self, stream: Stream, work: Work, broken: Broken) -> None:
        """Let the work write the stream, which is forgotten some time after its end. See `Stream.run`."""
        stream.run(work, broken)
        stream.when_done(lambda: asyncio.get_running_loop().call_later(LIFETIME, self.forget, stream))

    async def drop(self, key: Key) -> bool:
        """Stop a stream and forget it; False if there is none."""
        stream = self._by_key.pop(key, None)
        if stream is None:
            return False
        await stream.stop()
        return True

    async def close(self) -> None:
        """Stop everything."""
        for key in list(self._by_key):
            await self.drop(key)

    def forget(self, stream: Stream) -> None:
        """Drop a stream that has ended, unless its name belongs to another one by now."""
        if self._by_key.get(stream.key) is stream:
            del self._by_key[stream.key]

    def _make_room(self) -> None:
        total = sum(stream.size + OVERHEAD for stream in self._by_key.values())
        for stream in [stream for stream in self._by_key.values() if stream.done]:
            if total < TOTAL:
                return
            total -= stream.size + OVERHEAD
            self.forget(stream)
