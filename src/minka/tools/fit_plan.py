"""How much of a model, and how much context, fits a memory budget: which sizes to try, and when to stop.

The order is that of llama-fit-params (common/fit.cpp of llama.cpp): first less context, then fewer layers on the GPUs,
of a model with experts the experts of the first layers last. What a trial needs is measured by the caller, so nothing
here knows libllama.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from minka.native.memory_use import Measured, Use

ALIGNMENT = 256
"""Contexts are a multiple of this for each sequence that has cells of its own."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Sizes to try. `layers` are those on each device, None for all of them as libllama places them; the experts of the
    first `host_experts` layers are in main memory.
    """

    n_ctx: int
    layers: tuple[int, ...] | None = None
    host_experts: int = 0


Measure = Callable[[Trial], Measured]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted, in bytes and tokens."""

    n_ctx: int = 0
    """The context if it must not change, 0 for as much as the model was trained with, or less."""
    min_ctx: int = 4096
    """The least context of a sequence, before layers are taken off the devices."""
    margins: tuple[int, ...] = (1 << 30,)
    """Memory to leave free on each device, the last one for all further ones; on a CPU, of main memory."""
    budgets: tuple[int, ...] = ()
    """Memory of each device to count with in place of what is free there; on a CPU, of main memory."""
    n_streams: int = 1
    """Sequences that have cells of their own."""
    fixed_layers: bool = False
    """Whether the layers on the devices must not change."""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """What was found: the sizes, what they need, and whether that leaves the margins free."""

    trial: Trial
    measured: Measured
    fits: bool
    why: str = ""
    """What does not fit, if it does not."""


def fit(measure: Measure, goal: Goal) -> FitPlan:
    """Find the most context and the most layers that fit. Raises what `measure` raises."""
    search = _Search(measure, goal)
    if search.fits():
        return search.plan()
    if not goal.n_ctx:
        search.reduce_context()
    if search.fits():
        return search.plan()
    if not search.measured.devices:
        return search.plan(why="the model does not fit main memory")
    if goal.fixed_layers:
        return search.plan(why="the model does not fit the devices with as many layers on them as were asked for")
    search.reduce_layers()
    return search.plan(why="" if search.fits() else "the model does not fit the devices with no layer on them")


class _Search:
    """The best trial so far, and what it needs."""

    def __init__(self, measure: Measure, goal: Goal) -> None:
        self._measure, self._goal = measure, goal
        self.trial = Trial(goal.n_ctx)
        self.measured = measure(self.trial)
        if not goal.n_ctx:
            self._try(Trial(self.measured.n_ctx_train * goal.n_streams))

    def _try(self, trial: Trial) -> Measured:
        self.trial, self.measured = trial, self._measure(trial)
        return self.measured

    def plan(self, why: str = "") -> FitPlan:
        return FitPlan(self.trial, self.measured, self.fits(), why)

    def spare(self, measured: Measured) -> list[int]:
        """Bytes that each device, or a CPU's main memory, has to spare over what is needed and the margin."""
        uses: Sequence[Use] = measured.devices or (measured.host,)
        found = []
        for index, use in enumerate(uses):
            budgets, margins = self._goal.budgets, self._goal.margins
            has = budgets[min(index, len(budgets) - 1)] if budgets else use.free
            found.append(has - margins[min(index, len(margins) - 1)] - use.need.total)
        return found

    def fits(self, measured: Measured | None = None) -> bool:
        return min(self.spare(measured or self.measured)) >= 0

    def reduce_context(self) -> None:
        """The most context with which all is on the devices, at least the least one."""
        step = ALIGNMENT * self._goal.n_streams
        most, least = self.trial.n_ctx, self._goal.min_ctx * self._goal.n_streams
        if least >= most:
            return
        below = sum(self.spare(self._try(Trial(least))))
        if below <= 0:
            return
        above = sum(self.spare(self._measure(Trial(most))))
        n_ctx = least + (most - least) * below // max(below - above, 1)
        n_ctx = max(min(n_ctx, most) // step * step, least)
        # Needs grow nearly in proportion, but in steps of their own, so the guess may be a little too high.
        while n_ctx > least and not self.fits(self._try(Trial(n_ctx))):
            n_ctx = max(n_ctx - step, least)
        if n_ctx == least:
            self._try(Trial(least))

    def reduce_layers(self) -> None:
        """The most layers on the devices; of a model with experts, as many experts as there is room for besides."""
        n_experts_layers = self.measured.n_layer if self.measured.n_expert else 0
        total = self.measured.n_layer + 1  # and the output layer
        best = self._fill(n_experts_layers)
        if n_experts_layers and sum(best) == total:
            low, high = 0, n_experts_layers
            while low < high:
                middle = (low + high) // 2
                layers = self._fill(middle)
                if sum(layers) == total:
                    best, high = layers, middle
                else:
                    low = middle + 1
            n_experts_layers = high
        self._try(replace(self.trial, layers=best, host_experts=n_experts_layers))

    def _fill(self, host_experts: int) -> tuple[int, ...]:
        """Layers for each device: the last one gets as many as it holds, with the output layer, then the one before."""
        n_devices = len(self.measured.devices)
        layers = [0] * n_devices
        left = self.measured.n_layer + 1
        for device in reversed(range(n_devices)):
            low, high = 0, left
            while low < high:
                middle = (low + high + 1) // 2
                layers[device] = middle
                trial = replace(self.trial, layers=tuple(layers), host_experts=host_experts)
                if self.spare(self._measure(trial))[device] >= 0:
                    low = middle
                else:
                    high = middle - 1
            layers[device] = low
            left -= low
        return tuple(layers)
