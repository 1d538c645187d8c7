from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from minka.errors import UsageError
from minka.terminal import prompts


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_what_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"ol\xc3\xa9\n")
    assert prompts.piped_text() == "olé"
    pipe(monkeypatch, b"\xff")
    with pytest.raises(UsageError, match="standard input is no UTF-8"):
        prompts.piped_text()


@pytest.mark.parametrize("stdin", [_Terminal("never read"), None])
def test_a_terminal_and_a_closed_input_give_nothing(monkeypatch: pytest.MonkeyPatch, stdin: object) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert prompts.piped() is None
    assert prompts.piped_text() == ""


def test_a_message_has_up_to_three_parts(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("from a file\n")
    assert prompts.message("say", str(path), "piped") == "say\n\nfrom a file\n\npiped"
    assert prompts.message(None, None, "piped") == "piped"
    assert prompts.message(None, None, "") == ""


def test_the_system_message_has_one_source(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("from a file\n")
    assert prompts.system_message("text", None) == "text"
    assert prompts.system_message(None, str(path)) == "from a file"
    assert prompts.system_message(None, None) is None
    with pytest.raises(UsageError, match="give one of them"):
        prompts.system_message("text", str(path))


def test_a_raw_prompt_is_its_parts_with_nothing_in_between(tmp_path: Path) -> None:
    text, binary = tmp_path / "t", tmp_path / "b"
    text.write_bytes(b"two\n")
    binary.write_bytes(b"\r\nthree\xff\n")
    assert prompts.raw_prompt("one ", str(text), str(binary), b"four\n") == "one two\r\nthree\ufffd\nfour"
    assert prompts.raw_prompt("", None, None, b"") == ""


def test_a_raw_prompt_from_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no prompt"):
        prompts.raw_prompt(None, None, None, b"")
    path = tmp_path / "b"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="give it with -bf"):
        prompts.raw_prompt(None, str(path), None, None)
