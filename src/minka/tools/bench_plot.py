"""A load test as a picture: an SVG that needs nothing else, or a PNG where a converter is installed.

Four panels over the number of clients: tokens per second, and three waiting times as a line (median), a thin line (90th
percentile) and a band up to the 99th. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from minka.errors import UsageError
from minka.ggufs.atomic import replacing
from minka.tools.bench_serve_report import label
from minka.tools.bench_spread import Level, Spread

WIDTH, HEIGHT = 960, 690
_PANEL_WIDTH, _PANEL_HEIGHT = 390, 215
_LEFT, _TOP = 70, 132
_GAP_X, _GAP_Y = 65, 78
_COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea")
_STYLE = """
:root { color-scheme: light dark }
svg { background: #ffffff; font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
text { fill: #334155 } .title { font-size: 20px; font-weight: 600; fill: #0f172a }
.head { font-size: 14px; font-weight: 600; fill: #0f172a } .muted { fill: #64748b; font-size: 12px }
.grid { stroke: #e2e8f0 } .axis { stroke: #94a3b8 } circle { stroke: #ffffff; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  svg { background: #0f172a } text { fill: #cbd5e1 } .title, .head { fill: #f8fafc } .muted { fill: #94a3b8 }
  .grid { stroke: #1e293b } .axis { stroke: #475569 } circle { stroke: #0f172a }
}
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows: a rate, or the spread of a time."""

    title: str
    unit: str
    rate: Callable[[Level], float] | None = None
    time: Callable[[Level], Spread] | None = None
    factor: float = 1.0

    def values(self, level: Level) -> tuple[float, ...]:
        """One value, or the 50th, 90th and 99th percentile."""
        if self.rate is not None:
            return (self.rate(level),)
        if self.time is None:
            return ()
        spread = self.time(level)
        return tuple(self.factor * value for value in (spread.p50, spread.p90, spread.p99))


PANELS = (
    Panel("Output of all clients", "tok/s", rate=lambda level: level.output_per_second),
    Panel("Time to first token", "ms", time=lambda level: level.ttft, factor=1000),
    Panel("Time between tokens", "ms", time=lambda level: level.itl, factor=1000),
    Panel("Time of a whole request", "s", time=lambda level: level.latency),
)


def ticks(highest: float) -> list[float]:
    """Round numbers from 0 up to the first that is not less than `highest`, four to seven of them."""
    if not highest > 0:
        return [0.0, 1.0]
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(highest / step * 0.999) + 1)]


def _tick_text(value: float) -> str:
    return f"{value:,.10g}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps clients and values to points of a panel."""

    x: float
    y: float
    clients: tuple[int, ...]
    top: float

    def at(self, n_clients: int, value: float) -> tuple[float, float]:
        """The point of a value. Levels are as far apart as they are many, whatever their numbers."""
        step = _PANEL_WIDTH / max(len(self.clients), 1)
        x = self.x + step * (self.clients.index(n_clients) + 0.5)
        return round(x, 1), round(self.y + _PANEL_HEIGHT * (1 - value / self.top), 1)


def plot_svg(levels: Sequence[Level], urls: Sequence[str], title: str) -> str:
    """The picture as SVG text. Levels in which no request was answered are left out."""
    shown = [level for level in levels if level.done]
    clients = tuple(sorted({level.n_clients for level in shown}))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="42">{escape(title)}</text>',
        *_legend(urls),
    ]
    for number, panel in enumerate(PANELS):
        x = _LEFT + (number % 2) * (_PANEL_WIDTH + _GAP_X)
        y = _TOP + (number // 2) * (_PANEL_HEIGHT + _GAP_Y)
        parts += _panel(panel, shown, urls, clients, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _legend(urls: Sequence[str]) -> Iterator[str]:
    x = float(_LEFT)
    for number, url in enumerate(urls):
        name = label(url)
        yield f'<rect x="{x}" y="61" width="22" height="5" rx="2.5" fill="{_COLORS[number % len(_COLORS)]}"/>'
        yield f'<text x="{x + 30}" y="68">{escape(name)}</text>'
        x += 62 + 7.5 * len(name)
    text = "line: median, thin line: 90th percentile, band: up to the 99th"
    yield f'<text class="muted" x="{WIDTH - 40}" y="68" text-anchor="end">{text}</text>'


def _panel(
    panel: Panel, levels: Sequence[Level], urls: Sequence[str], clients: tuple[int, ...], x: float, y: float
) -> Iterator[str]:
    marks = ticks(max((value for level in levels for value in panel.values(level) if value == value), default=0.0))
    scale = _Scale(x, y, clients, marks[-1])
    yield f'<text class="head" x="{x}" y="{y - 14}">{panel.title}, {panel.unit}</text>'
    for mark in marks:
        line = round(y + _PANEL_HEIGHT * (1 - mark / marks[-1]), 1)
        style = "axis" if mark == 0 else "grid"
        yield f'<line class="{style}" x1="{x}" x2="{x + _PANEL_WIDTH}" y1="{line}" y2="{line}"/>'
        yield f'<text class="muted" x="{x - 8}" y="{line + 4}" text-anchor="end">{_tick_text(mark)}</text>'
    for n_clients in clients:
        at = scale.at(n_clients, 0)[0]
        yield f'<text class="muted" x="{at}" y="{y + _PANEL_HEIGHT + 18}" text-anchor="middle">{n_clients}</text>'
    middle = x + _PANEL_WIDTH / 2
    yield f'<text class="muted" x="{middle}" y="{y + _PANEL_HEIGHT + 36}" text-anchor="middle">clients</text>'
    for number, url in enumerate(urls):
        own = sorted((level for level in levels if level.url == url), key=lambda level: level.n_clients)
        yield from _series(panel, own, scale, _COLORS[number % len(_COLORS)])


def _series(panel: Panel, levels: Sequence[Level], scale: _Scale, color: str) -> Iterator[str]:
    known = [(level, panel.values(level)) for level in levels]
    known = [(level, values) for level, values in known if all(value == value for value in values)]
    if not known:
        return
    lines = [[scale.at(level.n_clients, values[i]) for level, values in known] for i in range(len(known[0][1]))]
    if len(lines) == 3:
        outline = _points([*lines[0], *reversed(lines[2])])
        yield f'<polygon points="{outline}" fill="{color}" opacity="0.13"/>'
        yield f'<polyline points="{_points(lines[1])}" fill="none" stroke="{color}" stroke-width="1" opacity="0.6"/>'
    yield f'<polyline points="{_points(lines[0])}" fill="none" stroke="{color}" stroke-width="2.5"/>'
    for (level, values), (x, y) in zip(known, lines[0], strict=True):
        text = f"{label(level.url)}, {level.n_clients} clients: {values[0]:.4g} {panel.unit}"
        yield f'<circle cx="{x}" cy="{y}" r="4.5" fill="{color}"><title>{escape(text)}</title></circle>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def check_plot(path: Path) -> None:
    """Raises UsageError for a name that ends in something else than .svg and .png, or if there is nothing for PNG."""
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"a plot is an .svg or a .png file, not {path.name}")
    if path.suffix == ".png" and find_spec("cairosvg") is None:
        raise UsageError("a .png needs the package cairosvg (pip install cairosvg); an .svg needs nothing")
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} does not exist; create it first")


def write_plot(path: Path, svg: str) -> None:
    """Write the picture to an .svg or .png file. Raises MinkaError if the system refuses."""
    check_plot(path)
    picture: bytes = svg.encode()
    if path.suffix == ".png":
        picture = import_module("cairosvg").svg2png(bytestring=picture, scale=2)
    with replacing(path, force=True) as out:
        out.write(picture)
