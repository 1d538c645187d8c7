from __future__ import annotations

from io import BytesIO

import pytest

from minka.terminal.reader import Line, LineReader, read_line


@pytest.mark.parametrize(
    ("typed", "multiline", "line"),
    [
        ("a", False, Line("a", more=False)),
        ("a\\", False, Line("a", more=True)),
        ("\\", False, Line("", more=True)),
        ("a\\\\", False, Line("a\\", more=True)),
        ("a", True, Line("a", more=True)),
        ("a\\", True, Line("a", more=False)),
        ("/help", True, Line("/help", more=False)),
    ],
)
def test_a_backslash_continues_a_message_or_ends_it(typed: str, multiline: bool, line: Line) -> None:
    assert read_line(typed, multiline=multiline, first=True) == line


def test_a_slash_further_down_is_no_command() -> None:
    assert read_line("/help", multiline=True, first=False).more


def read_all(data: bytes, *, multiline: bool = False) -> tuple[list[str], str]:
    """All messages of some input, and what was shown meanwhile."""
    shown: list[str] = []
    reader = LineReader(BytesIO(data), shown.append, multiline=multiline)
    found = []
    while True:
        try:
            found.append(reader.read())
        except EOFError:
            return found, "".join(shown)


def test_lines_are_messages() -> None:
    assert read_all(b"one\r\ntwo\\\nthree\n\nlast") == (["one", "two\nthree", "", "last"], "> > . > > > \n")


def test_a_message_that_the_input_breaks_off_still_counts() -> None:
    assert read_all(b"one\\\ntwo\\\n")[0] == ["one\ntwo"]
    assert read_all(b"one\ntwo\n", multiline=True)[0] == ["one\ntwo"]


def test_multiline_takes_lines_up_to_the_marked_one() -> None:
    assert read_all(b"one\n\ntwo\\\n/help\nthree\\\n", multiline=True)[0] == ["one\n\ntwo", "/help", "three"]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert read_all(b"caf\xe9\n")[0] == ["caf\ufffd"]


def test_ctrl_c_leaves_the_line() -> None:
    class Interrupted(BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise KeyboardInterrupt

    shown: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        LineReader(Interrupted(), shown.append, multiline=False).read()
    assert "".join(shown) == "> \n"
