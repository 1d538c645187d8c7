"""JSON inside of a model's text: values that are passed on while they come, and objects that are read key by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from re import compile

from minka.chat.formats.reader import BrokenCallError, Reader, Sink, Steps

MAX_DEPTH = 200
"""Nesting of arguments; deeper ones are no call."""

_STOPS = compile(r'["{}\[\]]')
_IN_STRING = compile(r'["\\]')


def value(reader: Reader, sink: Sink) -> Steps[object]:
    """Take one JSON value, give its text to `sink` as it comes, and return the value. Raises BrokenCallError."""
    yield from reader.space()
    pieces: list[str] = []

    def pass_on(text: str) -> None:
        pieces.append(text)
        sink(text)

    first = yield from reader.peek(1)
    if first in ("{", "["):
        yield from _nested(reader, pass_on)
    elif first == '"':
        yield from _string(reader, pass_on)
    else:
        pass_on((yield from reader.word(",}] \t\r\n<")))
    return parsed("".join(pieces))


def parsed(text: str) -> object:
    """The value of a JSON text. Raises BrokenCallError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BrokenCallError from None


def _refuse(name: str) -> object:
    raise ValueError(name)


def arguments(reader: Reader) -> Steps[None]:
    """Take a JSON object as the arguments of the call that was started, and pass its text on.

    A string that holds an object's text is one too, and null is an empty one. Raises BrokenCallError.
    """
    yield from reader.space()
    first = yield from reader.peek(1)
    if first == "{":
        yield from value(reader, reader.arguments)
        return
    pieces: list[str] = []
    try:
        held = yield from value(reader, pieces.append)
    except BrokenCallError:
        reader.arguments("".join(pieces))
        raise
    reader.arguments(arguments_text(held))


def arguments_text(held: object) -> str:
    """The text of arguments that were read as a whole. Raises BrokenCallError."""
    if isinstance(held, str) and isinstance(parsed(held), dict):
        return held
    if held is None:
        return "{}"
    if not isinstance(held, dict):
        raise BrokenCallError
    return json.dumps(held, ensure_ascii=False)


def _nowhere(text: str) -> None:
    """A sink for text that is not passed on while it comes."""


Member = Callable[[Reader], Steps[None]]
"""Takes the value of a member."""


def members(reader: Reader, known: Mapping[str, Member]) -> Steps[None]:
    """Take a JSON object, each value by the script for its key. Raises BrokenCallError for a key that is not known."""
    yield from reader.space()
    yield from reader.expect("{")
    while True:
        yield from reader.space()
        key = yield from string(reader)
        if key not in known:
            raise BrokenCallError
        yield from reader.space()
        yield from reader.expect(":")
        yield from known[key](reader)
        yield from reader.space()
        if (yield from reader.match("}")):
            return
        yield from reader.expect(",")


def string(reader: Reader) -> Steps[str]:
    """Take a JSON string and return what it says. Raises BrokenCallError."""
    text = yield from value(reader, _nowhere)
    if not isinstance(text, str):
        raise BrokenCallError
    return text


def _nested(reader: Reader, sink: Sink) -> Steps[None]:
    """Take an object or an array, brackets and strings being all that counts; whoever wants to know parses it."""
    open_brackets: list[str] = []
    while True:
        rest = yield from _some(reader)
        hit = _STOPS.search(rest)
        if hit is None:
            sink(reader.take(len(rest)))
            continue
        sink(reader.take(hit.start()))
        bracket = hit.group()
        if bracket == '"':
            yield from _string(reader, sink)
            continue
        if bracket in "{[":
            open_brackets.append("}" if bracket == "{" else "]")
        elif open_brackets.pop() != bracket:
            raise BrokenCallError
        if len(open_brackets) > MAX_DEPTH:
            raise BrokenCallError
        sink(reader.take(1))
        if not open_brackets:
            return


def _string(reader: Reader, sink: Sink) -> Steps[None]:
    sink(reader.take(1))
    while True:
        rest = yield from _some(reader)
        hit = _IN_STRING.search(rest)
        if hit is None:
            sink(reader.take(len(rest)))
        elif hit.group() == '"':
            sink(reader.take(hit.end()))
            return
        else:
            sink(reader.take(hit.start()))
            if len((yield from reader.peek(2))) < 2:
                raise BrokenCallError
            sink(reader.take(2))


def _some(reader: Reader) -> Steps[str]:
    """All text that is there, at least one character. Raises BrokenCallError at the end of the text."""
    if not (yield from reader.peek(1)):
        raise BrokenCallError
    return reader.rest
