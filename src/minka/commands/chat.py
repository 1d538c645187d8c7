"""Talk to a model at the terminal, or have it answer one message.

Without a message it is a conversation: type, read, go on; /help lists the commands. With -p, -f or piped text it writes
the answer to standard output and exits. The model runs in this process; there is no server.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from minka.commands.arguments import add_parameters, default_text, parse_bool, parse_text, resolve, unescape
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_server, add_llama_tool
from minka.commands.settings import GROUPS, settings
from minka.errors import UsageError
from minka.params import Kind, LogParams, Row
from minka.terminal.options import OMITTED, ChatOptions, QuietParams
from minka.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minka.runtime import Runtime, Settings
    from minka.terminal.answer import ModelResponder
    from minka.terminal.output import Output, Screen
    from minka.terminal.reader import Reader


def configure(parser: ArgumentParser) -> None:
    """The flags of the conversation, then those of the model."""
    add_parameters(parser, ChatOptions, *GROUPS, QuietParams, LogParams, omit=OMITTED)
    add_llama_server(parser)
    add_llama_tool(parser)


def run(args: Namespace) -> int:
    """Hold a conversation, or answer one message."""
    options, log = resolve(args, ChatOptions, os.environ), start_log(args)
    return hold(options, settings(args), verbose=log.verbose)


def hold(options: ChatOptions, wanted: Settings, *, verbose: bool) -> int:
    """Hold the conversation that the options describe, or answer their message. The exit code."""
    from minka.terminal import prompts
    from minka.terminal.files import check_place
    from minka.terminal.loading import load_model

    is_typed = options.simple_io or (sys.stdin is not None and sys.stdin.isatty())
    is_asked = options.prompt is not None or options.file is not None
    goes_on = options.conversation or (is_typed and not is_asked)
    rest = "" if goes_on or (options.simple_io and is_asked) else prompts.piped_text()
    escape = wanted.generation.escape
    first = prompts.message(unescaped(options.prompt, escape=escape), options.file, rest)
    system = prompts.system_message(unescaped(options.system_prompt, escape=escape), options.system_prompt_file)
    if not first and not goes_on:
        raise UsageError("there is no message: give one with -p or -f, or pipe it in")
    if options.output:
        check_place(Path(options.output))
    with closing(load_model(wanted)) as runtime:
        if goes_on:
            return _converse(runtime, options, first, system, special=wanted.chat.special)
        return _answer(runtime, options, first, system, special=wanted.chat.special, verbose=verbose)


def start_log(args: Namespace) -> LogParams:
    """Set up a log that only warns unless it is told otherwise, on standard error whatever its form."""
    from dataclasses import replace

    from minka import logs

    params = replace(resolve(args, LogParams, os.environ), verbosity=resolve(args, QuietParams, os.environ).level)
    logs.configure(params, sys.stderr)
    return params


def unescaped(text: str | None, *, escape: bool) -> str | None:
    """A text of the command line with its escapes processed, if they are to be."""
    return unescape(text) if text is not None and escape else text


class FlagSpelling:
    """Implements `tuning.Spelling`: values are written as behind a flag, and bools as in a variable."""

    def parse(self, row: Row, text: str) -> object:
        """See Spelling."""
        if row.type is Kind.BOOL:
            return parse_bool(text)
        if row.param.escapes:
            text = unescape(text)
        if row.param.skip_empty and not text:
            return ()
        return parse_text(row, text)

    def show(self, row: Row, value: object) -> str:
        """See Spelling."""
        if row.type is Kind.BIASES:
            pairs = cast("tuple[tuple[int, float], ...]", value)
            return ", ".join(f"{token}{bias:+g}" for token, bias in pairs)
        return default_text(row._replace(default=value))


def _responder(runtime: Runtime, options: ChatOptions, *, special: bool) -> ModelResponder:
    from minka.terminal.answer import ModelResponder
    from minka.terminal.output import token_table

    tokenizer = runtime.served.tokenizer

    def look(tokens: Sequence[int]) -> None:
        sys.stderr.write(token_table(tokens, tokenizer))

    return ModelResponder(
        runtime.engine, runtime.served, special=special, look=look if options.verbose_prompt else None
    )


def _answer(
    runtime: Runtime, options: ChatOptions, text: str, system: str | None, *, special: bool, verbose: bool
) -> int:
    """Answer one message on standard output."""
    from minka.terminal.answer import Stopper
    from minka.terminal.conversation import Conversation
    from minka.terminal.files import Transcript
    from minka.terminal.output import Output, timings_line
    from minka.terminal.tuning import Tuning

    out = Output(sys.stdout.buffer, terminal=sys.stdout.isatty())
    transcript = Transcript(Path(options.output) if options.output else None)
    tuning = Tuning(runtime.served.sampling, runtime.served.generation)
    asked = Conversation(system).asked(text)
    with Stopper() as stopper:
        answer = _responder(runtime, options, special=special).answer(asked.messages, tuning, out.write, stopper)
        out.end_line()
        transcript.add(text, answer.text)
    if verbose:
        print(timings_line(answer.timings, answer.n_past, runtime.served.n_ctx), file=sys.stderr)
    return answer.exit_code


def _converse(runtime: Runtime, options: ChatOptions, first: str, system: str | None, *, special: bool) -> int:
    from minka.terminal.chat import Chat, Manners
    from minka.terminal.files import Transcript
    from minka.terminal.output import Output, Screen, wants_colors
    from minka.terminal.tuning import Tuning

    served = runtime.served
    is_terminal = sys.stdout.isatty()
    is_simple = options.simple_io or not is_terminal or not sys.stdin.isatty() or os.environ.get("TERM") == "dumb"
    colors = not options.simple_io and wants_colors(options.color, terminal=is_terminal)
    out = Output(sys.stdout.buffer, terminal=is_terminal)
    screen = Screen(out, colors=colors, live=not is_simple)
    chat = Chat(
        _responder(runtime, options, special=special),
        _reader(out, options, simple=is_simple, colors=colors),
        screen,
        FlagSpelling(),
        Tuning(served.sampling, served.generation),
        system=system,
        model=served.model.name,
        transcript=Transcript(Path(options.output) if options.output else None),
        manners=Manners(options.single_turn, options.show_timings),
    )
    _greet(screen, runtime, system)
    return chat.run(first)


def _reader(out: Output, options: ChatOptions, *, simple: bool, colors: bool) -> Reader:
    if simple:
        from minka.terminal.reader import LineReader

        return LineReader(sys.stdin.buffer, out.invite, multiline=options.multiline)
    from minka.terminal.editor import Editor, history_path, open_history
    from minka.terminal.slash import NAMES

    return Editor(open_history(history_path()), NAMES, multiline=options.multiline, colors=colors)


def _greet(screen: Screen, runtime: Runtime, system: str | None) -> None:
    served = runtime.served
    screen.title(f"Minka {VERSION}: {served.model.name} ({served.model.description})")
    screen.note(f"context {served.n_ctx:,} tokens{', with a system message' if system else ''}")
    screen.note("/help lists the commands; \\ at the end of a line goes on; Ctrl-C stops an answer, Ctrl-D leaves")
    screen.space()


COMMAND = Command("chat", configure, run)
