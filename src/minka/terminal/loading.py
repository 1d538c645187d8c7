"""Loading a model in front of somebody: a progress bar on a terminal, silence elsewhere; Ctrl-C leaves at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from minka.runtime import Runtime, Settings, load


def load_model(settings: Settings) -> Runtime:
    """Load a model for one user: a single slot that has the whole context. Raises what `runtime.load` raises."""
    context = replace(settings.context, parallel=1, kv_unified=False, kv_unified_per_slot=0)
    settings = replace(settings, context=context)
    if not sys.stderr.isatty():
        return load(settings)
    with _bar() as progress:
        return load(settings, progress)


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
