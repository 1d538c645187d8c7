"""What a command line gives as its prompt: text, files, and what is piped in."""

from __future__ import annotations

import sys
from pathlib import Path

from minka.errors import UsageError
from minka.terminal.files import decode, read_bytes, read_stream, read_text, without_last_newline

NO_PROMPT = "there is no prompt: give one with -p, -f or -bf, or pipe it in"


def piped() -> bytes | None:
    """What comes from standard input if that is no terminal, None if it is one or is closed. Waits for its end."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    return read_stream(sys.stdin.buffer)


def piped_text() -> str:
    """What is piped in as text without its last newline; empty if there is nothing."""
    data = piped()
    return without_last_newline(decode(data, "standard input")) if data else ""


def message(prompt: str | None, file: str | None, rest: str) -> str:
    """A chat message of up to three parts, which blank lines part."""
    text = without_last_newline(read_text(Path(file), "the prompt file")) if file else ""
    return "\n\n".join(part for part in (prompt, text, rest) if part)


def system_message(text: str | None, file: str | None) -> str | None:
    """The system message of -sys or -sysf. Raises UsageError if both are given."""
    if text is not None and file is not None:
        raise UsageError("-sys and -sysf are both given; give one of them")
    if file is None:
        return text
    return without_last_newline(read_text(Path(file), "the system prompt file"))


def raw_prompt(
    prompt: str | None, file: str | None, binary_file: str | None, rest: bytes | None, *, needed: bool = True
) -> str:
    """The text to complete: all that is given, one after the other, with nothing in between.

    Bytes of a binary file that are no UTF-8 become U+FFFD. Raises UsageError if nothing at all is given, unless a
    prompt is not `needed`.
    """
    parts = [] if prompt is None else [prompt]
    if file is not None:
        instead = "; give it with -bf to have those bytes replaced"
        parts.append(without_last_newline(read_text(Path(file), "the prompt file", instead=instead)))
    if binary_file is not None:
        parts.append(read_bytes(Path(binary_file), "the prompt file").decode("utf-8", "replace"))
    if rest:
        parts.append(without_last_newline(decode(rest, "standard input")))
    if not parts and needed:
        raise UsageError(NO_PROMPT)
    return "".join(parts)
