"""Go on from a text: write what a model makes of a prompt, as it comes, without a chat template.

The prompt is what -p, -f and -bf give and what is piped in, one after the other. Standard output gets the prompt and
the model's text and nothing else. Ctrl-C ends the text and keeps what is there. With -i, model and user take turns.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve, unescape
from minka.commands.chat import hold, start_log, unescaped
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_server, add_llama_tool, ignore, refuse
from minka.commands.settings import GROUPS, settings
from minka.errors import UsageError
from minka.params import LogParams, foreign
from minka.terminal.options import OMITTED, ChatOptions, CompleteOptions, QuietParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minka.runtime import Runtime, Settings
    from minka.terminal.output import Output
    from minka.terminal.prompt_cache import PromptCache
    from minka.terminal.reader import LineReader

_SELF_EXTEND = "Minka does not have: give --rope-scaling yarn and --rope-scale N for a longer context"


def configure(parser: ArgumentParser) -> None:
    """The flags of the prompt and the output, then those of the model, and what else llama-completion knows."""
    add_parameters(parser, CompleteOptions, *GROUPS, QuietParams, LogParams, omit=OMITTED)
    refuse(parser, foreign("-gan", "--grp-attn-n", off=("1",), note=_SELF_EXTEND))
    ignore(parser, foreign("-gaw", "--grp-attn-w"))
    add_llama_tool(parser)
    add_llama_server(parser)


def run(args: Namespace) -> int:
    """Complete one prompt, or take turns."""
    options, log = resolve(args, CompleteOptions, os.environ), start_log(args)
    wanted = settings(args)
    _check(options, wanted)
    if _is_conversation(options):
        return hold(_chat_options(options), wanted, verbose=log.verbose)
    return _complete(options, wanted, verbose=log.verbose)


def _takes_turns(options: CompleteOptions) -> bool:
    """Whether lines of the user become a part of the text; with a prefix or a suffix also in a conversation."""
    is_framed = bool(options.in_prefix or options.in_suffix or options.in_prefix_bos)
    return options.interactive or options.interactive_first or (bool(options.conversation) and is_framed)


def _is_conversation(options: CompleteOptions) -> bool:
    """Whether the chat template is used: a message, or a system message, is no part of a plain text."""
    has_system = options.system_prompt is not None or options.system_prompt_file is not None
    wanted = options.conversation or (options.conversation is None and (has_system or options.single_turn))
    return bool(wanted) and not _takes_turns(options)


def _chat_options(options: CompleteOptions) -> ChatOptions:
    """The same for `minka chat`; one message that is given is only answered."""
    is_asked = options.prompt is not None or options.file is not None
    return ChatOptions(
        prompt=options.prompt,
        file=options.file,
        system_prompt=options.system_prompt,
        system_prompt_file=options.system_prompt_file,
        conversation=not (options.single_turn and is_asked),
        single_turn=options.single_turn,
        multiline=options.multiline,
        simple_io=options.simple_io,
        output=options.output,
        color=options.color,
        verbose_prompt=options.verbose_prompt,
    )


def _check(options: CompleteOptions, wanted: Settings) -> None:
    if _is_conversation(options) and (options.binary_file or options.prompt_cache):
        flag = "-bf" if options.binary_file else "--prompt-cache"
        raise UsageError(f"{flag} is for plain text, and a conversation is asked for; add -no-cnv, or leave {flag} out")
    if options.prompt_cache is None and (options.prompt_cache_all or options.prompt_cache_ro):
        raise UsageError("--prompt-cache-all and --prompt-cache-ro need a file: --prompt-cache FILE")
    if options.prompt_cache_all and _takes_turns(options):
        raise UsageError("--prompt-cache-all and -i exclude each other; --prompt-cache alone keeps the prompt")
    if options.prompt_cache is not None and wanted.lora.files:
        raise UsageError("--prompt-cache and --lora exclude each other: the file does not tell what computed its text")
    if options.prompt_cache and not Path(options.prompt_cache).expanduser().parent.is_dir():
        raise UsageError(f"the folder of the prompt cache {options.prompt_cache} does not exist; create it first")


# -- plain text


def _complete(options: CompleteOptions, wanted: Settings, *, verbose: bool) -> int:
    from minka.ggufs.atomic import replacing
    from minka.terminal import prompts
    from minka.terminal.loading import load_model
    from minka.terminal.output import Output

    wanted, turns = _without_template(wanted), _takes_turns(options)
    given, cached = unescaped(options.prompt, escape=wanted.generation.escape), options.prompt_cache is not None
    if cached:
        wanted = _for_prompt_cache(wanted)
    rest = None if turns else prompts.piped()
    prompt = prompts.raw_prompt(given, options.file, options.binary_file, rest, needed=not (cached or turns))
    with ExitStack() as stack:
        copy = stack.enter_context(replacing(Path(options.output), force=True)) if options.output else None
        runtime = stack.enter_context(closing(load_model(wanted)))
        out = Output(sys.stdout.buffer, terminal=sys.stdout.isatty())
        text, code = _Text(runtime, out, options, wanted).run(prompt, turns=turns, verbose=verbose)
        if copy is not None:
            copy.write(text.encode("utf-8", "replace"))
        if sys.stdout.isatty():
            out.end_line()
    return code


def _without_template(wanted: Settings) -> Settings:
    """The settings with a template that surely works: none is used here, and a broken one must not be in the way."""
    return replace(wanted, chat=replace(wanted.chat, jinja=True, chat_template="chatml", chat_template_file=None))


def _for_prompt_cache(wanted: Settings) -> Settings:
    """The settings with the attention of llama-completion, on which the layout of the values in its files depends."""
    context = wanted.context
    return replace(wanted, context=replace(context, flash_attn="on")) if context.flash_attn == "auto" else wanted


class _Text:
    """The text of one run: the prompt, and what model and user make of it."""

    def __init__(self, runtime: Runtime, out: Output, options: CompleteOptions, wanted: Settings) -> None:
        from minka.terminal.writer import Writer

        self._runtime, self._out, self._options, self._wanted = runtime, out, options, wanted
        self._writer = Writer(
            runtime.engine,
            runtime.served,
            out.write,
            special=wanted.chat.special,
            count_every=options.print_token_count,
        )
        self._cache = _prompt_cache(runtime, options, wanted)

    def run(self, prompt: str, *, turns: bool, verbose: bool) -> tuple[str, int]:
        """Write it, after the prompt if that is to be shown. All of the text, and the exit code."""
        from minka.terminal.output import token_table

        tokens, prompt = self._begin(prompt, needed=not turns)
        if self._options.verbose_prompt:
            sys.stderr.write(token_table(tokens, self._runtime.served.tokenizer))
        shown = prompt if self._options.display_prompt else ""
        text, code = self._take_turns(tokens, prompt, shown) if turns else self._go_on(tokens, shown, verbose=verbose)
        return shown + text, code

    def _begin(self, prompt: str, *, needed: bool) -> tuple[Sequence[int], str]:
        """The tokens of the prompt and its text; without one, those of the prompt cache."""
        from minka.chat.prompt import prompt_tokens
        from minka.terminal.prompts import NO_PROMPT

        known = self._cache.load() if self._cache else ()
        if known and not prompt:
            return known, self._writer.text(known)
        if self._cache and not prompt and needed:
            raise UsageError(NO_PROMPT)
        return prompt_tokens(prompt, self._runtime.served.tokenizer), prompt

    def _go_on(self, tokens: Sequence[int], shown: str, *, verbose: bool) -> tuple[str, int]:
        from minka.terminal.answer import Stopper
        from minka.terminal.output import timings_line

        job = self._writer.job(tokens)
        with Stopper() as stopper:
            if self._cache:
                job = self._cache.prepare(job, stopper)
            self._out.write(shown)
            answer, generated = self._writer.write(job, stopper)
        if self._cache:
            self._cache.finish(job, generated)
        if verbose:
            print(timings_line(answer.timings, answer.n_past, self._runtime.served.n_ctx), file=sys.stderr)
        return answer.text, answer.exit_code

    def _take_turns(self, tokens: Sequence[int], prompt: str, shown: str) -> tuple[str, int]:
        from minka.terminal.answer import Stopper
        from minka.terminal.dialogue import Dialogue, Frame
        from minka.terminal.output import wants_colors

        options, served, escape = self._options, self._runtime.served, self._wanted.generation.escape
        is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
        colors = not options.simple_io and wants_colors(options.color, terminal=is_terminal)
        if self._cache and prompt:
            with Stopper() as stopper:
                self._cache.prepare(self._writer.job(tokens), stopper)
        prefix, suffix = (unescape(text) if escape else text for text in (options.in_prefix, options.in_suffix))
        dialogue = Dialogue(
            self._writer,
            served.tokenizer,
            self._reader(),
            self._out,
            frame=Frame(prefix, suffix, options.in_prefix_bos),
            reverse=served.generation.stop,
            typed=unescape if escape else str,
            echoes=not sys.stdin.isatty(),
            colors=colors,
            n_shift=served.n_ctx if self._wanted.engine.shifts else 0,
        )
        self._out.write(shown)
        code = dialogue.run(tokens, prompt, ask_first=options.interactive_first or not prompt)
        return dialogue.text, code

    def _reader(self) -> LineReader:
        """Plain lines; what invites to type is the text itself."""
        from minka.terminal.reader import MORE, PROMPT, LineReader

        def show(text: str) -> None:
            if text not in (PROMPT, MORE):
                self._out.invite(text)

        return LineReader(sys.stdin.buffer, show, multiline=self._options.multiline)


def _prompt_cache(runtime: Runtime, options: CompleteOptions, wanted: Settings) -> PromptCache | None:
    if not options.prompt_cache:
        return None
    from minka.native.session_file import SessionFiles
    from minka.terminal.prompt_cache import PromptCache

    path, writes = Path(options.prompt_cache).expanduser(), not options.prompt_cache_ro
    files = SessionFiles(runtime.model, wanted.context)
    return PromptCache(runtime.engine, files, path, writes=writes, keep_all=options.prompt_cache_all)


COMMAND = Command("complete", configure, run)
