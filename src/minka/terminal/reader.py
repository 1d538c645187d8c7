"""Where messages come from, one after another: the rules of continued lines, and a reader for plain lines.

The reader with line editing is in editor.py, as it takes long to import.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO, NamedTuple, Protocol

PROMPT, MORE = "> ", ". "


class Reader(Protocol):
    """Reads what the user types."""

    def read(self, draft: str = "") -> str:
        """The next message; `draft` is there to be edited, where that is possible.

        Raises EOFError when there is no more, KeyboardInterrupt for Ctrl-C where nothing was typed.
        """

    def hushed(self) -> AbstractContextManager[None]:
        """While an answer is written: what is typed meanwhile is kept for the next message and does not mix with it."""


class Line(NamedTuple):
    """One typed line: its text without the backslash of a continuation, and whether the message goes on."""

    text: str
    more: bool


def read_line(line: str, *, multiline: bool, first: bool) -> Line:
    """A backslash at the end continues a message or, with `multiline`, ends it. A command is a single line anyway."""
    text, is_marked = line.removesuffix("\\"), line.endswith("\\")
    if multiline and first and line.startswith("/") and not is_marked:
        return Line(line, more=False)
    return Line(text, more=is_marked != multiline)


class LineReader:
    """Reads lines as they are, for pipes and limited terminals. `show` prints what invites to type."""

    def __init__(self, stream: BinaryIO, show: Callable[[str], None], *, multiline: bool) -> None:
        self._stream = stream
        self._show = show
        self._multiline = multiline

    def read(self, draft: str = "") -> str:
        """See Reader; a draft cannot be edited here and is dropped."""
        lines: list[str] = []
        while True:
            raw = self._next(MORE if lines else PROMPT)
            if not raw:
                self._show("\n")
                if lines:
                    return "\n".join(lines)
                raise EOFError
            typed = raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
            line = read_line(typed, multiline=self._multiline, first=not lines)
            lines.append(line.text)
            if not line.more:
                return "\n".join(lines)

    def hushed(self) -> AbstractContextManager[None]:
        """See Reader; here whatever reads the keyboard decides what is shown."""
        return nullcontext()

    def _next(self, invitation: str) -> bytes:
        self._show(invitation)
        try:
            return self._stream.readline()
        except KeyboardInterrupt:
            self._show("\n")
            raise
