"""How far a command is: a bar with the time left on a terminal, a line now and then elsewhere. All of it on stderr.

Results go to stdout through the meter, which gets out of their way. Knows nothing of what is measured.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_SECONDS = 10.0
"""Seconds between two lines of progress in a log; work that is done sooner prints none."""


def clock_text(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Meter:
    """Counts `total` units of work; `quiet` shows nothing. Use it as a context manager, from one thread."""

    def __init__(
        self, unit: str, total: int, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unit, self._total, self._quiet = unit, total, quiet
        self._clock = clock
        self._start = self._last = clock()
        self._done = 0
        self._entries = ""
        self._in_line = False
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            # No thread redraws it: it would take a processor from what is measured.
            options = {"auto_refresh": False, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
            self._bar = Progress(*columns, console=Console(stderr=True), **options)  # type: ignore[arg-type]
            self._bar.add_task(self._unit, total=self._total)
            self._bar.start()
            self._bar.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._entries or self._in_line:
            print(self._entries, flush=True)

    def advance(self) -> None:
        """One more unit is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, refresh=True)
            return
        now = self._clock()
        if not self._quiet and now - self._last >= LINE_SECONDS and self._done < self._total:
            self._last = now
            left = (now - self._start) * (self._total - self._done) / self._done
            print(f"{self._done} of {self._total} {self._unit}, {clock_text(left)} left", file=sys.stderr, flush=True)

    def describe(self, text: str) -> None:
        """Show what is being done, if there is a bar."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=text, refresh=True)

    def print(self, text: str) -> None:
        """Print a line of results."""
        self.write(f"{text}\n")

    def write(self, text: str, out: TextIO | None = None) -> None:
        """Write results to stdout, or to another stream."""
        out = out or sys.stdout
        hidden = self._bar if out.isatty() else None
        if hidden is not None:
            hidden.stop()
        out.write(text)
        out.flush()
        if hidden is not None:
            hidden.start()
            hidden.refresh()

    def entry(self, text: str) -> None:
        """Print results one after another on a line, which ends with the work.

        Beside a bar they are kept until the line is full.
        """
        if self._bar is None or not sys.stdout.isatty():
            print(text, end="", flush=True)
            self._in_line = True
            return
        if len(self._entries) + len(text) > shutil.get_terminal_size().columns:
            full, self._entries = self._entries, ""
            self.print(full)
        self._entries += text
