from __future__ import annotations

import json
from pathlib import Path

import pytest

from minka.chat.messages import Message, TextPart, ToolCall
from minka.errors import MinkaError, UsageError
from minka.terminal import files
from minka.terminal.files import Transcript, load_conversation, read_text, save_conversation

TALK = (
    Message("system", "Sé breve."),
    Message("user", (TextPart("one"), TextPart("two"))),
    Message("assistant", None, tool_calls=(ToolCall("c1", "add", '{"a":1}'),), reasoning_content="hm"),
    Message("tool", "3", tool_call_id="c1", name="add"),
    Message("assistant", "  exactly\twhat \x1b[1m\ufffd\r\n\n the model wrote 🙂\n"),
)


def test_a_saved_conversation_comes_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, TALK, "tiny")
    assert load_conversation(path) == TALK
    assert json.loads(path.read_text())["model"] == "tiny"


def test_an_empty_conversation_can_be_saved_and_loaded(tmp_path: Path) -> None:
    save_conversation(tmp_path / "e.json", (), "tiny")
    assert load_conversation(tmp_path / "e.json") == ()


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, TALK, "tiny")
    save_conversation(path, TALK[:2], "tiny")
    assert load_conversation(path) == TALK[:2]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"my notes", b"", b"{}"])
def test_saving_never_replaces_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="exists and is no saved conversation"):
        save_conversation(path, TALK, "tiny")
    assert path.read_bytes() == content


def test_saving_to_a_bad_place_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        save_conversation(tmp_path, TALK, "tiny")
    with pytest.raises(UsageError, match=r"folder .*none does not exist"):
        save_conversation(tmp_path / "none" / "x", TALK, "tiny")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, TALK, "tiny")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MinkaError, match="No space left on device"):
        save_conversation(path, TALK[:1], "tiny")
    assert load_conversation(path) == TALK
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    ['[{"role":"user","content":"hi"}]', '{"model":"m","messages":[{"role":"user","content":"hi"}]}'],
)
def test_messages_of_other_programs_can_be_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert load_conversation(path) == (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"notes", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"3", "Expected 'messages' to be an array"),
        (b'{"messages":[{"role":"king","content":""}]}', "Unknown role"),
        (b'{"format":"minka-conversation","version":9}', "another version"),
        (b"\xff\xfe", "no UTF-8 text"),
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=says):
        load_conversation(path)


def test_reading_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfol\xc3\xa9\n")
    assert read_text(path, "the file") == "olé\n"
    with pytest.raises(UsageError, match=r"cannot read the file .*none: No such file"):
        read_text(tmp_path / "none", "the file")
    with pytest.raises(UsageError, match="Is a directory"):
        read_text(tmp_path, "the file")
    path.write_bytes(b"ab\xffc")
    with pytest.raises(UsageError, match=r"no UTF-8 text \(byte 2\); do this"):
        read_text(path, "the file", instead="; do this")
    with pytest.raises(UsageError, match="larger than 0 MiB"):
        read_text(path, "the file", limit=3)


@pytest.mark.parametrize(("text", "result"), [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", "")])
def test_one_newline_is_dropped(text: str, result: str) -> None:
    assert files.without_last_newline(text) == result


def test_a_transcript_grows_by_whole_answers(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    transcript = Transcript(path)
    transcript.add("hi", "hello")
    assert path.read_text() == "User:\nhi\n\nAssistant:\nhello\n\n"
    transcript.add("", "hello again")
    assert path.read_text() == "User:\nhi\n\nAssistant:\nhello\n\nAssistant:\nhello again\n\n"
    assert list(tmp_path.iterdir()) == [path]


def test_no_transcript_without_a_path() -> None:
    Transcript(None).add("hi", "hello")
