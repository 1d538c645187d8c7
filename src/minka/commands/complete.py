"""Go on from a text: write what a model makes of a prompt, as it comes, without a chat template.

The prompt is what -p, -f and -bf give and what is piped in, one after the other. Standard output gets the prompt and
the model's text and nothing else. Ctrl-C ends the text and keeps what is there.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve
from minka.commands.chat import start_log, unescaped
from minka.commands.command import Command
from minka.commands.settings import GROUPS, settings
from minka.errors import UsageError
from minka.params import LogParams
from minka.terminal.options import OMITTED, CompleteOptions, QuietParams

if TYPE_CHECKING:
    from minka.runtime import Runtime, Settings
    from minka.terminal.answer import Answer
    from minka.terminal.output import Output

_TEMPLATE = ("jinja", "chat_template", "chat_template_file", "chat_template_kwargs")


def configure(parser: ArgumentParser) -> None:
    """The flags of the prompt and the output, then those of the model; none of a chat template."""
    omit = (*OMITTED, *_TEMPLATE)
    add_parameters(parser, CompleteOptions, *GROUPS, QuietParams, LogParams, omit=omit, llama_server=True)


def run(args: Namespace) -> int:
    """Complete one prompt."""
    from minka.ggufs.atomic import replacing
    from minka.terminal import prompts
    from minka.terminal.loading import load_model
    from minka.terminal.output import Output, timings_line

    options, log = resolve(args, CompleteOptions, os.environ), start_log(args)
    if options.conversation:
        raise UsageError("-cnv is a conversation, which is another command: minka chat")
    wanted = _without_template(settings(args))
    given = unescaped(options.prompt, escape=wanted.generation.escape)
    prompt = prompts.raw_prompt(given, options.file, options.binary_file, prompts.piped())
    with ExitStack() as stack:
        copy = stack.enter_context(replacing(Path(options.output), force=True)) if options.output else None
        runtime = stack.enter_context(closing(load_model(wanted)))
        out = Output(sys.stdout.buffer, terminal=sys.stdout.isatty())
        shown = prompt if options.display_prompt else ""
        answer = _complete(runtime, prompt, shown, out, options, special=wanted.chat.special)
        if copy is not None:
            copy.write((shown + answer.text).encode("utf-8", "replace"))
        if sys.stdout.isatty():
            out.end_line()
        if log.verbose:
            print(timings_line(answer.timings, answer.n_past, runtime.served.n_ctx), file=sys.stderr)
    return answer.exit_code


def _without_template(wanted: Settings) -> Settings:
    """The settings with a template that surely works: none is used here, and a broken one must not be in the way."""
    return replace(wanted, chat=replace(wanted.chat, jinja=True, chat_template="chatml", chat_template_file=None))


def _complete(
    runtime: Runtime, prompt: str, shown: str, out: Output, options: CompleteOptions, *, special: bool
) -> Answer:
    from minka.chat.prompt import prompt_tokens
    from minka.terminal.answer import Stopper, all_tokens, make_job, run_job
    from minka.terminal.output import token_table
    from minka.terminal.tuning import Tuning

    served = runtime.served
    tokens = prompt_tokens(prompt, served.tokenizer)
    if options.verbose_prompt:
        sys.stderr.write(token_table(tokens, served.tokenizer))
    preserved = all_tokens(served.tokenizer) if special else frozenset[int]()
    job = make_job("complete", tokens, Tuning(served.sampling, served.generation), preserved=preserved)
    with Stopper() as stopper:
        out.write(shown)
        return run_job(runtime.engine, job, out.write, stopper)


COMMAND = Command("complete", configure, run)
