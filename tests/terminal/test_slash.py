from __future__ import annotations

import pytest

from minka.errors import UsageError
from minka.terminal.slash import COMMANDS, NAMES, Order, help_text, read_order, unquoted


@pytest.mark.parametrize("line", ["hello", "", " /clear", "a /clear"])
def test_a_line_without_a_slash_in_front_is_a_message(line: str) -> None:
    assert read_order(line) is None


@pytest.mark.parametrize(
    ("line", "order"),
    [
        ("/clear", Order("clear", "")),
        ("/CLEAR  ", Order("clear", "")),
        ("/quit", Order("exit", "")),
        ("/exit", Order("exit", "")),
        ("/?", Order("help", "")),
        ("/set", Order("set", "")),
        ("/set temperature 0.2", Order("set", "temperature 0.2")),
        ("/system", Order("system", "")),
        ("/system You are\na poet.", Order("system", "You are\na poet.")),
        ("/save my file.json", Order("save", "my file.json")),
        ("/regen\n", Order("regen", "")),
    ],
)
def test_commands(line: str, order: Order) -> None:
    assert read_order(line) == order


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/sav x", "did you mean /save"),
        ("/etc/passwd", "/help lists all"),
        ("/", "there is no command /;"),
        ("/clear all", "/clear takes nothing"),
        ("/save", r"/save FILE"),
        ("/read  ", r"/read FILE"),
    ],
)
def test_a_bad_command_gets_a_hint(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_order(line)


def test_an_unknown_command_says_how_to_send_it_as_a_message() -> None:
    with pytest.raises(UsageError, match="needs a space in front"):
        read_order("/usr is a folder")


def test_the_help_has_every_command_and_the_parameters() -> None:
    text = help_text("temperature, top_k")
    assert all(command.usage in text for command in COMMANDS.values())
    assert "temperature, top_k" in text


def test_every_name_is_a_command() -> None:
    arguments = {"save": " f", "load": " f", "read": " f"}
    assert all(read_order(f"/{name}{arguments.get(name, '')}") for name in NAMES)


@pytest.mark.parametrize(("text", "plain"), [('""', ""), ("' a'", " a"), ('"', '"'), ("a", "a"), ("'a\"", "'a\"")])
def test_unquoted(text: str, plain: str) -> None:
    assert unquoted(text) == plain
