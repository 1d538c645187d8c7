"""The seam between a protocol and the one path that serves all of them: a request that is being answered.

Streaming is the only path. An Exchange turns events into wire frames one by one; the whole answer is a fold over the
same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
        """Take an event, and return the frames that it makes. Frames of a whole answer are never asked for.

        Failed is the last event of a stream; for an exchange that makes no frames of it, its API's error frame is sent.
        """

    def add(self, event: Event) -> None:
        """Take an event of an answer that is sent as a whole."""

    def whole(self) -> object:
        """The answer as a JSON value, after the last event."""

    def last_frames(self) -> Iterable[bytes]:
        """What closes a stream after the last event of the last job."""


@runtime_checkable
class Lasting(Exchange, Protocol):
    """An exchange whose work may go on without its client; others find it by `id`."""

    @property
    def id(self) -> str:
        """The name of the answer."""

    @property
    def background(self) -> bool:
        """Whether the client wants no more than `accepted` now."""

    def accepted(self) -> object:
        """What a client gets that does not wait."""

    def broken(self, error: MinkaError | None) -> None:
        """The work ended by an error, or because somebody stopped it (None); maybe no client is there to be told."""


Decode = Callable[[JsonObject, Served], Exchange]


def frame(value: object) -> bytes:
    """A server-sent event with JSON data."""
    return b"data: " + encode(value) + b"\n\n"


def named_frame(name: str, value: object) -> bytes:
    """A server-sent event with a name and JSON data."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


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


def _object(error: MinkaError, _request_id: str) -> dict[str, object]:
    return error_object(error)


@dataclass(frozen=True, slots=True)
class Wire:
    """What is the same for all requests of an API: its sign of life in a silent stream, and how it tells of errors.

    `error` makes the body of an error's answer, from the error and the request's id. `statuses` are pairs of an
    error class's status and the one to send in its place. `error_frame` ends a stream that has begun.
    """

    ping: bytes = PING
    error: Callable[[MinkaError, str], Mapping[str, object]] = _object
    error_frame: Callable[[Mapping[str, object]], bytes] = frame
    statuses: tuple[tuple[int, int], ...] = ()
    id_header: str = ""
    """A further header that carries the request's id, beside x-request-id."""

    def status(self, error: MinkaError) -> int:
        """The HTTP status of an error."""
        return dict(self.statuses).get(error.status, error.status)


OPENAI = Wire()
"""OpenAI's and llama-server's."""
