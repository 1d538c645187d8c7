from __future__ import annotations

import io
import sys

import pytest

from minka.commands.meter import LINE_SECONDS, Meter, clock_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_log_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Meter("chunks", 4, clock=lambda: now[0]) as meter:
        for _ in range(4):
            now[0] += LINE_SECONDS * 0.75
            meter.describe("not shown")
            meter.advance()
    assert capsys.readouterr().err == "2 of 4 chunks, 0:15 left\n"


def test_what_is_done_soon_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("chunks", 2) as meter:
        meter.advance()
        meter.print("result")
        meter.entry("[1]")
        meter.entry("[2]")
    assert capsys.readouterr() == ("result\n[1][2]\n", "")


def test_on_a_terminal_results_stand_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    with Meter("tests", 2) as meter:
        meter.describe("pp512 run 1/5")
        meter.print("| a row |")
        meter.advance()
    text = screen.getvalue()
    assert "pp512 run 1/5" in text
    assert "1/2" in text
    assert "\x1b[2K| a row |\n" in text  # the bar is gone before the row comes


def test_entries_beside_a_bar_come_as_full_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    with Meter("chunks", 10) as meter:
        for i in range(10):
            meter.entry(f"[{i}]12.3456,")
            meter.advance()
    assert screen.getvalue().splitlines() == [
        "[0]12.3456,[1]12.3456,[2]12.3456,",
        "[3]12.3456,[4]12.3456,[5]12.3456,",
        "[6]12.3456,[7]12.3456,[8]12.3456,",
        "[9]12.3456,",
    ]


def test_a_quiet_meter_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Meter("tests", 2, quiet=True) as meter:
        meter.describe("x")
        meter.advance()
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")])
def test_times_are_minutes_and_seconds(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
