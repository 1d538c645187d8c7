"""A program under a real pseudo-terminal: keys go in as from a keyboard, what appears is waited for, never slept."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 60.0
"""Seconds after which what does not appear is a failure: long, as a test machine may be busy."""

READY = b"\x1b[?2004h"
"""What prompt_toolkit sends when it begins to read."""

_ESCAPE = re.compile(rb"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
_OWN_TERMINAL = "import fcntl,os,sys,termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """Runs `python -m MODULE ARGS` with a terminal of its own as keyboard and screen, 40 lines of 200 columns."""

    def __init__(self, *args: str, env: Mapping[str, str], cwd: Path) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self._keyboard = slave
        # A session leader's first terminal becomes its own only if it asks for it; then Ctrl-C is a signal.
        command = [sys.executable, "-c", _OWN_TERMINAL, sys.executable, "-m", *args]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd, start_new_session=True
        )
        self._raw = b""
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._keyboard)

    @property
    def screen(self) -> str:
        """All that was written so far, without escape sequences."""
        return _plain(self._raw)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows typed lines by itself, as it should once the program is gone."""
        flags = termios.tcgetattr(self._keyboard)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait(self, text: str) -> str:
        """Wait until a text appears behind what was waited for before; returns what came up to its end."""
        return _plain(self._wait(lambda new: text in _plain(new), text))

    def wait_prompt(self) -> None:
        """Wait until the program reads keys."""
        self._wait(lambda new: READY in new, "prompt")

    def wait_end(self) -> int:
        """Wait until the program ends; its exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._read(end, "end")
        self._read_rest()
        return self.process.returncode

    def _wait(self, is_in: Callable[[bytes], bool], what: str) -> bytes:
        end = time.monotonic() + PATIENCE
        while not is_in(new := self._raw[self._at :]):
            assert self.process.poll() is None, f"the program ended before {what!r} came:\n{self.screen}"
            self._read(end, what)
        size = bisect_left(range(len(new)), x=True, key=lambda size: is_in(new[:size]))
        self._at += size
        return new[:size]

    def _read(self, end: float, what: str) -> None:
        assert time.monotonic() < end, f"{what!r} did not come:\n{self.screen}"
        if select.select([self._master], [], [], 0.1)[0]:
            self._raw += os.read(self._master, 65536)

    def _read_rest(self) -> None:
        while select.select([self._master], [], [], 0)[0]:
            self._raw += os.read(self._master, 65536)


def _plain(raw: bytes) -> str:
    return _ESCAPE.sub(b"", raw).decode("utf-8", "replace").replace("\r", "")
