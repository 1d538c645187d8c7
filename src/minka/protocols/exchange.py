"""The seam between a protocol and the one path that serves all of them: a request that is being answered.

Streaming is the only path. An Exchange turns events into wire frames one by one; the whole answer is a fold over the
same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from minka.errors import MinkaError
from minka.protocols.body import JsonObject
from minka.protocols.served import Served
from minka.types import Event, Job

encode = msgspec.json.Encoder().encode


class Exchange(Protocol):
    """One request: what it asks of the engine, and how its answer looks on the wire."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the engine has to do, one job a choice."""

    @property
    def stream(self) -> bool:
        """Whether the client wants frames as they come."""

    @property
    def ping_interval(self) -> int:
        """Seconds of silence before a comment frame, 0 or less for never."""

    def frames(self, event: Event) -> Iterable[bytes]:
        """Take an event, and return the frames that it makes. Frames of a whole answer are never asked for."""

    def add(self, event: Event) -> None:
        """Take an event of an answer that is sent as a whole."""

    def whole(self) -> object:
        """The answer as a JSON value, after the last event."""

    def last_frames(self) -> Iterable[bytes]:
        """What closes a stream after the last event of the last job."""


Decode = Callable[[JsonObject, Served], Exchange]


def frame(value: object) -> bytes:
    """A server-sent event with JSON data."""
    return b"data: " + encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


def error_object(error: MinkaError) -> dict[str, object]:
    """An error as OpenAI and llama-server write it; `code` is the HTTP status."""
    body: dict[str, object] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.status,
    }
    return {"error": body | error.extra()}
