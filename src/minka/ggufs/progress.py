"""How long work tells its caller how far it is. Knows no terminal: the command draws the bar."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then from the thread that does the work; must return fast."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are through; the last call of a job has `done == total`."""


def silent(done: int, total: int) -> None:
    """The default: say nothing."""


class Meter:
    """Adds up the bytes of one job and passes the sum on."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total = total
        self.done = 0
        self._progress = progress
        progress(0, total)

    def add(self, n: int) -> None:
        """Note that `n` more bytes are through."""
        self.done += n
        self._progress(self.done, self.total)
