"""Reads a text that comes in pieces, by scripts that are written as if all of it were there.

A script is a generator: its steps take text off a `Reader` and tell deltas, and it pauses where text is missing. What
a step does depends only on the characters, never on the pieces, so neither do the deltas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from re import Pattern, compile, escape
from typing import TypeVar

from minka.chat.formats.format import Ask, CallArguments, CallBroken, CallEnd, CallStart, Content, Delta, Reasoning

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"


class BrokenCallError(Exception):
    """The text is no call of this family. Raised by scripts inside `Reader.attempt`, which catches it."""


class Reader:
    """The text so far, where the script is in it, and what it told. The first `n_prefill` characters are not told."""

    def __init__(self, n_prefill: int = 0) -> None:
        self._rest = ""
        self._closed = False
        self._told: list[Delta] = []
        self._n_hidden = n_prefill
        self._attempt: list[str] | None = None
        self._n_calls = 0
        self._call_open = False
        self._space = ""
        self._bare = False
        self.thinks = False
        """Whether the script is inside of the reasoning; scripts say so."""

    # -- for the driver ------------------------------------------------------------------------------------------------

    def add(self, text: str) -> None:
        """More text."""
        self._rest += text

    def close(self) -> None:
        """There is no more text."""
        self._closed = True

    def told(self) -> list[Delta]:
        """The deltas since the last time."""
        told, self._told = self._told, []
        return told

    # -- taking text ---------------------------------------------------------------------------------------------------

    def peek(self, n: int) -> Steps[str]:
        """The next `n` characters, fewer at the end of the text; nothing is taken."""
        while len(self._rest) < n and not self._closed:
            yield
        return self._rest[:n]

    def take(self, n: int) -> str:
        """Take characters that are there already."""
        taken, self._rest = self._rest[:n], self._rest[n:]
        self._n_hidden = max(0, self._n_hidden - n)
        if self._attempt is not None:
            self._attempt.append(taken)
        return taken

    def _take_visible(self, n: int) -> str:
        """Take characters; those of them that are no prefill."""
        hidden = min(n, self._n_hidden)
        text = self.take(n)
        if text[:hidden].strip(SPACE):
            self._bare = False
        return text[hidden:]

    def match(self, *options: str) -> Steps[str]:
        """Take the longest of the options that comes next and return it, or nothing."""
        for option in sorted(options, key=len, reverse=True):
            if option and (yield from self.comes(option)):
                return self.take(len(option))
        return ""

    def comes(self, text: str) -> Steps[bool]:
        """Whether the text goes on with this; nothing is taken."""
        while len(self._rest) < len(text) and text.startswith(self._rest) and not self._closed:
            yield
        return self._rest.startswith(text)

    def comes_after_space(self, *options: str) -> Steps[str]:
        """Which of the options comes next, white space aside, the longest one first; nothing is taken."""
        ordered = sorted(options, key=len, reverse=True)
        while True:
            text = self._rest.lstrip(SPACE)
            for option in ordered:
                if text.startswith(option):
                    return option
                if option.startswith(text) and not self._closed:
                    break
            else:
                return ""
            yield

    def expect(self, text: str) -> Steps[None]:
        """Take this text. Raises BrokenCallError if another comes."""
        if text and not (yield from self.match(text)):
            raise BrokenCallError

    def space(self) -> Steps[str]:
        """Take white space, if any comes."""
        taken = ""
        while True:
            taken += self.take(len(self._rest) - len(self._rest.lstrip(SPACE)))
            if self._rest or self._closed:
                return taken
            yield

    def until(self, marks: Sequence[str], sink: Sink) -> Steps[str]:
        """Give text to `sink` up to the first of the marks, take that one and return it; empty if the text ends first.

        Where two marks begin at one place the longer one counts.
        """
        mark = yield from self.before(marks, sink)
        return self.take(len(mark))

    def before(self, marks: Sequence[str], sink: Sink) -> Steps[str]:
        """As `until`, but the mark stays."""
        while True:
            start, mark = _find(self._rest, tuple(marks), closed=self._closed)
            if visible := self._take_visible(start):
                sink(visible)
            if mark or self._closed:
                return mark
            yield

    def word(self, ends: str, sink: Sink | None = None) -> Steps[str]:
        """Take characters up to the first one of `ends`, which stays.

        Raises BrokenCallError at the end of the text; what there was of the word goes to `sink`.
        """
        n = 0
        while True:
            while n < len(self._rest):
                if self._rest[n] in ends:
                    return self.take(n)
                n += 1
            if self._closed:
                if sink is not None:
                    sink(self.take(n))
                raise BrokenCallError
            yield

    def text_until(self, *marks: str) -> Steps[str]:
        """The text up to the first of the marks, which is taken too. Raises BrokenCallError if none comes."""
        pieces: list[str] = []
        if not (yield from self.until(marks, pieces.append)):
            raise BrokenCallError
        return "".join(pieces)

    @property
    def rest(self) -> str:
        """The text that is there and was not taken; more may come."""
        return self._rest

    @property
    def at_end(self) -> bool:
        """Whether nothing is left; only true for certain after a step that waited for text."""
        return self._closed and not self._rest

    # -- telling -------------------------------------------------------------------------------------------------------

    def content(self, text: str) -> None:
        """Tell content. White space is held back until something follows it."""
        self._tell(text, Content)

    def content_of(self, n: int) -> None:
        """Take the next `n` characters, which are there, and tell them as content."""
        self.content(self._take_visible(n))

    def reasoning(self, text: str) -> None:
        """Tell reasoning, without white space around all of it."""
        self._tell(text, Reasoning)

    def begin(self, *, bare: bool) -> None:
        """A new part of the answer. `bare`: white space at its start is dropped."""
        self._space, self._bare = "", bare

    def drop_space(self) -> None:
        """Forget white space at the end of what was told last."""
        self._space = ""

    def keep_space(self) -> None:
        """Tell the white space at the end of the content."""
        if self._space and not self._bare:
            self._told.append(Content(self._space))
        self._space = ""

    def _tell(self, text: str, make: type[Content | Reasoning]) -> None:
        text = self._space + text
        self._space = ""
        if self._bare:
            text = text.lstrip(SPACE)
        solid = text.rstrip(SPACE)
        self._space = text[len(solid) :]
        if solid:
            self._bare = False
            self._told.append(make(solid))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def start_call(self, name: str, id: str = "") -> None:
        """A call begins. White space before it was no content."""
        self._space = ""
        self._told.append(CallStart(self._n_calls, name, id))
        self._n_calls += 1
        self._call_open = True

    def arguments(self, text: str) -> None:
        """More of its arguments."""
        if text:
            self._told.append(CallArguments(self._n_calls - 1, text))

    def argument_text(self, text: str) -> None:
        """More of a string in its arguments, whose quotes the script tells."""
        self.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def end_call(self) -> None:
        """It is complete."""
        self._told.append(CallEnd(self._n_calls - 1))
        self._call_open = False

    def attempt(self, opening: str, script: Steps[None]) -> Steps[bool]:
        """Run the script of one call, whose `opening` was taken already; False if it was none, and told as text.

        A call that was told of when the text ends stays without an end; of a tag that was not whole nothing is told.
        """
        self._attempt, self._call_open = [opening], False
        space = self._space
        try:
            yield from script
        except BrokenCallError:
            if self._call_open and self._closed:
                self.take(len(self._rest))
                return False
            if self._call_open:
                self._told.append(CallBroken(self._n_calls - 1))
                self._space = space
            self.content("".join(self._attempt))
            return False
        finally:
            self._attempt = None
        return True


class ScriptParser:
    """Implements `format.Parser` by a script."""

    def __init__(self, script: Callable[[Reader], Steps[None]], ask: Ask) -> None:
        self._reader = Reader(len(ask.prefill))
        self._steps = _whole(script, self._reader)
        self._running = True
        self._go(ask.prefill)

    @property
    def thinks(self) -> bool:
        """See Parser."""
        return self._reader.thinks

    def feed(self, text: str) -> list[Delta]:
        """See Parser."""
        self._go(text)
        return self._reader.told()

    def end(self) -> list[Delta]:
        """See Parser."""
        self._reader.close()
        self._go("")
        assert not self._running, "a script ends with its text"
        return self._reader.told()

    def _go(self, text: str) -> None:
        self._reader.add(text)
        if self._running:
            try:
                next(self._steps)
            except StopIteration:
                self._running = False


def _whole(script: Callable[[Reader], Steps[None]], reader: Reader) -> Steps[None]:
    """The script, and what it left of the text as content."""
    yield from script(reader)
    yield from reader.until((), reader.content)
    reader.keep_space()


@lru_cache(maxsize=256)
def _pattern(marks: tuple[str, ...]) -> Pattern[str]:
    return compile("|".join(escape(mark) for mark in sorted(marks, key=len, reverse=True)))


def _find(text: str, marks: tuple[str, ...], *, closed: bool) -> tuple[int, str]:
    """How many characters certainly come before the first mark, and the mark if it is there."""
    hit = _pattern(marks).search(text) if marks else None
    start, mark = (hit.start(), hit.group()) if hit else (len(text), "")
    if closed or not marks:
        return start, mark
    for place in range(max(0, len(text) - max(map(len, marks)) + 1), min(len(text), start + 1)):
        tail = text[place:]
        if any(len(other) > len(tail) and other.startswith(tail) for other in marks):
            return place, ""
    return start, mark
