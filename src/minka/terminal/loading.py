"""Loading a model in front of somebody: a progress bar on a terminal, silence elsewhere; Ctrl-C leaves at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from minka.runtime import Runtime, Settings, load


def load_model(settings: Settings) -> Runtime:
    """Load a model for one user: a single slot that has the whole context. Raises what `runtime.load` raises."""
    context = replace(settings.context, parallel=1, kv_unified=False, kv_unified_per_slot=0)
    settings = replace(settings, context=context)
    with _interrupts() as check, _bar() if sys.stderr.isatty() else nullcontext() as show:

        def progress(share: float) -> None:
            check()
            if show is not None:
                show(share)

        runtime = load(settings, progress)
        try:
            check()
        except KeyboardInterrupt:
            runtime.close()
            raise
        return runtime


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C is noted, and raised by the function that this yields: while C loads, Python code runs only in what it
    calls back (its log, its progress), and an exception that a signal raises there would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pressed: list[int] = []  # no Event: a second signal while the first sets it would wait for its lock for ever

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar() -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("loading the model"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # No thread of its own: the bar is drawn when there is something new, as the weights come.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    task = bar.add_task("load", total=1.0)

    def update(share: float) -> None:
        bar.update(task, completed=share)
        bar.refresh()

    with bar:
        yield update
