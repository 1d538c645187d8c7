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
    from minka.terminal.prompt_cache import PromptCache
    from minka.types import Token

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
    wanted = _without_template(settings(args))
    _check(options, wanted)
    given, cached = unescaped(options.prompt, escape=wanted.generation.escape), options.prompt_cache is not None
    if cached:
        wanted = _for_prompt_cache(wanted)
    prompt = prompts.raw_prompt(given, options.file, options.binary_file, prompts.piped(), needed=not cached)
    with ExitStack() as stack:
        copy = stack.enter_context(replacing(Path(options.output), force=True)) if options.output else None
        runtime = stack.enter_context(closing(load_model(wanted)))
        out = Output(sys.stdout.buffer, terminal=sys.stdout.isatty())
        answer = _complete(runtime, prompt, out, options, wanted)
        if copy is not None:
            copy.write(answer.text.encode("utf-8", "replace"))
        if sys.stdout.isatty():
            out.end_line()
        if log.verbose:
            print(timings_line(answer.timings, answer.n_past, runtime.served.n_ctx), file=sys.stderr)
    return answer.exit_code


def _without_template(wanted: Settings) -> Settings:
    """The settings with a template that surely works: none is used here, and a broken one must not be in the way."""
    return replace(wanted, chat=replace(wanted.chat, jinja=True, chat_template="chatml", chat_template_file=None))


def _for_prompt_cache(wanted: Settings) -> Settings:
    """The settings with the attention of llama-completion, on which the layout of the values in its files depends."""
    context = wanted.context
    return replace(wanted, context=replace(context, flash_attn="on")) if context.flash_attn == "auto" else wanted


def _check(options: CompleteOptions, wanted: Settings) -> None:
    if options.conversation or options.interactive:
        flag = "-cnv" if options.conversation else "-i"
        raise UsageError(f"{flag} is a conversation, which is another command: minka chat")
    if options.prompt_cache is None and (options.prompt_cache_all or options.prompt_cache_ro):
        raise UsageError("--prompt-cache-all and --prompt-cache-ro need a file: --prompt-cache FILE")
    if options.prompt_cache is not None and wanted.lora.files:
        raise UsageError("--prompt-cache and --lora exclude each other: the file does not tell what computed its text")
    if options.prompt_cache and not Path(options.prompt_cache).expanduser().parent.is_dir():
        raise UsageError(f"the folder of the prompt cache {options.prompt_cache} does not exist; create it first")


def _prompt_cache(runtime: Runtime, options: CompleteOptions, wanted: Settings) -> PromptCache | None:
    if not options.prompt_cache:
        return None
    from minka.native.session_file import SessionFiles
    from minka.terminal.prompt_cache import PromptCache

    path, writes = Path(options.prompt_cache).expanduser(), not options.prompt_cache_ro
    files = SessionFiles(runtime.model, wanted.context)
    return PromptCache(runtime.engine, files, path, writes=writes, keep_all=options.prompt_cache_all)


def _complete(runtime: Runtime, prompt: str, out: Output, options: CompleteOptions, wanted: Settings) -> Answer:
    """The prompt, if it is to be shown, and what the model makes of it."""
    from minka.chat.prompt import prompt_tokens
    from minka.protocols.body import decode_lora
    from minka.protocols.constraint import own_constraint
    from minka.terminal.answer import Stopper, all_tokens, make_job, run_job
    from minka.terminal.output import token_table
    from minka.terminal.prompts import NO_PROMPT
    from minka.terminal.tuning import Tuning

    served, cache, special = runtime.served, _prompt_cache(runtime, options, wanted), wanted.chat.special
    known = cache.load() if cache else ()
    if cache and not known and not prompt:
        raise UsageError(NO_PROMPT)
    tokens = prompt_tokens(prompt, served.tokenizer) if prompt or not known else known
    if not prompt and known:
        prompt = served.tokenizer.detokenize(known, special=special).decode("utf-8", "replace")
    if options.verbose_prompt:
        sys.stderr.write(token_table(tokens, served.tokenizer))
    preserved = all_tokens(served.tokenizer) if special else frozenset[int]()
    tuning, lora = Tuning(served.sampling, served.generation), decode_lora(None, served.adapters)
    constraint = own_constraint(served.content, served.grammars)
    job = make_job("complete", tokens, tuning, preserved=preserved, lora=lora, constraint=constraint)
    generated: list[int] = []

    def count(token: Token) -> None:
        generated.append(token.token)
        used = len(tokens) + len(generated)
        if options.print_token_count > 0 and used % options.print_token_count == 0:
            print(f"\nTokens consumed so far = {used} / {served.n_ctx}", file=sys.stderr)

    shown = prompt if options.display_prompt else ""
    with Stopper() as stopper:
        if cache:
            job = cache.prepare(job, stopper)
        out.write(shown)
        answer = run_job(runtime.engine, job, out.write, stopper, each=count)
    if cache:
        cache.finish(job, generated)
    return replace(answer, text=shown + answer.text)


COMMAND = Command("complete", configure, run)
