"""How much one rendering of a chat template may cost, counted as it runs.

A template comes out of a model file that anybody may have made, so its loops, its strings and its memory are bounded.
The module counts; it knows nothing of Jinja.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from jinja2.exceptions import TemplateRuntimeError

STEP_COST = 1000
"""Work of one loop turn or call, where copying one byte is 1."""

ELEMENT_SIZE = 16
"""What an element of a list or mapping counts, in characters of a text."""

CHECK_EVERY = 1 << 20
"""Work between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rendering: characters of any one value and of the prompt, bytes made in all, seconds of CPU."""

    n_chars: int = 16 << 20
    n_bytes: int = 1 << 30
    cpu_s: float = 10.0


class LimitError(TemplateRuntimeError):
    """A template asked for more than its budget."""


class Budget:
    """What is left of the limits. CPU time is the calling thread's, so a busy machine shortens nobody's budget."""

    __slots__ = ("_bytes_left", "_deadline", "_limits", "_work_left")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes_left = limits.n_bytes
        self._work_left = CHECK_EVERY
        self._deadline = time.thread_time() + limits.cpu_s

    def step(self, cost: int = STEP_COST) -> None:
        """Count work. Raises LimitError once the CPU time is used up."""
        self._work_left -= cost
        if self._work_left > 0:
            return
        self._work_left = CHECK_EVERY
        if time.thread_time() > self._deadline:
            raise LimitError(f"it ran for more than {self._limits.cpu_s:g} s of CPU time")

    def expect(self, n_chars: int) -> None:
        """Ask before a value of about this size is made. Raises LimitError if it would be over the limit."""
        if n_chars > self._limits.n_chars:
            raise LimitError(f"it makes a value of more than {self._limits.n_chars} characters")

    def made(self, value: object) -> None:
        """Count a value that was made: its memory is charged, whether or not the template keeps it."""
        if isinstance(value, str):
            self.expect(len(value))
            size = sys.getsizeof(value)
        elif isinstance(value, (list, tuple, dict)):
            size = ELEMENT_SIZE * len(value)
            self.expect(size)
        else:
            return
        self.step(size)
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise LimitError(f"it makes more than {self._limits.n_bytes} bytes of text")

    def weigh(self, value: object) -> int:
        """About how many characters a value has as text, with everything in it, and with repeats counted again.

        Lists that hold the same list twice, a few levels deep, are the classic way to make text without end, so this
        is asked before any of them is turned into text or compared.
        """
        total = 0
        todo = [value]
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, (list, tuple)):
                total += ELEMENT_SIZE * len(item)
                self.expect(total)
                todo.extend(item)
            elif isinstance(item, Mapping):
                total += ELEMENT_SIZE * len(item)
                self.expect(total)
                todo.extend(item.keys())
                todo.extend(item.values())
        self.expect(total)
        self.step(total)
        return total
