"""Score a model: perplexity, KL divergence, HellaSwag, Winogrande, multiple choice.

Flags, files and numbers are llama-perplexity's (llama.cpp), so that results of either tool can be compared.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from minka.commands.arguments import add_parameters, resolve, unescape
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.commands.meter import Meter
from minka.commands.placement import LORA, hardware
from minka.errors import UsageError
from minka.params import ContextParams, HardwareParams, LogParams, LoraParams, ModelParams

if TYPE_CHECKING:
    from minka.tools.perplexity_kld import KlChunk
    from minka.tools.perplexity_text import Chunk, TextOptions
    from minka.tools.scoring_tasks import Benchmark, ChoiceRun, TaskScore

INTERRUPTED = 130
_UNUSED = {"alias", "tags", "kv_unified_per_slot", "cont_batching"}
_TASK_FLAGS = ("hellaswag", "winogrande", "multiple_choice")
T = TypeVar("T", covariant=True)


def configure(parser: ArgumentParser) -> None:
    """The tool's own flags, and those of model, context and log."""
    _add_text(parser)
    _add_modes(parser)
    groups = (ModelParams, HardwareParams, LoraParams, ContextParams, LogParams)
    add_parameters(parser, *groups, omit={*_UNUSED, *LORA, "n_ctx"})
    add_llama_tool(parser)


def _add_text(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Text")
    source = group.add_mutually_exclusive_group()
    source.add_argument("-f", "--file", type=Path, metavar="FILE", help="text file; one line end at its end is dropped")
    source.add_argument("-bf", "--binary-file", type=Path, metavar="FILE", help="file whose content is taken as it is")
    source.add_argument("-p", "--prompt", metavar="TEXT", help="the text itself")
    group.add_argument("-e", "--escape", action="store_true", help="process \\n, \\t and the like in --prompt")
    group.add_argument("--no-escape", dest="escape", action="store_false", help="leave them as they are (default)")
    text = "tokens of a window, or of a sequence of tasks (default: 512; env: LLAMA_ARG_CTX_SIZE)"
    group.add_argument("-c", "--ctx-size", metavar="N", help=text)
    group.add_argument("--chunks", type=int, default=-1, metavar="N", help="the most windows to compute (default: all)")
    text = "score the last N tokens of windows that begin N tokens apart; 0 is off (default: 0)"
    group.add_argument("--ppl-stride", type=int, default=0, metavar="N", help=text)
    text = "1 prints a line a window with its offset, for plotting (default: 0)"
    group.add_argument("--ppl-output-type", type=int, choices=(0, 1), default=0, metavar="0|1", help=text)


def _add_modes(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("What to score")
    text = "base file: log-probabilities of all tokens, written in a plain run, read with --kl-divergence"
    group.add_argument("--kl-divergence-base", "--save-all-logits", type=Path, metavar="FILE", help=text)
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--kl-divergence", action="store_true", help="compare with the model that wrote the base file")
    mode.add_argument("--hellaswag", action="store_true", help="HellaSwag score of the tasks in the text")
    mode.add_argument("--winogrande", action="store_true", help="Winogrande score of the tasks in the text")
    mode.add_argument("--multiple-choice", action="store_true", help="score of the multiple-choice tasks in the text")
    for name, default in (("hellaswag", 400), ("winogrande", 0), ("multiple-choice", 0)):
        text = f"random tasks to take{', 0 for all' if not default else ''} (default: {default})"
        group.add_argument(f"--{name}-tasks", type=int, default=default, metavar="N", help=text)


def run(args: Namespace) -> int:
    """Score what was asked for."""
    from minka import logs

    logs.configure(resolve(args, LogParams, os.environ))
    if args.kl_divergence:
        return _kl_divergence(args)
    for name in _TASK_FLAGS:
        if getattr(args, name):
            return _tasks(args, name.replace("_", "-"))
    return _perplexity(args)


COMMAND = Command("perplexity", configure, run)


class Run(Protocol[T]):
    """Work in steps, of which it knows how many there are."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Generator[T]: ...


def _drive(run: Run[T], unit: str, show: Callable[[T, Meter], None]) -> int:
    """Do all steps, showing each; the exit code, which is INTERRUPTED if a Ctrl-C cut it short."""
    done = 0
    with Meter(unit, len(run)) as meter, closing(iter(run)) as steps:
        try:
            for step in steps:
                done += 1
                show(step, meter)
                meter.advance()
        except KeyboardInterrupt:
            print(f"\ninterrupted after {done} of {len(run)} {unit}", file=sys.stderr)
            return INTERRUPTED
    return 0


def _window(args: Namespace) -> int:
    from minka.tools.scoring_context import DEFAULT_CTX

    text = args.ctx_size or os.environ.get("LLAMA_ARG_CTX_SIZE") or str(DEFAULT_CTX)
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise UsageError(f"--ctx-size must be a number of tokens greater than 0, but got {text!r}")
    return int(text)


def _text(args: Namespace) -> bytes:
    path = args.binary_file or args.file
    if path is None:
        if args.prompt is None:
            raise UsageError("there is no text: give a file with -f, or the text itself with -p")
        return str(unescape(args.prompt) if args.escape else args.prompt).encode("utf-8", "replace")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return bytes(data.removesuffix(b"\n")) if args.file else bytes(data)


# -- perplexity


def _perplexity(args: Namespace) -> int:
    from minka.tools.perplexity_report import final_line
    from minka.tools.perplexity_text import PerplexityRun, TextOptions
    from minka.tools.scoring_context import open_scorer

    text, context = _text(args), resolve(args, ContextParams, os.environ)
    options = TextOptions(_window(args), args.chunks, args.ppl_stride, args.kl_divergence_base)
    layout, where = options.layout(context), hardware(args)
    with open_scorer(resolve(args, ModelParams, os.environ), layout, context, where) as scorer:
        run = PerplexityRun(scorer, text, options)
        n_seq = run.windows.n_seq
        sizes = f"n_ctx={run.windows.length}, n_batch={layout.n_batch}, n_seq={n_seq}"
        _say(f"{run.n_tokens} tokens, {len(run)} chunks, {sizes}")
        code = _drive(run, "chunks", _Chunks(len(run) / n_seq, options, args.ppl_output_type))
    if not options.stride and (line := final_line(run.result())):
        print(line)
    return code


class _Chunks:
    """Shows each window as it is scored, and after the first how long all will take."""

    def __init__(self, n_passes: float, options: TextOptions, output_type: int) -> None:
        self._n_passes, self._options, self._type = n_passes, options, output_type
        self._start: float | None = time.monotonic()

    def __call__(self, chunk: Chunk, meter: Meter) -> None:
        from minka.tools.perplexity_report import chunk_entry, chunk_line, eta_line

        if self._start is not None:
            _say(eta_line(time.monotonic() - self._start, self._n_passes))
            self._start = None
        if self._type == 0:
            meter.entry(chunk_entry(chunk))
        else:
            meter.print(chunk_line(chunk, strided=self._options.stride > 0))


def _say(text: str) -> None:
    """What is not a result goes to a log, and not where a bar is."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


# -- KL divergence


def _kl_divergence(args: Namespace) -> int:
    from minka.tools.perplexity_base import BaseReader
    from minka.tools.perplexity_kld import KlRun
    from minka.tools.perplexity_report import KLD_HEADER, kld_line, kld_summary
    from minka.tools.scoring_context import open_scorer, parallel_layout

    if args.kl_divergence_base is None:
        raise UsageError("--kl-divergence needs a base file: give --kl-divergence-base FILE, written by a plain run")
    context = resolve(args, ContextParams, os.environ)

    def show(chunk: KlChunk, meter: Meter) -> None:
        if chunk.index == 0:
            meter.print(KLD_HEADER)
        meter.print(kld_line(chunk))

    with BaseReader(args.kl_divergence_base) as base:
        layout = parallel_layout(context, base.head.n_ctx)
        where = hardware(args)
        with open_scorer(resolve(args, ModelParams, os.environ), layout, context, where) as scorer:
            run = KlRun(scorer, base, args.chunks)
            code = _drive(run, "chunks", show)
    print("\n".join(["", *kld_summary(run.result())]))
    return code


# -- tasks


def _tasks(args: Namespace, name: str) -> int:
    from minka.tools.scoring_context import open_scorer
    from minka.tools.scoring_tasks import Benchmark, ChoiceRun, choice_layout

    kind = Benchmark(name)
    n_tasks = getattr(args, f"{name.replace('-', '_')}_tasks")
    if n_tasks < (1 if kind is Benchmark.HELLASWAG else 0):
        raise UsageError(f"--{name}-tasks {n_tasks} leaves no task")
    choices, context = kind.parse(_text(args), n_tasks), resolve(args, ContextParams, os.environ)
    layout, where = choice_layout(context, _window(args)), hardware(args)
    with open_scorer(resolve(args, ModelParams, os.environ), layout, context, where) as scorer:
        run = ChoiceRun(scorer, kind, choices)
        code = _drive(run, "tasks", _show_task(kind))
    for line in _task_summary(kind, run):
        print(line)
    return code


def _show_task(kind: Benchmark) -> Callable[[TaskScore, Meter], None]:
    from minka.tools.scoring_report import TASK_HEADERS, task_line

    def show(task: TaskScore, meter: Meter) -> None:
        if task.index == 0 and kind in TASK_HEADERS:
            meter.print(TASK_HEADERS[kind])
        meter.print(task_line(kind, task))

    return show


def _task_summary(kind: Benchmark, run: ChoiceRun) -> list[str]:
    from minka.tools.scoring_report import task_summary

    lines = task_summary(kind, run.result())
    return ["", *lines] if lines else []
