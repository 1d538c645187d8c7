"""Collect an importance matrix, with which a quantized model loses less.

It holds what the weights of the model see while it reads a text.
Flags and files are llama-imatrix's (llama.cpp), so that either tool continues the other's files.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve, unescape
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.commands.placement import LORA, hardware
from minka.errors import UsageError
from minka.params import ContextParams, HardwareParams, LogParams, LoraParams, ModelParams

if TYPE_CHECKING:
    from minka.tools.imatrix_run import ChunkProgress, ImatrixOptions, ImatrixReport
    from minka.tools.imatrix_statistics import LayerStatistics, WeightStatistics

LINE_SECONDS = 5.0
"""Seconds between two lines of progress in a log."""

# Rows of the parameter table that mean nothing here, or (n_ctx) something else.
_OMITTED = {"alias", "tags", "n_ctx", "parallel", "kv_unified", "kv_unified_per_slot", "cont_batching", "warmup"}


def configure(parser: ArgumentParser) -> None:
    """The tool's own flags, and those of model, context and log."""
    _add_text(parser)
    _add_matrix(parser)
    groups = (ModelParams, HardwareParams, LoraParams, ContextParams, LogParams)
    add_parameters(parser, *groups, omit={*_OMITTED, *LORA})
    add_llama_tool(parser)


def _add_text(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Text")
    group.add_argument("-f", "--file", metavar="FILE", help="text to evaluate; without one, --in-file are merged")
    group.add_argument("-bf", "--binary-file", metavar="FILE", help="the same, and the last line end stays")
    group.add_argument("-p", "--prompt", default="", metavar="TEXT", help="the text itself")
    group.add_argument("-e", "--escape", action="store_true", help="process \\n, \\t and the like in --prompt")
    group.add_argument("--no-escape", dest="escape", action="store_false", help="leave them as they are (default)")
    group.add_argument("--parse-special", action="store_true", help="read names of control tokens as those tokens")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="tokens of a chunk (default: 512)")
    group.add_argument("--chunks", type=int, default=-1, metavar="N", help="most chunks to evaluate (default: all)")
    group.add_argument("--chunk", "--from-chunk", type=int, default=0, metavar="N", help="chunks of the text to skip")
    group.add_argument("--no-ppl", dest="ppl", action="store_false", help="compute no perplexity, which is faster")
    group.add_argument("--ppl", action="store_true", default=True, help="compute the perplexity (default)")


def _add_matrix(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Importance matrix")
    group.add_argument(
        "-o", "--output", "--output-file", type=Path, default=Path("imatrix.gguf"), metavar="FILE",
        help="file to write (default: imatrix.gguf)",
    )  # fmt: skip
    group.add_argument("--output-format", choices=("gguf", "dat"), help="gguf, or the older dat (default: gguf)")
    text = "importance matrices to start from or to merge, with commas between; may be repeated"
    group.add_argument("--in-file", action="append", default=[], metavar="FILES", help=text)
    group.add_argument("--resume", action="store_true", help="go on where the output stopped (Minka only)")
    group.add_argument("--process-output", action="store_true", help="collect for output.weight as well")
    text = "chunks after which the output is saved, 0 for only at the end (default: 10)"
    group.add_argument("-ofreq", "--output-frequency", type=int, default=10, metavar="N", help=text)
    text = "chunks after which a copy is saved as OUTPUT.at_N, 0 for never (default: 0)"
    group.add_argument("--save-frequency", type=int, default=0, metavar="N", help=text)
    text = "print statistics of one --in-file, and evaluate nothing"
    group.add_argument("--show-statistics", action="store_true", help=text)


def run(args: Namespace) -> int:
    """Evaluate and save, or merge, or print statistics."""
    from minka import logs

    logs.configure(resolve(args, LogParams, os.environ))
    in_files = tuple(Path(name) for names in args.in_file for name in _names(names))
    if args.show_statistics:
        return _show_statistics(in_files)

    from minka.tools.imatrix_run import imatrix

    options = _options(args, in_files)
    if options.format == "gguf" and args.output_format is None and options.output.suffix != ".gguf":
        print(f"{options.output} will be in GGUF form; --output-format dat writes the older one", file=sys.stderr)
    where, start = hardware(args), time.monotonic()
    with _show_progress() as progress:
        model, context = resolve(args, ModelParams, os.environ), _context(args)
        report = imatrix(options, model, context, hardware=where, progress=progress)
    _print_report(report, time.monotonic() - start)
    return 0


COMMAND = Command("imatrix", configure, run)


def _names(words: str) -> Sequence[str]:
    """File names between commas; one with a comma in it is in double quotes."""
    import csv

    return [name for name in next(csv.reader([words]), []) if name]


def _options(args: Namespace, in_files: tuple[Path, ...]) -> ImatrixOptions:
    from minka.tools.imatrix_run import ImatrixOptions

    if args.file and args.binary_file:
        raise UsageError("give --file or --binary-file, not both")
    for flag, value, least in (
        ("--chunks", args.chunks, -1),
        ("--chunk", args.chunk, 0),
        ("--output-frequency", args.output_frequency, 0),
        ("--save-frequency", args.save_frequency, 0),
    ):
        if value < least:
            raise UsageError(f"{flag} must be at least {least}, but got {value}")
    return ImatrixOptions(
        file=args.file or args.binary_file,
        strip=not args.binary_file,
        text=unescape(args.prompt) if args.escape else args.prompt,
        output=args.output,
        format=args.output_format or "gguf",
        in_files=in_files,
        resume=args.resume,
        chunks=args.chunks,
        from_chunk=args.chunk,
        process_output=args.process_output,
        perplexity=args.ppl,
        parse_special=args.parse_special,
        output_frequency=args.output_frequency,
        save_frequency=args.save_frequency,
    )


def _context(args: Namespace) -> ContextParams:
    from minka.tools.imatrix_run import DEFAULT_CHUNK

    context = resolve(args, ContextParams, os.environ)
    default = context.n_ctx if os.environ.get("LLAMA_ARG_CTX_SIZE") else DEFAULT_CHUNK
    chunk = default if args.ctx_size is None else args.ctx_size
    if chunk < 1:
        raise UsageError(f"--ctx-size must be at least 1, but got {chunk}")
    return replace(context, n_ctx=chunk)


# -- what is printed


def _print_report(report: ImatrixReport, seconds: float) -> None:
    for name, share in report.partial:
        words = f"only {100 * share:.2f} % of its experts saw any token" if share else "no token met it"
        print(f"{name}: {words}", file=sys.stderr)
    if report.n_chunks:
        print(f"{report.n_chunks} chunks of {report.chunk_size} tokens in {seconds:.1f} s")
    if report.perplexity:
        error = report.perplexity.error
        spread = f" +/- {error:.5f}" if error is not None else ""
        print(f"Final estimate: PPL = {report.perplexity.value:.4f}{spread}")
    print(f"wrote {report.path}: {report.n_entries} entries, from {report.chunk_count} chunks")


@contextlib.contextmanager
def _show_progress() -> Iterator[ChunkProgress]:
    """A callback: a bar on a terminal, a line every few seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("chunks", total=None)

        def show(done: int, total: int, perplexity: float | None) -> None:
            words = "chunks" if perplexity is None else f"chunks, PPL {perplexity:.4f}"
            bar.update(task, completed=done, total=total, description=words)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int, perplexity: float | None) -> None:
        now = time.monotonic()
        if not done:  # the model is loaded by now, and the first chunk begins
            self._start = self._last = now
        if not done or now - self._last < LINE_SECONDS:
            return
        self._last = now
        words = "" if perplexity is None else f", PPL {perplexity:.4f}"
        left = (now - self._start) * (total - done) / done
        print(f"chunk {done} of {total}{words}, {left:.0f} s left", file=sys.stderr, flush=True)


# -- statistics


def _show_statistics(in_files: Sequence[Path]) -> int:
    from minka.tools.imatrix_file import read_imatrix
    from minka.tools.imatrix_statistics import by_layer, statistics

    if len(in_files) != 1:
        raise UsageError("--show-statistics is about one file; give it with --in-file")
    found = statistics(read_imatrix(in_files[0]).entries)
    print(f"{in_files[0]}: statistics of {len(found)} tensors")
    print()
    for line in _weight_table(found):
        print(line)
    print()
    for line in _layer_table(by_layer(found)):
        print(line)
    return 0


def _weight_table(found: Sequence[WeightStatistics]) -> Iterator[str]:
    width = max((len(one.short) for one in found), default=0)
    yield (
        f"{'Layer':>5}  {'Tensor':<{width}}  {'Σ(Act²)':>12}  {'Min':>10}  {'Max':>12}  {'μ':>10}  {'σ':>10}  "
        f"{'% Active':>8}  {'N':>8}  {'Entropy':>8}  {'E (norm)':>8}  {'ZD':>7}  {'CosSim':>6}"
    )
    for one in found:
        yield (
            f"{'-' if one.layer is None else one.layer:>5}  {one.short:<{width}}  {one.total:12.2f}  "
            f"{one.minimum:10.4f}  {one.maximum:12.4f}  {one.mean:10.2f}  {one.std:10.2f}  {100 * one.active:7.2f}%  "
            f"{one.n:8}  {one.entropy:8.4f}  {100 * one.evenness:7.2f}%  {100 * one.outliers:6.2f}%  "
            f"{one.similarity:6.4f}"
        )


def _layer_table(found: Sequence[LayerStatistics]) -> Iterator[str]:
    yield f"{'Layer':>5}  {'μΣ(Act²)':>14}  {'μZD':>8}  {'μCosSim':>7}"
    for one in found:
        yield f"{one.layer:>5}  {one.total:14.2f}  {100 * one.outliers:7.4f}%  {one.similarity:7.4f}"
