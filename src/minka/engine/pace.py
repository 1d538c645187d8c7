"""How fast jobs end, as a running mean: what a client that is turned away needs to know."""

from __future__ import annotations

import math
from dataclasses import dataclass

_NEW = 0.1
"""Weight of a new interval in the mean."""
_LONGEST = 300
"""Seconds; nobody is sent away for longer."""


@dataclass(slots=True)
class Pace:
    """Time between the ends of two jobs, in seconds; 0 is unknown."""

    interval: float = 0.0
    last: float = 0.0

    def ended(self, now: float) -> None:
        """A job ended."""
        if self.last:
            new = now - self.last
            self.interval = new if not self.interval else (1 - _NEW) * self.interval + _NEW * new
        self.last = now

    def retry_after(self, n_waiting: int) -> int:
        """Whole seconds after which a tenth of those who wait are likely to be served; at least 1."""
        return min(_LONGEST, max(1, math.ceil(self.interval * max(1.0, n_waiting / 10))))
