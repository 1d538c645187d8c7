"""Sub-commands: what `minka lora export` is to `minka lora`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """A sub-command: `configure` declares its arguments, `run` does it and returns the exit code."""

    name: str
    summary: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def add_actions(parser: ArgumentParser, actions: Sequence[Action]) -> None:
    """Declare sub-commands, one of which must be given; `run_action` does it."""
    group = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    for action in actions:
        sub = group.add_parser(action.name, help=action.summary, description=action.summary)
        action.configure(sub)
        sub.set_defaults(action=action.run)


def run_action(args: Namespace) -> int:
    """Do the action that was asked for."""
    action: Callable[[Namespace], int] = args.action
    return action(args)
