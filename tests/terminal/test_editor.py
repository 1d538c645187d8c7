from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from minka.terminal.editor import MAX_ENTRY, Editor, history_path, open_history
from minka.terminal.slash import NAMES
from tests.terminal.keyboard import Terminal

ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def editor(*, multiline: bool = False, history: History | None = None) -> Editor:
    return Editor(history or InMemoryHistory(), NAMES, multiline=multiline, colors=True)


def typed(keyboard: PipeInput, keys: str, *, multiline: bool = False, draft: str = "") -> str:
    keyboard.send_text(keys)
    return editor(multiline=multiline).read(draft)


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f"hi{ENTER}", "hi"),
        (f"one\\{ENTER}two\\{ENTER}three{ENTER}", "one\ntwo\nthree"),
        (f"one{ALT_ENTER}two{ENTER}", "one\ntwo"),
        (f"{paste('def f():' + chr(13) + chr(10) + '    pass')} ?{ENTER}", "def f():\n    pass ?"),
        (f"{paste('one' + chr(10))}{ENTER}", "one\n"),
        (f"one\\{ENTER}{UP}X{ENTER}", "Xone\n"),
        (f"dropped{CTRL_C}kept{ENTER}", "kept"),
    ],
)
def test_enter_sends_and_a_backslash_continues(keyboard: PipeInput, keys: str, message: str) -> None:
    assert typed(keyboard, keys) == message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f"one{ENTER}two\\{ENTER}", "one\ntwo"),
        (f"{ENTER}two\\{ENTER}", "\ntwo"),
        (f"/help{ENTER}", "/help"),
        (f"one{ENTER}/help{ENTER}\\{ENTER}", "one\n/help\n"),
    ],
)
def test_in_multiline_mode_it_is_the_other_way_round(keyboard: PipeInput, keys: str, message: str) -> None:
    assert typed(keyboard, keys, multiline=True) == message


def test_a_draft_is_there_to_be_edited(keyboard: PipeInput) -> None:
    assert typed(keyboard, f"!{ENTER}", draft="hi") == "hi!"


def test_ctrl_c_with_nothing_typed_and_ctrl_d(keyboard: PipeInput) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(keyboard, CTRL_C)
    with pytest.raises(EOFError):
        typed(keyboard, CTRL_D)


def test_a_lone_surrogate_is_no_message(keyboard: PipeInput) -> None:
    assert typed(keyboard, ENTER, draft="a\udcffb") == "a?b"


def test_what_is_typed_ahead_is_for_the_next_message(keyboard: PipeInput) -> None:
    keyboard.send_text(f"one{ENTER}two{ENTER}")
    reader = editor()
    assert (reader.read(), reader.read()) == ("one", "two")


def test_the_history_is_kept_on_disk_for_its_owner_only(tmp_path: Path, keyboard: PipeInput) -> None:
    path = tmp_path / "state" / "history"
    keyboard.send_text(f"one\\{ENTER}two{ENTER}")
    editor(history=open_history(path)).read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(open_history(path).load_history_strings()) == ["one\ntwo"]
    keyboard.send_text(f"{UP}{ENTER}")
    assert editor(history=open_history(path)).read() == "one\ntwo"


def test_a_huge_message_is_not_kept(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history")
    history.store_string("x" * (MAX_ENTRY + 1))
    history.store_string("short")
    assert list(history.load_history_strings()) == ["short"]


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(open_history(tmp_path / "file" / "history"), InMemoryHistory)

    def full(_self: FileHistory, _string: str) -> None:
        raise OSError(28, "No space left on device")

    history = open_history(tmp_path / "history")
    monkeypatch.setattr(FileHistory, "store_string", full)
    history.store_string("lost, without an error")


def test_the_place_of_the_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "minka" / "chat-history"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "minka" / "chat-history"


READING = """
from prompt_toolkit.history import InMemoryHistory
from minka.terminal.editor import Editor
Editor(InMemoryHistory(), [], multiline=False, colors=False).read()
"""


@pytest.mark.parametrize("wait_ms", [0, 0.3, 1, 5, 50])
def test_a_request_to_terminate_gives_the_terminal_back(tmp_path: Path, wait_ms: float) -> None:
    """Whatever the event loop does when the signal comes."""
    (tmp_path / "reading.py").write_text(READING)
    with Terminal("reading", env=os.environ, cwd=tmp_path) as terminal:
        terminal.wait_prompt()
        assert not terminal.echoes
        time.sleep(wait_ms / 1e3)
        terminal.process.terminate()
        assert terminal.wait_end() == 143
        assert terminal.echoes
