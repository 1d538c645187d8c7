"""The `minka` command: finds the command that is asked for, imports only that one, runs it, and prints its error.

Knows no command by what it does. Exit codes: 0 done, 2 a command line or request that cannot be obeyed, 1 any other
error, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Sequence

from minka.commands.command import Entry, discover
from minka.errors import MinkaError, UsageError
from minka.version import VERSION

SECTIONS = {
    "Run a model": ("serve", "chat", "complete", "batch", "tts"),
    "Get and prepare models": ("download", "convert", "quantize", "imatrix", "lora", "cvector"),
    "Measure": ("bench", "batched-bench", "perplexity", "fit"),
    "Look inside": ("gguf", "tokenize", "detokenize", "devices", "info"),
}
"""Headings of `minka --help`. A command that is in none of them is listed under the last heading, `More`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `minka` with these arguments (of the process, if None) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and texts of models may be no valid Unicode
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return code


def _dispatch(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help":
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(discover()))
        return 0 if words else UsageError.exit_code
    if words[0] in ("-V", "--version", "version"):
        print(f"minka {VERSION}")
        return 0
    name, arguments = words[0], words[1:]
    try:
        return _run(_find(name), arguments)
    except MinkaError as error:
        print(f"minka {name}: {error}", file=sys.stderr)
        return error.exit_code


def _find(name: str) -> Entry:
    entries = {entry.name: entry for entry in discover()}
    if name not in entries:
        near = difflib.get_close_matches(name, entries, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no such command; {meant}`minka --help` lists all commands")
    return entries[name]


def _run(entry: Entry, arguments: list[str]) -> int:
    from minka.commands.arguments import Parser

    command = entry.load()
    parser = Parser(prog=f"minka {entry.name}", description=sys.modules[entry.module].__doc__)
    command.configure(parser)
    try:
        namespace = parser.parse_args(arguments)
    except SystemExit as end:  # argparse's way to end after --help and --version
        return int(end.code or 0)
    return command.run(namespace)


def overview(entries: Sequence[Entry]) -> str:
    """The text of `minka --help`: the commands with their summaries, under headings."""
    known = {name: heading for heading, names in SECTIONS.items() for name in names}
    lines = ["usage: minka COMMAND [options]", "", "Serve, chat with and prepare GGUF models."]
    width = max((len(entry.name) for entry in entries), default=0)
    for heading in (*SECTIONS, "More"):
        found = [entry for entry in entries if known.get(entry.name, "More") == heading]
        order = SECTIONS.get(heading, ())
        found.sort(key=lambda entry: order.index(entry.name) if entry.name in order else len(order))
        if found:
            lines += ["", f"{heading}:", *(f"  {entry.name:<{width}}  {entry.summary}" for entry in found)]
    lines += ["", "`minka COMMAND --help` shows the options of a command, `minka --version` the version."]
    return "\n".join(lines)
