"""Measure tokens per second of many sequences at once, by their lengths and their number.

Flags, measurement and outputs are llama-batched-bench's (llama.cpp).
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.commands.meter import Meter
from minka.commands.placement import LORA, hardware
from minka.errors import UsageError
from minka.params import ContextParams, HardwareParams, LogParams, LoraParams, ModelParams

if TYPE_CHECKING:
    from minka.tools.bench_batched import BatchedResult, BatchedRun, Setup, Shapes

INTERRUPTED = 130
_UNUSED = {"alias", "tags", "parallel", "kv_unified_per_slot", "cont_batching", "warmup"}
_COLUMNS = (
    ("PP", 6), ("TG", 6), ("B", 4), ("N_KV", 6), ("T_PP s", 8), ("S_PP t/s", 8), ("T_TG s", 8), ("S_TG t/s", 8),
    ("T s", 8), ("S t/s", 8),
)  # fmt: skip


def configure(parser: ArgumentParser) -> None:
    """The tool's own flags, and those of model, context and log."""
    group = parser.add_argument_group("What to measure")
    group.add_argument("-npp", default="", metavar="N,...", help="lengths of the prompts")
    group.add_argument("-ntg", default="", metavar="N,...", help="lengths of the generations")
    group.add_argument("-npl", default="", metavar="N,...", help="numbers of parallel sequences")
    group.add_argument("-pps", action="store_true", help="one prompt for all sequences, computed once")
    group.add_argument("-tgs", action="store_true", help="let the sequences generate one after another")
    group.add_argument(
        "--output-format", choices=("md", "jsonl"), default="md", metavar="md|jsonl", help="(default: md)"
    )
    groups = (ModelParams, HardwareParams, LoraParams, ContextParams, LogParams)
    add_parameters(parser, *groups, omit={*_UNUSED, *LORA})
    add_llama_tool(parser)


def run(args: Namespace) -> int:
    """Measure all combinations that fit the context."""
    from minka import logs
    from minka.hub import locate
    from minka.native.model import Model
    from minka.native.own_thread import OwnThread
    from minka.tools.bench_batched import BatchedRun, open_batched

    logs.configure(resolve(args, LogParams, os.environ))
    params, context = resolve(args, ModelParams, os.environ), resolve(args, ContextParams, os.environ)
    shapes, where = _shapes(args), hardware(args)
    shapes.check()
    with closing(Model.load(locate(params).path, params, placement=where.placement)) as model:
        raw, setup = open_batched(model, params, context, shapes, where)
        with closing(raw), OwnThread() as thread:
            return _measure(BatchedRun(raw, thread, shapes, setup), as_json=args.output_format == "jsonl")


COMMAND = Command("batched-bench", configure, run)


def _shapes(args: Namespace) -> Shapes:
    from minka.tools.bench_batched import Shapes
    from minka.tools.bench_matrix import parse_range

    values = {}
    for flag in ("npp", "ntg", "npl"):
        try:
            text = getattr(args, flag)
            values[flag] = parse_range(text) if text else ()
        except UsageError as error:
            raise UsageError(f"-{flag}: {error}") from None
    return Shapes(values["npp"], values["ntg"], values["npl"], shared=args.pps, separate=args.tgs)


def _measure(run: BatchedRun, *, as_json: bool) -> int:
    for pp, tg, pl in run.skipped:
        text = f"left out, as it does not fit {run.setup.n_kv_max} cells: PP {pp}, TG {tg}, B {pl}"
        print(text, file=sys.stderr)
    with Meter("combinations", len(run)) as meter, closing(iter(run)) as results:
        if not as_json:
            meter.print(table_head(run.setup))
        try:
            for result in results:
                meter.print(json_line(result) if as_json else table_row(result))
                meter.advance()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
    return 0


def table_head(setup: Setup) -> str:
    """The sizes of the context, and the titles of the table."""
    sizes = ", ".join(
        f"{name} = {value}"
        for name, value in (
            ("n_kv_max", setup.n_kv_max),
            ("n_batch", setup.n_batch),
            ("n_ubatch", setup.n_ubatch),
            ("flash_attn", setup.flash_attn),
            ("is_pp_shared", int(setup.shared)),
            ("is_tg_separate", int(setup.separate)),
            ("n_gpu_layers", setup.n_gpu_layers),
            ("n_threads", setup.n_threads),
            ("n_threads_batch", setup.n_threads_batch),
        )
    )
    titles = " | ".join(f"{title:>{width}}" for title, width in _COLUMNS)
    rule = "-|-".join("-" * width for _, width in _COLUMNS)
    return f"\nbatched-bench: {sizes}\n\n|{titles} |\n|{rule}-|"


def table_row(result: BatchedResult) -> str:
    """One combination."""
    counts = f"|{result.pp:6d} | {result.tg:6d} | {result.pl:4d} | {result.n_kv:6d} |"
    times = (
        (result.t_pp, result.speed_pp),
        (result.t_tg, result.speed_tg),
        (result.seconds, result.speed),
    )
    return counts + "".join(f" {seconds:8.3f} | {speed:8.2f} |" for seconds, speed in times)


def json_line(result: BatchedResult) -> str:
    """One combination as a JSON object."""
    setup = result.setup
    numbers = {
        "n_kv_max": setup.n_kv_max,
        "n_batch": setup.n_batch,
        "n_ubatch": setup.n_ubatch,
        "flash_attn": setup.flash_attn,
        "is_pp_shared": int(setup.shared),
        "n_gpu_layers": setup.n_gpu_layers,
        "n_threads": setup.n_threads,
        "n_threads_batch": setup.n_threads_batch,
        "pp": result.pp,
        "tg": result.tg,
        "pl": result.pl,
        "n_kv": result.n_kv,
    }
    times = {
        "t_pp": result.t_pp,
        "speed_pp": result.speed_pp,
        "t_tg": result.t_tg,
        "speed_tg": result.speed_tg,
        "t": result.seconds,
        "speed": result.speed,
    }
    return json.dumps(numbers | {name: round(value, 6) for name, value in times.items()})
