from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from minka.errors import UsageError
from minka.tools.bench_plot import PANELS, check_plot, plot_svg, ticks, write_plot
from minka.tools.bench_requests import Sample
from minka.tools.bench_spread import Level

URLS = ["http://a<b>:1", "http://c:2"]
LEVELS = [
    Level(url, n, tuple(Sample(0.0, 1.0 + i, 0.1 * n, (0.01, 0.02 * n), 5, 10) for i in range(n)))
    for url in URLS
    for n in (1, 4, 16)
]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_is_xml_with_a_point_for_each_level_in_each_panel() -> None:
    root = ET.fromstring(plot_svg(LEVELS, URLS, "A & B"))
    assert root.get("aria-label") == "A & B"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"A & B", "a<b>:1", "c:2", "1", "4", "16"} <= set(texts)
    assert all(any(panel.title in str(text) for text in texts) for panel in PANELS)
    assert len(list(root.iter(f"{SVG}circle"))) == len(PANELS) * len(LEVELS)
    # Three panels of times have a band for each server.
    assert len(list(root.iter(f"{SVG}polygon"))) == 3 * len(URLS)


def test_points_lie_inside_their_panel_and_higher_for_more() -> None:
    root = ET.fromstring(plot_svg(LEVELS[:3], URLS[:1], "t"))
    circles = list(root.iter(f"{SVG}circle"))
    throughput = circles[:3]
    xs, ys = ([float(str(circle.get(axis))) for circle in throughput] for axis in ("cx", "cy"))
    assert xs == sorted(xs)
    rates = [level.output_per_second for level in LEVELS[:3]]
    assert sorted(range(3), key=lambda i: -ys[i]) == sorted(range(3), key=lambda i: rates[i])
    assert all(0 < float(str(circle.get("cy"))) < 690 for circle in circles)


def test_levels_without_answers_are_left_out() -> None:
    empty = Level(URLS[0], 2, (Sample(0.0, 1.0, error="no"),))
    root = ET.fromstring(plot_svg([empty], URLS[:1], "t"))
    assert not list(root.iter(f"{SVG}circle"))


def test_a_level_without_gaps_has_no_point_among_the_gaps() -> None:
    one = Level(URLS[0], 1, (Sample(0.0, 1.0, 0.5, (), 5, 1),))
    root = ET.fromstring(plot_svg([one], URLS[:1], "t"))
    assert len(list(root.iter(f"{SVG}circle"))) == len(PANELS) - 1


@pytest.mark.parametrize(
    ("highest", "marks"),
    [
        (10, [0, 2, 4, 6, 8, 10]),
        (11, [0, 2.5, 5, 7.5, 10, 12.5]),
        (0.003, [0, 0.001, 0.002, 0.003]),
        (1234, [0, 250, 500, 750, 1000, 1250]),
        (0, [0, 1]),
        (float("nan"), [0, 1]),
    ],
)
def test_ticks_are_round(highest: float, marks: list[float]) -> None:
    assert ticks(highest) == pytest.approx(marks)
    assert ticks(highest)[-1] >= (highest if highest == highest else 0)


def test_an_svg_is_written_as_it_is(tmp_path: Path) -> None:
    write_plot(tmp_path / "a.svg", "<svg/>")
    assert (tmp_path / "a.svg").read_text() == "<svg/>"


def test_a_png_needs_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minka.tools.bench_plot.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install cairosvg"):
        check_plot(tmp_path / "a.png")


def test_a_converter_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = ModuleType("cairosvg")

    def svg2png(*, bytestring: bytes, scale: int) -> bytes:
        return b"PNG of " + bytestring

    converter.svg2png = svg2png  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cairosvg", converter)
    monkeypatch.setattr("minka.tools.bench_plot.find_spec", lambda name: converter)
    write_plot(tmp_path / "a.png", "<svg/>")
    assert (tmp_path / "a.png").read_bytes() == b"PNG of <svg/>"


def test_other_names_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"an \.svg or a \.png"):
        check_plot(tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="does not exist"):
        check_plot(tmp_path / "nowhere" / "a.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        write_plot(tmp_path / "folder.svg", "<svg/>")
