from __future__ import annotations

import logging
import struct

import pytest

from minka.errors import UsageError
from minka.tools.scoring_input import parse_hellaswag, parse_multiple_choice, parse_winogrande
from tests.tools.texts import choice_file, hellaswag_file, winogrande_file


def test_hellaswag_has_a_context_and_four_endings() -> None:
    lines = [b"A man sits", b"2", b"down.", b"up.", b"there.", b"well."]
    (task,) = parse_hellaswag(b"\n".join(lines), 400)
    assert task.texts == (b"A man sits down.", b"A man sits up.", b"A man sits there.", b"A man sits well.")
    assert task.right == {2}
    assert task.heads == ()
    assert parse_hellaswag(b"\n".join(lines) + b"\n", 400) == [task]


def test_hellaswag_takes_random_tasks() -> None:
    all_tasks = parse_hellaswag(hellaswag_file(), 400)
    assert len(all_tasks) == 8
    assert parse_hellaswag(hellaswag_file(), 3) == all_tasks[:3]


@pytest.mark.parametrize("data", [b"", b"one line", b"\n".join([b"x"] * 7)])
def test_hellaswag_with_another_number_of_lines_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="6"):
        parse_hellaswag(data, 400)


def test_hellaswag_names_the_line_of_a_bad_label() -> None:
    with pytest.raises(UsageError, match=r"line 2 .*'7'"):
        parse_hellaswag(b"\n".join([b"c", b"7", b"a", b"b", b"c", b"d"]), 400)


def test_winogrande_fills_the_blank(caplog: pytest.LogCaptureFixture) -> None:
    data = b'0,Ann met _ there.,Bo,Cy,2\n1,"Ann, who saw _, left.",Bo,Cy,1\nx\n3,no blank,a,b,1\n4,a _ b,c,d,7\n'
    with caplog.at_level(logging.WARNING):
        first, second = parse_winogrande(data, 0)
    assert first.texts == (b"Ann met Bo there.", b"Ann met Cy there.")
    assert first.right == {1}
    assert first.heads == (b"Ann met Bo", b"Ann met Cy")
    assert second.texts == (b"Ann, who saw Bo, left.", b"Ann, who saw Cy, left.")
    assert second.right == {0}
    assert len(caplog.messages) == 3
    assert all("skipped" in message for message in caplog.messages)


def test_winogrande_leaves_out_what_follows_the_last_line_end() -> None:
    assert len(parse_winogrande(b"0,a _ b,c,d,1\n1,a _ b,c,d,2", 0)) == 1
    with pytest.raises(UsageError, match="no task"):
        parse_winogrande(b"0,a _ b,c,d,1", 0)


def test_winogrande_takes_random_tasks() -> None:
    every, some = parse_winogrande(winogrande_file(), 0), parse_winogrande(winogrande_file(), 4)
    assert len(every) == 10
    assert len(some) == 4
    assert all(task in every for task in some)
    assert some != every[:4]


def test_multiple_choice_reads_the_first_list() -> None:
    every = parse_multiple_choice(choice_file(), 0)
    assert len(every) == 8
    assert all(len(task.right) == 1 for task in every)
    assert every[0].texts[0].startswith(b"Q: ")
    assert b"? A: " in every[0].texts[0]
    some = parse_multiple_choice(choice_file(), 3)
    assert len(some) == 3
    assert all(task in every for task in some)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<I", 0),
        struct.pack("<I", 2**31),
        struct.pack("<III", 2, 12, 12),
        struct.pack("<IIII", 1, 8, 5, 99) + b"hello",
        choice_file()[:-3],
        struct.pack("<II", 1, 8) + struct.pack("<I", 1) + b"q" + struct.pack("<II", 101, 0),
    ],
)
def test_a_multiple_choice_file_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="multiple-choice"):
        parse_multiple_choice(data, 0)
