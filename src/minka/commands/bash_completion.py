"""A bash script that completes the names of all commands and their flags, as their parsers have them.

Words that are neither are completed as names of files. Reading the script: `source <(minka serve --completion-bash)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from minka.commands.arguments import Parser
from minka.commands.command import discover

_SCRIPT = """\
_minka() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{cases}
    esac
    if [[ -n $words && ( $COMP_CWORD == 1 || $words != -* || $word == -* ) ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        COMPREPLY=()
    fi
}}
complete -o default -F _minka minka"""


def script() -> str:
    """The script."""
    lists = dict(_words())
    # The longest first: bash takes the first pattern that fits.
    cases = [f'        "{name} "*) words="{" ".join(lists[name])}" ;;' for name in sorted(lists, key=len, reverse=True)]
    cases.append(f'        " ") words="{" ".join(entry.name for entry in discover())}" ;;')
    return _SCRIPT.format(cases="\n".join(cases))


def _words() -> Iterator[tuple[str, list[str]]]:
    """What may follow each command and each action of one: actions, or flags."""
    for entry in discover():
        parser = Parser(prog=entry.name)
        entry.load().configure(parser)
        actions = {name: sub for action in parser._actions for name, sub in _actions(action).items()}
        yield entry.name, [*actions, *_flags(parser)]
        for name, sub in actions.items():
            yield f"{entry.name} {name}", _flags(sub)


def _actions(action: argparse.Action) -> dict[str, argparse.ArgumentParser]:
    return dict(action.choices) if isinstance(action, argparse._SubParsersAction) else {}


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """The flags that the help shows."""
    known = parser._option_string_actions.items()
    return sorted(flag for flag, action in known if action.help is not argparse.SUPPRESS)
