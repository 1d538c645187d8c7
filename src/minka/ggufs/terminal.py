"""Progress and questions on a terminal: a bar with the time left, plain lines in a log, a YES before a risk.

Progress goes to stderr, so that results on stdout stay clean. Knows no command.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from minka.errors import UsageError
from minka.ggufs.dump import human_size
from minka.ggufs.progress import Progress

LINE_SECONDS = 5.0
"""Seconds between two lines of progress in a log; work that is done sooner prints none."""


class PlainProgress:
    """Progress as a line every few seconds, for a log or a pipe."""

    def __init__(self, label: str, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._out = out
        self._clock = clock
        self._start = self._last = clock()

    def __call__(self, done: int, total: int) -> None:
        """Print a line if the last one is old enough."""
        now = self._clock()
        if now - self._last < LINE_SECONDS or not done:
            return
        self._last = now
        left = (now - self._start) * (total - done) / done
        print(
            f"{self._label}: {100 * done / total:.0f} % ({human_size(done)} of {human_size(total)}), {left:.0f} s left",
            file=self._out,
            flush=True,
        )


@contextlib.contextmanager
def show_progress(label: str) -> Iterator[Progress]:
    """A callback for long work: a bar that vanishes when it is done on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield PlainProgress(label, sys.stderr)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def draw(picture: Callable[[Console], None]) -> None:
    """Print what `picture` draws: fitted to a terminal, or as unwrapped lines without colour elsewhere."""
    if sys.stdout.isatty():
        picture(Console())
        return
    console = Console(width=1000, no_color=True, highlight=False)
    with console.capture() as captured:
        picture(console)
    for line in captured.get().splitlines():
        print(line.rstrip())


def confirm(risk: str) -> bool:
    """Ask for YES on a terminal.

    Raises:
        UsageError: nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{risk}; give --force to do it without being asked")
    print(f"{risk}.", file=sys.stderr)
    return input("Type YES to go on: ").strip() == "YES"
