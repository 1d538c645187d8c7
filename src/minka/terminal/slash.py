"""The commands of the chat: what a line that begins with a slash means, and the help that lists them.

Only reads lines; the loop does what they say.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minka.errors import UsageError


@dataclass(frozen=True, slots=True)
class Slash:
    """A command: its name, what follows the name (in brackets: or nothing), what it does."""

    name: str
    argument: str
    doc: str

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.argument}".rstrip()


_COMMANDS = (
    Slash("help", "", "show this list"),
    Slash("regen", "", "answer the last message again"),
    Slash("clear", "", "forget the conversation, keep the system message"),
    Slash("system", "[TEXT]", 'set the system message; "" removes it, nothing shows it'),
    Slash("read", "FILE", "send a text file along with the next message"),
    Slash("set", "[NAME [VALUE]]", "change a sampling or generation parameter; nothing lists those that differ"),
    Slash("save", "FILE", "write the conversation to a file (JSON)"),
    Slash("load", "FILE", "go on with a conversation from a file"),
    Slash("exit", "", "leave (also /quit and Ctrl-D)"),
)
_ALIASES = {"quit": "exit", "?": "help"}

COMMANDS: Mapping[str, Slash] = MappingProxyType({command.name: command for command in _COMMANDS})
"""Every command by its name."""

NAMES = (*COMMANDS, "quit")
"""All names that can be typed, without the slash."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command as it was typed; `argument` is what follows the name, without the spaces around it."""

    name: str
    argument: str


def read_order(line: str) -> Order | None:
    """The command on a line, None if the line is a message.

    Raises UsageError, with a hint, for an unknown command, a missing argument, or one too many.
    """
    if not line.startswith("/"):
        return None
    word, _, rest = line[1:].partition(" ")
    word, argument = word.rstrip("\n"), rest.strip()
    command = COMMANDS.get(_ALIASES.get(word.lower(), word.lower()))
    if command is None:
        raise UsageError(_unknown(word))
    if argument and not command.argument:
        raise UsageError(f"/{word} takes nothing behind it")
    if command.argument and not argument and not command.argument.startswith("["):
        raise UsageError(f"/{word} needs something behind it: {command.usage}")
    return Order(command.name, argument)


def _unknown(word: str) -> str:
    near = difflib.get_close_matches(word.lower(), NAMES, 1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists all"
    shown = word if len(word) <= 20 else word[:20] + "..."
    return f"there is no command /{shown}; {hint} (a message that begins with / needs a space in front)"


def help_text(names: str) -> str:
    """The list of commands; `names` are the parameters that /set knows, with commas in between."""
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"  {command.usage:<{width}}  {command.doc}" for command in COMMANDS.values()]
    return "\n".join([*lines, "", *textwrap.wrap(f"/set knows {names}", 78)])


def unquoted(argument: str) -> str:
    """An argument without the quotes around it, if it has any."""
    if len(argument) >= 2 and argument[0] == argument[-1] and argument[0] in "\"'":
        return argument[1:-1]
    return argument
