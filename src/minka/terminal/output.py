"""Where text goes: the model's, exactly as it is, and our own words beside it.

On a terminal control characters are shown, not sent: a model must not be able to move the cursor or to name the window.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

from minka.errors import MinkaError
from minka.types import Timings, Tokenizer

_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_DIM, _RED, _BOLD, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
_ERASE_LINE = "\r\x1b[2K"

NEARLY_FULL = 0.8
"""The share of the context over which its use is shown."""


def wants_colors(choice: str, *, terminal: bool) -> bool:
    """Whether to style text: `on`, `off`, or `auto`, which means on a terminal that does not say otherwise."""
    if choice != "auto":
        return choice == "on"
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """A stream for text, written as UTF-8 at once. Raises MinkaError if it cannot be written, but for a closed pipe."""

    def __init__(self, stream: BinaryIO, *, terminal: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._in_line = False

    def write(self, text: str) -> None:
        """Text of the model or the user."""
        self.send(text.translate(_VISIBLE) if self._terminal else text)

    def send(self, text: str) -> None:
        """Text as it is, styling included."""
        if not text:
            return
        self._in_line = not text.endswith("\n")
        try:
            self._stream.write(text.encode("utf-8", "replace"))
            self._stream.flush()
        except BrokenPipeError:
            raise  # nobody reads any more: the command line knows what to do
        except OSError as error:
            raise MinkaError(f"cannot write the output: {error.strerror or error}") from error

    def invite(self, text: str) -> None:
        """Text that somebody types behind: their Enter ends the line."""
        self.send(text)
        self._in_line = False

    def end_line(self) -> None:
        """Begin a new line, if the last one has anything in it."""
        if self._in_line:
            self.send("\n")

    def erase_line(self) -> None:
        """Empty the line that the cursor is in; for a terminal."""
        self.send(_ERASE_LINE)
        self._in_line = False


class Screen:
    """What somebody who chats sees. `colors` allows styles, `live` a status line that is overwritten."""

    def __init__(self, out: Output, *, colors: bool, live: bool) -> None:
        self._out = out
        self._colors = colors
        self._live = live
        self._has_status = False

    def answer(self, text: str) -> None:
        """A piece of the model's answer."""
        if text:
            self._erase_status()
            self._out.write(text)

    def status(self, text: str) -> None:
        """A line that the next output replaces; shown only where that can be done."""
        if self._live:
            self._has_status = True
            self._out.erase_line()
            self._out.send(self._styled(text, _DIM))

    def note(self, text: str) -> None:
        """Something beside the conversation."""
        self._line(text, _DIM)

    def title(self, text: str) -> None:
        """The first line of the screen."""
        self._line(text, _BOLD)

    def show(self, text: str) -> None:
        """Something that was asked for, such as help."""
        self._line(text, "")

    def error(self, text: str) -> None:
        """What went wrong."""
        self._line(text, _RED)

    def end_answer(self) -> None:
        """The answer is over: what follows begins on a line of its own."""
        self._erase_status()
        self._out.end_line()

    def space(self) -> None:
        """An empty line."""
        self.end_answer()
        self._out.send("\n")

    def _line(self, text: str, style: str) -> None:
        self.end_answer()
        self._out.send(self._styled(text.translate(_VISIBLE), style) + "\n")

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_RESET}" if self._colors and style else text

    def _erase_status(self) -> None:
        if self._has_status:
            self._has_status = False
            self._out.erase_line()


def timings_line(timings: Timings, n_past: int, n_ctx: int) -> str:
    """Speeds in tokens a second, and how full the context is once it matters.

    The first token comes with the prompt, so the generation's speed counts one token less.
    """
    # At least one token is computed again; its speed says nothing.
    prompt = (
        "cached" if timings.cache_n and timings.prompt_n <= 1 else f"{_rate(timings.prompt_n, timings.prompt_ms)} t/s"
    )
    parts = [f"Prompt: {prompt}", f"Generation: {_rate(timings.predicted_n - 1, timings.predicted_ms)} t/s"]
    return f"[ {' | '.join([*parts, *context_use(n_past, n_ctx)])} ]"


def context_use(n_past: int, n_ctx: int) -> list[str]:
    """How full the context is, if it is nearly full: one text, or none."""
    if n_past <= NEARLY_FULL * n_ctx:
        return []
    return [f"Context: {100 * n_past / n_ctx:.0f} % full ({n_past:,} of {n_ctx:,} tokens)"]


def _rate(count: int, milliseconds: float) -> str:
    return f"{count / milliseconds * 1e3:.1f}" if count > 0 and milliseconds > 0 else "-"


def token_table(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Every token of a prompt with its text, a line each, as `--verbose-prompt` prints it."""
    lines = [f"number of tokens in prompt = {len(tokens)}"]
    for token in tokens:
        text = tokenizer.piece(token, special=True).decode("utf-8", "replace")
        lines.append(f"{token:6d} -> {text!r}")
    return "\n".join(lines) + "\n"
