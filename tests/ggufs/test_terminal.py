from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from minka.errors import UsageError
from minka.ggufs.read import open_gguf
from minka.ggufs.tables import print_dump
from minka.ggufs.terminal import LINE_SECONDS, PlainProgress, confirm, draw, show_progress
from tests.ggufs.files import Raw, write_raw


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_few_seconds() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress("hashing", out, clock=lambda: now[0])
    for second in range(13):
        now[0] = float(second)
        progress(second * 2**20, 20 * 2**20)
    assert LINE_SECONDS == 5.0
    assert out.getvalue() == (
        "hashing: 25 % (5 MiB of 20 MiB), 15 s left\nhashing: 50 % (10 MiB of 20 MiB), 10 s left\n"
    )


def test_short_work_prints_nothing_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("x") as progress:
        progress(1, 2)
        progress(2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with show_progress("hashing") as progress:
        progress(50, 100)
        progress(100, 100)
    assert "hashing" in terminal.getvalue()
    assert "100/100 bytes" in terminal.getvalue()


def test_lines_outside_a_terminal_are_neither_wrapped_nor_padded(capsys: pytest.CaptureFixture[str]) -> None:
    def picture(console: Console) -> None:
        console.print("x" * 300)
        console.print("y   ")

    draw(picture)
    assert capsys.readouterr().out == "x" * 300 + "\ny\n"


@pytest.mark.parametrize(("answer", "expected"), [("YES\n", True), ("yes\n", False), ("\n", False)])
def test_a_risk_needs_yes(monkeypatch: pytest.MonkeyPatch, answer: str, expected: bool) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    assert confirm("it may break") is expected


def test_nobody_to_ask_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("YES\n"))
    with pytest.raises(UsageError, match="it may break; give --force"):
        confirm("it may break")


@pytest.mark.timeout(30)
def test_a_long_table_is_printed_at_once(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw(f"t{i}", (1,), 0, b"") for i in range(6000)])
    console = Console(file=io.StringIO(), width=1000)
    with open_gguf(path) as source, console.capture() as captured:
        print_dump(console, source)
    assert "5999  t5999  1  F32  4 B" in captured.get()
