"""How far many prompts are: a bar on a terminal, nothing elsewhere. No thread redraws it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, *, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Yields what is to be told how many prompts are done. `shown` None: if stderr is a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task("prompts", total=total)
    with bar:
        yield lambda done: bar.update(task, completed=done, refresh=True)
