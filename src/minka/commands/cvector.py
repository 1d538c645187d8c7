"""Make a control vector from pairs of prompts, or look into one.

A control vector is a direction for each layer, which leads from what the model computes for the negative prompts to
what it computes for the positive ones; --control-vector of the commands that run a model adds it to what its layers
compute. `generate` has the flags of llama-cvector-generator (llama.cpp).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from minka.commands.actions import Action, add_actions, run_action
from minka.commands.arguments import add_parameters, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.commands.placement import LORA, hardware
from minka.errors import UsageError
from minka.params import ContextParams, HardwareParams, LogParams, LoraParams, ModelParams

DEFAULT_OUTPUT = Path("control_vector.gguf")
_OMITTED = {"alias", "tags", "parallel", "kv_unified", "kv_unified_per_slot", "cont_batching"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare both actions."""
    add_actions(parser, ACTIONS)


COMMAND = Command("cvector", configure, run_action)


# -- generate


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Control vector")
    text = "prompts to lead to, one a line; \\n and the like are processed"
    group.add_argument("--positive-file", type=Path, metavar="FILE", help=text)
    group.add_argument("--negative-file", type=Path, metavar="FILE", help="as many prompts to lead away from")
    group.add_argument(
        "-o", "--output", "--output-file", type=Path, default=DEFAULT_OUTPUT, metavar="FILE",
        help=f"file to write (default: {DEFAULT_OUTPUT})",
    )  # fmt: skip
    text = "pca, the first principal component of the differences, or mean (default: pca)"
    group.add_argument("--method", choices=("pca", "mean"), default="pca", help=text)
    text = "most steps of the power iteration, a multiple of --pca-batch (default: 1000)"
    group.add_argument("--pca-iter", type=int, default=1000, metavar="N", help=text)
    text = "steps between two looks at whether it has come to rest (default: 100)"
    group.add_argument("--pca-batch", type=int, default=100, metavar="N", help=text)
    groups = (ModelParams, HardwareParams, LoraParams, ContextParams, LogParams)
    add_parameters(parser, *groups, omit={*_OMITTED, *LORA})
    add_llama_tool(parser)


def _generate(args: argparse.Namespace) -> int:
    from minka import logs
    from minka.commands.meter import Meter
    from minka.tools.cvector_run import CvectorOptions, cvector, read_prompts

    logs.configure(resolve(args, LogParams, os.environ))
    if args.positive_file is None or args.negative_file is None:
        raise UsageError("give the prompts with --positive-file and --negative-file")
    positive, negative = read_prompts(args.positive_file), read_prompts(args.negative_file)
    options = CvectorOptions(args.output, args.method, args.pca_iter, args.pca_batch)
    model, context = resolve(args, ModelParams, os.environ), resolve(args, ContextParams, os.environ)
    where = hardware(args)
    with Meter("pairs", len(positive)) as meter:

        def show(done: int, total: int) -> None:
            if 0 < done <= total:
                meter.advance()

        report = cvector(positive, negative, options, model, context, hardware=where, progress=show)
    shares = [100 * share for share in report.explained]
    print(f"{len(positive)} pairs, {sum(report.n_rows) // report.n_layers} differences a layer")
    print(f"along the directions lie {min(shares):.1f} % to {max(shares):.1f} % of the differences' squares")
    print(f"wrote {report.path}: directions of {report.n_layers} layers")
    return 0


# -- inspect


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="GGUF file of a control vector")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inspect(args: argparse.Namespace) -> int:
    from minka.native.control_vector import read
    from minka.tools.cvector_run import describe

    vector = read(args.file)
    layers = describe(vector)
    if args.json:
        described = [{"layer": one.layer, "norm": one.norm, "similarity": one.similarity} for one in layers]
        print(json.dumps({"model_hint": vector.model_hint, "n_embd": vector.n_embd, "layers": described}))
        return 0
    print(f"{args.file}: control vector for {vector.model_hint or 'any model'}, {vector.n_embd} values a layer")
    print()
    print("layer     norm  cosine with the layer before")
    for one in layers:
        similarity = "" if one.similarity is None else f"{one.similarity:.4f}"
        print(f"{one.layer:>5}  {one.norm:>7.4f}  {similarity}".rstrip())
    return 0


ACTIONS = (
    Action("generate", "make a control vector from pairs of prompts", _generate_arguments, _generate),
    Action("inspect", "show the directions of a control vector", _inspect_arguments, _inspect),
)
