"""Say how many layers and how much context of a model fit the memory.

Prints the flags that fit, for `minka serve` and the others; nothing is loaded. Flags and output are those of
llama-fit-params (llama.cpp). On a machine without a GPU the memory is main memory, and only the context is changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from minka.commands.arguments import FALSE_WORDS, TRUE_WORDS, add_parameters, resolve
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_tool
from minka.errors import ModelError, UsageError
from minka.params import ContextParams, HardwareParams, LogParams, ModelParams

if TYPE_CHECKING:
    from minka.ggufs.dump import Json
    from minka.native.memory_use import Measured, Use
    from minka.tools.fit_plan import FitPlan

_OMITTED = {"alias", "tags", "cont_batching", "warmup"}
_MIB = 1 << 20


def configure(parser: ArgumentParser) -> None:
    """The budget, the output, and the flags of model, context and log."""
    group = parser.add_argument_group("Memory")
    text = "memory to leave free on each device; one number is for all (default: 1024; env: LLAMA_ARG_FIT_TARGET)"
    group.add_argument("-fitt", "--fit-target", metavar="MIB0,MIB1,...", help=text)
    text = "memory of each device to count with, in place of what is free there (Minka only)"
    group.add_argument("--fit-budget", metavar="MIB0,MIB1,...", help=text)
    text = "the least context that is tried before layers leave the GPUs (default: 4096; env: LLAMA_ARG_FIT_CTX)"
    group.add_argument("-fitc", "--fit-ctx", metavar="N", help=text)
    group.add_argument("-fit", "--fit", metavar="on|off", help="accepted without effect: this command always fits")
    output = parser.add_argument_group("Output")
    text = "fit nothing, print what the flags as they are need: MiB of weights, context and compute of each device"
    output.add_argument("-fitp", "--fit-print", metavar="on|off", help=f"{text} (env: LLAMA_ARG_FIT_ESTIMATE)")
    output.add_argument("--table", action="store_true", help="print a table of what is needed as well (Minka only)")
    output.add_argument("--json", action="store_true", help="print JSON (Minka only)")
    add_parameters(parser, ModelParams, HardwareParams, ContextParams, LogParams, omit=_OMITTED)
    add_llama_tool(parser)


def run(args: Namespace) -> int:
    """Fit and print flags, or print what is needed."""
    from minka import logs
    from minka.native.placement import placement
    from minka.tools.fit_run import estimate, fit, flags

    logs.configure(resolve(args, LogParams, os.environ))
    words = _words(args, os.environ)
    model, context = resolve(args, ModelParams, os.environ), resolve(args, ContextParams, os.environ)
    where = placement(resolve(args, HardwareParams, os.environ))
    if _switch("--fit-print", words["fit_print"]):
        _print_needs(args, estimate(model, context, placement=where))
        return 0
    plan = fit(
        model,
        context,
        min_ctx=_count("--fit-ctx", words["fit_ctx"] or "4096"),
        margins=_sizes("--fit-target", words["fit_target"] or "1024"),
        budgets=_sizes("--fit-budget", words["fit_budget"]) if words["fit_budget"] else (),
        placement=where,
    )
    _print_plan(args, plan, flags(plan, model, where))
    if not plan.fits:
        raise ModelError(f"{plan.why}: it needs {_needs_text(plan)}")
    return 0


COMMAND = Command("fit", configure, run)


# -- the flags

_ENV = {
    "fit_target": "LLAMA_ARG_FIT_TARGET",
    "fit_ctx": "LLAMA_ARG_FIT_CTX",
    "fit_print": "LLAMA_ARG_FIT_ESTIMATE",
    "fit_budget": "",
}


def _words(args: Namespace, env: Mapping[str, str]) -> dict[str, str]:
    """The text of each flag: from the command line, else the environment, else empty."""
    given = {name: getattr(args, name) for name in _ENV}
    return {name: env.get(_ENV[name], "") if text is None else text for name, text in given.items()}


def _switch(flag: str, text: str) -> bool:
    if text and text.lower() not in TRUE_WORDS + FALSE_WORDS:
        raise UsageError(f"{flag} must be on or off, but got {text!r}")
    return text.lower() in TRUE_WORDS


def _count(flag: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{flag} must be 0 or more, but got {text!r}")
    return int(text)


def _sizes(flag: str, text: str) -> tuple[int, ...]:
    """Bytes from numbers of MiB."""
    return tuple(_count(flag, word) * _MIB for word in re.split("[,/]", text))


# -- what is printed


def _print_needs(args: Namespace, measured: Measured) -> None:
    if args.json:
        print(json.dumps(_json(measured)))
    elif args.table:
        print("\n".join(_table(measured)))
    else:
        for use in (*measured.devices, measured.host):
            need = use.need
            print(f"{use.name} {need.model // _MIB} {need.context // _MIB} {need.compute // _MIB} ")


def _print_plan(args: Namespace, plan: FitPlan, flags: str) -> None:
    if args.json:
        found = {"fits": plan.fits, "flags": flags, "n_ctx": plan.trial.n_ctx}
        layers = None if plan.trial.layers is None else list(plan.trial.layers)
        print(json.dumps({**found, "layers": layers, "host_experts": plan.trial.host_experts, **_json(plan.measured)}))
        return
    if args.table:
        print("\n".join(_table(plan.measured)), file=sys.stderr)
    if plan.fits:
        print(flags)


def _needs_text(plan: FitPlan) -> str:
    uses: Sequence[Use] = plan.measured.devices or (plan.measured.host,)
    needs = (f"{use.need.total / _MIB:.0f} MiB of {use.name}" for use in uses)
    return f"{', '.join(needs)} with {plan.trial.n_ctx} tokens of context"


def _table(measured: Measured) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("MiB", "model", "context", "compute", "needed", "there")]
    for use in (*measured.devices, measured.host):
        need = use.need
        sizes = (need.model, need.context, need.compute, need.total, use.free)
        rows.append((use.name, *(f"{size / _MIB:.1f}" for size in sizes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *right))


def _json(measured: Measured) -> dict[str, Json]:
    devices: list[Json] = [
        {
            "name": use.name,
            "description": use.description,
            "free": use.free,
            "total": use.total,
            "model": use.need.model,
            "context": use.need.context,
            "compute": use.need.compute,
        }
        for use in (*measured.devices, measured.host)
    ]
    return {
        "n_ctx": measured.n_ctx,
        "n_ctx_train": measured.n_ctx_train,
        "n_layer": measured.n_layer,
        "n_expert": measured.n_expert,
        "devices": devices,
    }
