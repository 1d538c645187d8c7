"""Fits a model to the memory of this machine: measures trials with libllama, and writes the flags that were found.

Knows no command line. The search itself is in `fit_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from minka.errors import UsageError
from minka.hub import locate
from minka.native.context import DEFAULT_SLOTS
from minka.native.memory_use import Measured, measure
from minka.native.placement import EXPERTS, Placement, block_overrides
from minka.params import ContextParams, ModelParams
from minka.tools.fit_plan import FitPlan, Goal, Trial
from minka.tools.fit_plan import fit as search

MIB = 1 << 20
DEFAULT_MARGIN = 1024 * MIB
DEFAULT_MIN_CTX = 4096


def fit(
    model: str | Path | ModelParams,
    context: ContextParams | None = None,
    *,
    min_ctx: int = DEFAULT_MIN_CTX,
    margins: tuple[int, ...] = (DEFAULT_MARGIN,),
    budgets: tuple[int, ...] = (),
    placement: Placement | None = None,
) -> FitPlan:
    """How many layers and how much context fit the memory. Nothing is loaded, only measured.

    A context size in `context` stays, as do layers in `model`. `margins` are bytes to leave free, `budgets` bytes to
    count with in place of what is free: one for each device, the last one for all further ones; without a GPU, one
    for main memory. With a `placement` that says where tensors are, layers stay where they are.

    Raises:
        UsageError: a number that cannot be.
        ModelError: the model cannot be used.
        NotSupportedError: this libllama does not tell what a model needs.
    """
    model, context = model_of(model), context or ContextParams()
    if min_ctx < 0 or not margins or min((*margins, *budgets)) < 0:
        raise UsageError("sizes of memory and context cannot be negative")
    path, placement = locate(model).path, placement or Placement()
    goal = Goal(
        n_ctx=context.n_ctx,
        min_ctx=min_ctx,
        margins=margins,
        budgets=budgets,
        n_streams=n_streams(context),
        fixed_layers=bool(placement.overrides or model.n_gpu_layers != -1 or model.tensor_split)
        or model.split_mode == "tensor",
    )
    return search(lambda trial: _measure(path, model, context, placement, trial), goal)


def estimate(
    model: str | Path | ModelParams, context: ContextParams | None = None, *, placement: Placement | None = None
) -> Measured:
    """What a model and a context with these very parameters need. Raises ModelError and NotSupportedError."""
    model = model_of(model)
    return measure(locate(model).path, model, context or ContextParams(), placement)


def model_of(model: str | Path | ModelParams) -> ModelParams:
    """The parameters that load a file; parameters stay as they are."""
    return model if isinstance(model, ModelParams) else ModelParams(model=str(model))


def n_streams(context: ContextParams) -> int:
    """Sequences that have cells of their own."""
    unified = context.parallel < 0 if context.kv_unified is None else context.kv_unified
    return 1 if unified else DEFAULT_SLOTS if context.parallel < 0 else context.parallel


def _measure(path: Path, model: ModelParams, context: ContextParams, placement: Placement, trial: Trial) -> Measured:
    if trial.layers is not None:
        split = tuple(float(n) for n in trial.layers) if len(trial.layers) > 1 else ()
        model = replace(model, n_gpu_layers=sum(trial.layers), tensor_split=split)
    placement = replace(placement, overrides=_overrides(placement, trial))
    return measure(path, model, replace(context, n_ctx=trial.n_ctx), placement)


def _overrides(placement: Placement, trial: Trial) -> tuple[tuple[str, str], ...]:
    return placement.overrides + block_overrides(trial.host_experts, EXPERTS)


def flags(plan: FitPlan, model: ModelParams, placement: Placement | None = None) -> str:
    """What to give to a command, in the form of llama-fit-params: -c N -ngl N [-ts A,B] [-ot "PATTERN=TYPE,..."]."""
    return " ".join(_flags(plan, model, placement or Placement()))


def _flags(plan: FitPlan, model: ModelParams, placement: Placement) -> Iterator[str]:
    layers = plan.trial.layers
    yield f"-c {plan.trial.n_ctx}"
    yield f"-ngl {model.n_gpu_layers if layers is None else sum(layers)}"
    if layers is not None and len(layers) > 1:
        yield f"-ts {','.join(map(str, layers))}"
    overrides = _overrides(placement, plan.trial)
    if overrides:
        yield f'-ot "{",".join(f"{pattern}={kind}" for pattern, kind in overrides)}"'
