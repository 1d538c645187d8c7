"""Run what recurses as deeply as its input is nested where the stack is large enough for that.

The grammar compiler is native and recursive: a chain of some thousand rules or definitions would overflow an ordinary
stack, and that ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SMALL = 8_000
"""Characters of a grammar that cannot be nested deeply enough to matter: a level takes at least ten."""

STACK = 512 * 1024 * 1024
"""Bytes, of which only what is touched becomes memory: 5 kB a level, for one that takes ten characters of a million."""

_stack_size = threading.Lock()


def run_deep(function: Callable[[], T], size: int) -> T:
    """The function's result or exception; `size` is the length of what it works on. Blocks."""
    if size < SMALL:
        return function()
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            failed.append(error)

    with _stack_size:
        before = threading.stack_size(STACK)
        try:
            thread = threading.Thread(target=run, name="minka-compile")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
