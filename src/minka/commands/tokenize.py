"""Show the tokens of a text.

Only the vocabulary of the model is loaded. Flags and output are llama-tokenize's (llama.cpp).
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.errors import UsageError
from minka.params import LogParams, ModelParams, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minka.tools.tokenize_text import TextToken

_SOURCE = {"model", "hf_repo", "hf_file", "hf_token", "offline"}
"""What says which vocabulary; all else about a model is about its weights."""


def configure(parser: ArgumentParser) -> None:
    """The text, the output, the model and the log."""
    text = parser.add_argument_group("Text")
    text.add_argument("-p", "--prompt", metavar="TEXT", help="the text itself")
    file = "a file with the text, to its last byte; goes before -p"
    text.add_argument("-f", "--file", "-bf", "--binary-file", metavar="FILE", help=file)
    text.add_argument("--stdin", action="store_true", help="read the text from standard input; goes before -f and -p")
    escape = "process \\n, \\t and the like in the text (default); --no-escape leaves them as they are"
    text.add_argument("-e", "--escape", action="store_true", default=True, help=escape)
    text.add_argument("--no-escape", dest="escape", action="store_false", help="leave them as they are")
    text.add_argument("--no-bos", action="store_true", help="without the tokens that the model wants around a text")
    special = "read the names of control tokens as text"
    text.add_argument("--no-parse-special", dest="parse_special", action="store_false", help=special)
    output = parser.add_argument_group("Output")
    output.add_argument("--ids", action="store_true", help="print only the numbers, as a Python or JSON list")
    output.add_argument("--show-count", action="store_true", help="print the number of tokens as well")
    omitted = {row.name for row in rows(ModelParams)} - _SOURCE
    add_parameters(parser, ModelParams, LogParams, omit=omitted)
    add_llama_tool(parser)


def run(args: Namespace) -> int:
    """Tokenize and print."""
    from minka import logs
    from minka.tools.tokenize_text import TextTokenizer, unescape

    logs.configure(resolve(args, LogParams, os.environ))
    if not (args.stdin or args.file or args.prompt):
        raise UsageError("there is no text: give one with -p, with -f or with --stdin")
    text = None if args.stdin else _file(args.file) if args.file else os.fsencode(args.prompt)
    with TextTokenizer(resolve(args, ModelParams, os.environ)) as tokenizer:
        # Standard input is read last, so that a model that cannot be loaded is known before anything is typed.
        raw = sys.stdin.buffer.read() if text is None else text
        tokens = tokenizer(unescape(raw) if args.escape else raw, bos=not args.no_bos, parse_special=args.parse_special)
    sys.stdout.flush()
    sys.stdout.buffer.write(_list(tokens) if args.ids else b"".join(map(_line, tokens)))
    if args.show_count:
        sys.stdout.buffer.write(b"Total number of tokens: %d\n" % len(tokens))
    return 0


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the text {name}: {error.strerror or error}") from error


def _list(tokens: Sequence[TextToken]) -> bytes:
    return f"[{', '.join(str(token.id) for token in tokens)}]\n".encode()


def _line(token: TextToken) -> bytes:
    # llama-tokenize prints a C string: nothing behind a NUL.
    return b"%6d -> '%s'\n" % (token.id, token.piece.partition(b"\0")[0])


COMMAND = Command("tokenize", configure, run)
