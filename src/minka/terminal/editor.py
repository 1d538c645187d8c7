"""The reader for a terminal: line editing, many lines in one message, pasted text as it is, a history on disk."""

from __future__ import annotations

import logging
import os
import signal
import sys
import termios
from asyncio import Future
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from minka.terminal.reader import MORE, PROMPT, read_line

log = logging.getLogger("minka.chat")

MAX_ENTRY = 20_000
"""Characters of a message that the history keeps; a longer one was pasted and would only bloat the file."""


def history_path() -> Path:
    """The file of typed messages, in the folder where the user's programs keep their state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "minka" / "chat-history"


class _DiskHistory(FileHistory):
    """A history file that only its owner can read, and that a full disk does not turn into an error."""

    def store_string(self, string: str) -> None:
        if len(string) > MAX_ENTRY:
            return
        try:
            super().store_string(string)
        except OSError as error:
            log.warning("the message history cannot be written to %s: %s", self.filename, error.strerror)


def open_history(path: Path) -> History:
    """The history in a file that is made if need be; one in memory if that cannot be."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        log.warning("messages are not remembered: %s cannot be opened (%s)", path, error.strerror)
        return InMemoryHistory()
    return _DiskHistory(str(path))


class Editor:
    """Implements `reader.Reader` with prompt_toolkit."""

    def __init__(self, history: History, commands: Sequence[str], *, multiline: bool, colors: bool) -> None:
        self._multiline = multiline
        self._style = "bold ansigreen" if colors else ""
        words = [f"/{name}" for name in commands]
        self._session: PromptSession[str] = PromptSession(
            history=history,
            multiline=True,
            key_bindings=self._bindings(),
            prompt_continuation=lambda _width, _line, _wrap: self._prompt(MORE),
            completer=WordCompleter(words, sentence=True),
            complete_while_typing=False,
            enable_suspend=True,
        )

    def read(self, draft: str = "") -> str:
        """See Reader."""
        with self._terminable():
            text = self._session.prompt(self._prompt(PROMPT), default=draft)
        # Bytes that are no UTF-8 come as lone surrogates, which have no place in a message.
        return text.encode("utf-8", "replace").decode()

    @contextmanager
    def _terminable(self) -> Iterator[None]:
        """A request to terminate ends the reading from within. An exception that a signal raises just anywhere in the
        event loop would pass by what gives the terminal back."""
        app = self._session.app

        def leave(number: int, _frame: FrameType | None) -> None:
            if app.loop is None or app.future is None or app.future.done():
                sys.exit(128 + number)
            app.loop.call_soon_threadsafe(end, app.future, 128 + number)

        def end(reading: Future[str], code: int) -> None:
            if not reading.done():
                app.exit(exception=SystemExit(code))

        before = signal.signal(signal.SIGTERM, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """See Reader: the terminal does not echo."""
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        silent = list(before)
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(keyboard, termios.TCSANOW, silent)
        try:
            yield
        finally:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)

    def _prompt(self, text: str) -> StyleAndTextTuples:
        return [(self._style, text)]

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        bindings.add("enter")(self._enter)
        bindings.add("escape", "enter")(self._new_line)
        bindings.add("c-c")(self._interrupt)
        return bindings

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.complete_state = None
        before, _, last = buffer.text.rpartition("\n")
        is_first = "\n" not in buffer.text
        line = read_line(last, multiline=self._multiline, first=is_first)
        if not line.more or line.text != last:
            buffer.text = line.text if is_first else f"{before}\n{line.text}"
            buffer.cursor_position = len(buffer.text)
        if line.more:
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @staticmethod
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @staticmethod
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")
