"""What a command is, and how the commands are found: by looking at the files, without importing any.

A command is a module of this package with a constant COMMAND. The first line of its docstring is its summary.
"""

from __future__ import annotations

import ast
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `configure` declares its arguments, `run` does it and returns the exit code.

    `run` may raise any MinkaError: the command line prints it as one line and exits with the class's code.
    """

    name: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that was found and is not imported yet. `name` is the module's, with dashes."""

    name: str
    module: str
    summary: str

    def load(self) -> Command:
        """Import the module and return its command."""
        command = import_module(self.module).COMMAND
        if not isinstance(command, Command):
            raise TypeError(f"{self.module}.COMMAND is no Command")
        return command


def summary(source: str) -> str:
    """The first line of a module's docstring, without parsing what follows it; empty if there is none."""
    end = source.find('"""', 3)
    head = ast.parse(source[: end + 3] if source.startswith('"""') and end > 0 else source)
    return (ast.get_docstring(head) or "").partition("\n")[0].strip()


def discover(directory: Path | None = None, package: str = "minka.commands") -> tuple[Entry, ...]:
    """The commands among the modules of a package, sorted by name. Nothing is imported."""
    found = []
    for path in sorted((directory or Path(__file__).parent).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"^COMMAND\b", source, re.MULTILINE):
            found.append(Entry(path.stem.replace("_", "-"), f"{package}.{path.stem}", summary(source)))
    return tuple(found)
