"""A load test as a table for people and as JSON for programs. Knows nothing of how it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from minka.tools.bench_serve import Plan
from minka.tools.bench_spread import Level, Spread
from minka.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NUMBERS = ("tok/s", "req/s", "TTFT ms", "ITL ms", "latency s")
"""Columns with numbers; times have the 50th, 90th and 99th percentile."""


def label(url: str) -> str:
    """A short name of a server."""
    return urlsplit(url).netloc or url


def _number(value: float) -> str:
    """A number with about three digits."""
    if math.isnan(value):
        return "-"
    digits = next((n for n, least in enumerate((100, 10, 1)) if value >= least), 3)
    return f"{value:.{digits}f}"


def _spread(value: Spread, factor: float) -> str:
    return " / ".join(_number(factor * part) for part in (value.p50, value.p90, value.p99))


def row(level: Level) -> list[str]:
    """The numbers of a level as text, in the order of NUMBERS."""
    return [
        _number(level.output_per_second),
        _number(level.requests_per_second),
        _spread(level.ttft, 1000),
        _spread(level.itl, 1000),
        _spread(level.latency, 1),
    ]


def _ratio(better: float, worse: float) -> str:
    return f"{better / worse:.2f}x" if worse and not math.isnan(better / worse) else "-"


def _times(first: Spread, second: Spread) -> str:
    pairs = ((first.p50, second.p50), (first.p90, second.p90), (first.p99, second.p99))
    return " / ".join(_ratio(theirs, ours) for ours, theirs in pairs)


def comparison(first: Level, second: Level) -> list[str]:
    """How much better the first is, in the order of NUMBERS: over 1 it is faster, or waits less."""
    return [
        _ratio(first.output_per_second, second.output_per_second),
        _ratio(first.requests_per_second, second.requests_per_second),
        _times(first.ttft, second.ttft),
        _times(first.itl, second.itl),
        _times(first.latency, second.latency),
    ]


def by_clients(levels: Iterable[Level], urls: Sequence[str]) -> list[list[Level]]:
    """The levels with equal numbers of clients together, each group in the order of the servers."""
    groups: dict[int, list[Level]] = {}
    for level in levels:
        groups.setdefault(level.n_clients, []).append(level)
    return [sorted(group, key=lambda level: urls.index(level.url)) for group in groups.values()]


def table(levels: Sequence[Level], urls: Sequence[str], plan: Plan) -> Table:
    """The table of a load test; two servers are compared below each pair of rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    caption = "TTFT, ITL and latency: 50th / 90th / 99th percentile"
    if len(urls) == 2:
        caption += f"; ratios over 1 are in favour of {label(urls[0])}"
    title = f"{plan.dataset.name}, {plan.max_tokens} out"
    result = Table(title=title, caption=caption, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    result.add_column("clients", justify="right")
    result.add_column("server", overflow="fold")
    result.add_column("ok", justify="right")
    for name in NUMBERS:
        result.add_column(name, justify="right")
    for group in by_clients(levels, urls):
        for level in group:
            failed = f" ({len(level.errors)} failed)" if level.errors else ""
            result.add_row(str(level.n_clients), label(level.url), f"{len(level.done)}{failed}", *row(level))
        if len(group) == 2:
            result.add_row("", "ratio", "", *comparison(*group), style="bold", end_section=True)
    return result


def draw_table(console: Console, levels: Sequence[Level], urls: Sequence[str], plan: Plan) -> None:
    """Print the table."""
    console.print(table(levels, urls, plan))


def _spread_json(value: Spread) -> dict[str, float | None]:
    parts = {"mean": value.mean, "p50": value.p50, "p90": value.p90, "p99": value.p99}
    return {name: None if math.isnan(part) else round(1000 * part, 3) for name, part in parts.items()}


def level_json(level: Level) -> dict[str, object]:
    """A level as JSON; times of requests are in milliseconds."""
    return {
        "server": level.url,
        "clients": level.n_clients,
        "requests": len(level.done),
        "errors": level.errors,
        "seconds": round(level.seconds, 6),
        "prompt_tokens": level.n_prompt,
        "output_tokens": level.n_output,
        "requests_per_second": round(level.requests_per_second, 4),
        "output_tokens_per_second": round(level.output_per_second, 3),
        "total_tokens_per_second": round(level.total_per_second, 3),
        "ttft_ms": _spread_json(level.ttft),
        "itl_ms": _spread_json(level.itl),
        "latency_ms": _spread_json(level.latency),
    }


def to_json(levels: Sequence[Level], plan: Plan) -> dict[str, object]:
    """A whole load test as JSON."""
    return {
        "minka": VERSION,
        "dataset": plan.dataset.name,
        "max_tokens": plan.max_tokens,
        "api": plan.api,
        "seed": plan.seed,
        "levels": [level_json(level) for level in levels],
    }
