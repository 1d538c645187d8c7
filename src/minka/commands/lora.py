"""Merge LoRA adapters into a model, or look into one.

`export` has the flags of llama-export-lora (llama.cpp). To run a model with an adapter that stays apart, give --lora to
the command that runs it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.actions import Action, add_actions, run_action
from minka.commands.arguments import add_parameters, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.errors import UsageError
from minka.params import LogParams, LoraParams, ModelParams, rows

if TYPE_CHECKING:
    from minka.ggufs.dump import Json
    from minka.tools.lora_file import LoraFile

DEFAULT_OUTPUT = Path("ggml-lora-merged-f16.gguf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare both actions."""
    add_actions(parser, ACTIONS)


COMMAND = Command("lora", configure, run_action)


# -- export


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Output")
    group.add_argument(
        "-o", "--output", "--output-file", type=Path, default=DEFAULT_OUTPUT, metavar="FILE",
        help=f"file to write (default: {DEFAULT_OUTPUT})",
    )  # fmt: skip
    text = "threads that merge; 0 or less is one per core (default)"
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help=text)
    wanted = {"model", "hf_repo", "hf_file", "hf_token", "offline", "files"}
    omitted = {row.name for cls in (LoraParams, ModelParams) for row in rows(cls)} - wanted
    add_parameters(parser, LoraParams, ModelParams, LogParams, omit=omitted)
    add_llama_tool(parser)


def _export(args: argparse.Namespace) -> int:
    from minka import logs
    from minka.ggufs.terminal import show_progress
    from minka.hub import locate
    from minka.tools.lora_merge import lora_export

    logs.configure(resolve(args, LogParams, os.environ))
    adapters = resolve(args, LoraParams, os.environ).files
    if not adapters:
        raise UsageError("there is no adapter to merge: give one with --lora or --lora-scaled")
    model = locate(resolve(args, ModelParams, os.environ)).path
    with show_progress("merging") as progress:
        report = lora_export(model, adapters, args.output, threads=max(args.threads, 0), progress=progress)
    for path, name in report.ignored:
        print(f"left out: {name} of {path} is no change of a weight")
    print(f"merged {len(report.merged)} of {report.n_tensors} tensors")
    print(f"wrote {report.path}")
    return 0


# -- inspect


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="GGUF file of an adapter")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inspect(args: argparse.Namespace) -> int:
    from minka.tools.lora_file import open_lora

    with open_lora(args.file) as lora:
        if args.json:
            print(json.dumps(_json(lora)))
        else:
            print("\n".join(_lines(lora)))
    return 0


_ABOUT = (
    "general.name",
    "general.base_model.0.name",
    "general.base_model.0.repo_url",
    "adapter.lora.task_name",
    "adapter.lora.prompt_prefix",
)
"""Metadata that say what an adapter is for."""


def _lines(lora: LoraFile) -> Iterator[str]:
    from minka.ggufs.dump import human_size
    from minka.tools.lora_file import shape_text

    yield f"{lora.path}: LoRA adapter for {lora.architecture}, {human_size(lora.n_bytes)}"
    yield from (f"{key}: {value}" for key in _ABOUT if (value := lora.source.get_str(key)))
    ranks = ", ".join(map(str, lora.ranks))
    yield f"rank {ranks or 'none'}, alpha {lora.alpha:g}: {len(lora.pairs)} weights are changed"
    if lora.invocation_tokens:
        yield f"counts only from the tokens {list(lora.invocation_tokens)} on (aLoRA)"
    yield ""
    table = [("weight", "shape", "type", "rank", "factor")]
    for pair in lora.pairs.values():
        types = pair.a.type.name if pair.a.type == pair.b.type else f"{pair.a.type.name}, {pair.b.type.name}"
        table.append((pair.weight, shape_text(pair.dims), types, str(pair.rank), f"{lora.factor(pair, 1.0):g}"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from (f"{name}: no change of a weight" for name in lora.others)


def _json(lora: LoraFile) -> Json:
    return {
        "path": str(lora.path),
        "architecture": lora.architecture,
        "alpha": lora.alpha,
        "ranks": list(lora.ranks),
        "n_bytes": lora.n_bytes,
        "metadata": {key: value for key in _ABOUT if (value := lora.source.get_str(key))},
        "invocation_tokens": list(lora.invocation_tokens),
        "weights": [
            {
                "name": pair.weight,
                "shape": list(pair.dims),
                "types": [pair.a.type.name, pair.b.type.name],
                "rank": pair.rank,
                "factor": lora.factor(pair, 1.0),
            }
            for pair in lora.pairs.values()
        ],
        "others": list(lora.others),
    }


ACTIONS = (
    Action("export", "merge adapters into a model", _export_arguments, _export),
    Action("inspect", "show what an adapter changes, and how much", _inspect_arguments, _inspect),
)
