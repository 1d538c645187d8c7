"""The vendors' own clients as the specification: what is sent has to fit their types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from minka.chat.formats.format import CallArguments, CallEnd, CallStart, Content, Delta, Reasoning
from minka.protocols.exchange import Exchange
from minka.types import Event
from tests.protocols.values import Play

Json = dict[str, object]

_ANTHROPIC: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
_OPENAI: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)

DELTAS: tuple[Delta, ...] = (
    Reasoning("Let me "),
    Reasoning("look."),
    Content("I look "),
    Content("it up."),
    CallStart(0, "weather", "call_1"),
    CallArguments(0, '{"city":'),
    CallArguments(0, ' "Lima"}'),
    CallEnd(0),
    CallStart(1, "clock", "call_2"),
    CallArguments(1, "{}"),
    CallEnd(1),
)
"""An answer with everything in it."""


def anthropic_message(value: object) -> Message:
    """A whole message."""
    return Message.model_validate(value)


def anthropic_events(events: Iterable[Mapping[str, object]]) -> list[Json]:
    """Events of a stream, all of which must fit, and hold to the order of blocks."""
    told = [dict(event) for event in events]
    opened: int | None = None
    n_blocks = 0
    for event in told:
        _ANTHROPIC.validate_python(event)
        match event["type"]:
            case "content_block_start":
                assert opened is None, "a block begins while another one is open"
                assert event["index"] == n_blocks
                opened, n_blocks = n_blocks, n_blocks + 1
            case "content_block_delta":
                assert event["index"] == opened
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
            case _:
                assert opened is None
    return told


def openai_response(value: object) -> Response:
    """A whole response."""
    return Response.model_validate(value)


def openai_events(events: Iterable[Mapping[str, object]], *, numbered: bool = True) -> list[Json]:
    """Events of a stream, all of which must fit; `numbered`: they have their numbers already, 0 and up."""
    told = [dict(event) for event in events]
    for index, event in enumerate(told):
        if numbered:
            assert event["sequence_number"] == index
        _OPENAI.validate_python({"sequence_number": index, **event})
    return told


def parsed(raw: bytes) -> list[Json]:
    """The events of a body; each is named as its `type` says."""
    found: list[Json] = []
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        if block in ("", ":"):
            continue
        name, data = block.split("\n")
        event = cast("Json", json.loads(data.removeprefix("data: ")))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def stream_of(exchange: Exchange, play: Play | Iterable[Event]) -> list[Json]:
    """The events of an exchange that is played through."""
    events = play.events(exchange.jobs[0]) if isinstance(play, Play) else play
    raw = b"".join(frame for event in events for frame in exchange.frames(event)) + b"".join(exchange.last_frames())
    return parsed(raw)


def whole_of(exchange: Exchange, play: Play) -> object:
    """The whole answer of an exchange that is played through."""
    for event in play.events(exchange.jobs[0]):
        exchange.add(event)
    return json.loads(json.dumps(exchange.whole(), allow_nan=False))
