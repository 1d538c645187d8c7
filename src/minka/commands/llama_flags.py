"""The command lines of llama.cpp's programs: flags that have no row in the table of a command, but must be known.

Each is accepted without effect, because it has none there either or asks for what Minka does anyway, or it is refused
by name with what to do instead.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence

from minka.commands.placement import device_list
from minka.errors import UsageError
from minka.params import (
    GROUPS,
    IGNORED,
    UNSUPPORTED,
    CacheParams,
    ContextParams,
    Foreign,
    GenerationParams,
    HardwareParams,
    Kind,
    LoraParams,
    ModelParams,
    Row,
    SamplingParams,
    foreign,
    rows,
)
from minka.version import VERSION

_SERVER_ONLY = {"alias", "tags", "init_without_apply", "kv_unified_per_slot", "cont_batching"}
_GENERATION = {"n_predict", "n_keep", "grammar", "grammar_file", "json_schema", "json_schema_file", "escape"}
_PROMPT = (foreign("-p", "--prompt"), foreign("-f", "--file"), foreign("-bf", "--binary-file"))
_IGNORED_BY_TOOLS = {"-dt", "-fit", "-fitt", "-fitc", "--spec-draft-type-k", "--spec-draft-type-v"}
_REFUSED_BY_TOOLS = {"-cl", "--rpc", "-mu", "-dr", "--mmap", "--no-mmap", "--mlock", "-dio"}
"""The first spellings of what llama.cpp's tools have in common."""


class _Ignore(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, nargs: int | None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def __call__(self, *_: object) -> None:
        """Do nothing."""


class Refuse(argparse.Action):
    """A flag of llama.cpp that Minka does not have: an error, but for the values that ask for nothing."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, foreign: Foreign) -> None:
        nargs = foreign.values if foreign.values != 1 else None
        super().__init__(option_strings, argparse.SUPPRESS, nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.foreign = foreign

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Raise UsageError."""
        if option_string not in self.foreign.negated and values not in self.foreign.off:
            raise UsageError(f"{option_string} is a llama.cpp flag that {self.foreign.note}")


class _Aside(argparse.Action):
    """Print what `made` makes, and end as --help does: nothing else is done."""

    def __init__(self, option_strings: Sequence[str], dest: str, made: Callable[[], str], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self._made = made

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Print and end."""
        print(self._made())
        parser.exit()


def _bash_script() -> str:
    from minka.commands.bash_completion import script

    return script()


def add_llama_server(parser: ArgumentParser) -> None:
    """Know every flag of llama-server that is not declared yet."""
    _add_asides(parser)
    for other in IGNORED:
        ignore(parser, other)
    for other in UNSUPPORTED:
        refuse(parser, other)


def add_llama_tool(parser: ArgumentParser) -> None:
    """Know the flags that llama.cpp's tools have in common and that are not declared yet.

    Those of sampling, for example, mean nothing to a tool that samples nothing, there as here.
    """
    _add_asides(parser)
    for row in _common_rows():
        flags = (*row.param.flags, *row.param.negated, *(flag for also in row.param.also for flag in also.flags))
        ignore(parser, foreign(*flags, values=0 if row.type is Kind.BOOL else row.param.n_values))
    for other in (*_PROMPT, *IGNORED, *UNSUPPORTED):
        if other in _PROMPT or other.flags[0] in _IGNORED_BY_TOOLS:
            ignore(parser, other)
        elif other.flags[0] in _REFUSED_BY_TOOLS:
            refuse(parser, other)


def _common_rows() -> Iterator[Row]:
    """The rows that every tool of llama.cpp knows."""
    for cls in (ModelParams, HardwareParams, LoraParams, ContextParams, SamplingParams):
        yield from (row for row in rows(cls) if row.param.flags and not row.param.own and row.name not in _SERVER_ONLY)
    yield from (row for row in rows(GenerationParams) if row.name in _GENERATION)
    yield from (row for row in rows(CacheParams) if row.name == "context_shift")


def ignore(parser: ArgumentParser, other: Foreign) -> None:
    """Accept a flag without effect, as far as it is not declared yet."""
    if flags := _undeclared(parser, (*other.flags, *other.negated)):
        parser.add_argument(*flags, action=_Ignore, nargs=other.values if other.values != 1 else None)


def refuse(parser: ArgumentParser, other: Foreign) -> None:
    """Refuse a flag by name, as far as it is not declared yet."""
    if flags := _undeclared(parser, (*other.flags, *other.negated)):
        parser.add_argument(*flags, action=Refuse, foreign=other)


def _undeclared(parser: ArgumentParser, flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag not in parser._option_string_actions]


def _add_asides(parser: ArgumentParser) -> None:
    """What ends the command at once."""
    if not _undeclared(parser, ("--usage",)):
        return
    parser.add_argument("--usage", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"minka {VERSION}", help="print the version")
    text = "print a script that completes the flags of all commands in bash"
    parser.add_argument("--completion-bash", action=_Aside, made=_bash_script, help=text)
    title = GROUPS[HardwareParams]
    group = next((group for group in parser._action_groups if group.title == title), parser)
    add_list_devices(group)


def add_list_devices(group: argparse._ActionsContainer) -> None:
    """The flag that lists the devices."""
    group.add_argument("--list-devices", action=_Aside, made=device_list, help="list the devices and exit")
