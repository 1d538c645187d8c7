"""The search against machines that are made up: devices of any size, and needs that are known to the byte."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from minka.native.memory_use import Measured, Need, Use
from minka.tools.fit_plan import Goal, Trial, fit

LAYER, OUTPUT, CELL = 100, 40, 1
"""Bytes of a layer's weights, of the output layer's, and of a token's cells in a layer."""
EXPERTS = 300
"""Bytes of a layer's experts."""
N_LAYER = 10


@dataclass
class Machine:
    """A model of ten layers on devices of these sizes; without any, on a CPU."""

    sizes: tuple[int, ...] = ()
    main: int = 10**9
    experts: bool = False
    trials: list[Trial] = field(default_factory=list)

    def __call__(self, trial: Trial) -> Measured:
        self.trials.append(trial)
        n_ctx = trial.n_ctx or 1024
        placed = self._placed(trial)
        needs = []
        for layers in placed:
            weights = sum(OUTPUT if layer == N_LAYER else self._weights(layer, trial) for layer in layers)
            cells = sum(n_ctx * CELL for layer in layers if layer < N_LAYER)
            needs.append(Need(weights, cells, 7 if layers else 0))
        n_host = N_LAYER + 1 - sum(map(len, placed))
        host = Need(n_host * LAYER, (n_host if not self.sizes else 0) * n_ctx * CELL)
        devices = tuple(
            Use(f"GPU{i}", "made up", size, size, need)
            for i, (size, need) in enumerate(zip(self.sizes, needs, strict=True))
        )
        return Measured(
            devices, Use("Host", "", self.main, self.main, host), n_ctx, 8192, N_LAYER, 8 if self.experts else 0
        )

    def _weights(self, layer: int, trial: Trial) -> int:
        return LAYER + (EXPERTS if self.experts and layer >= trial.host_experts else 0)

    def _placed(self, trial: Trial) -> list[range]:
        """Layers of each device, the output layer the last of all."""
        if not self.sizes:
            return []
        counts = trial.layers
        if counts is None:
            even = (N_LAYER + 1) // len(self.sizes)
            counts = (*[even] * (len(self.sizes) - 1), N_LAYER + 1 - even * (len(self.sizes) - 1))
        start, found = N_LAYER + 1 - sum(counts), []
        for n in counts:
            found.append(range(start, start + n))
            start += n
        return found


def need(n_ctx: int, layers: int = N_LAYER) -> int:
    """Bytes of some layers and the output layer on one device."""
    return layers * (LAYER + n_ctx * CELL) + OUTPUT + 7


def goal(**options: object) -> Goal:
    return Goal(**{"min_ctx": 512, "margins": (0,), **options})  # type: ignore[arg-type]


def test_all_that_the_model_was_trained_with_if_there_is_room() -> None:
    plan = fit(Machine((need(8192),)), goal())
    assert (plan.fits, plan.trial) == (True, Trial(8192))


def test_less_context_before_fewer_layers() -> None:
    plan = fit(Machine((need(4096) + 3,)), goal())
    assert (plan.fits, plan.trial) == (True, Trial(4096))
    assert fit(Machine((need(4096) - 1,)), goal()).trial == Trial(4096 - 256)


def test_then_fewer_layers_with_the_least_context() -> None:
    plan = fit(Machine((need(512, 6) + 5,)), goal())
    assert (plan.fits, plan.trial) == (True, Trial(512, (7,)))  # six, and the output layer


def test_margins_and_budgets() -> None:
    assert fit(Machine((need(4096) + 50,)), goal(margins=(50,))).trial.n_ctx == 4096
    assert fit(Machine((need(4096) + 50,)), goal(margins=(51,))).trial.n_ctx == 3840
    assert fit(Machine((10**9,)), goal(budgets=(need(2048),))).trial.n_ctx == 2048


def test_a_context_that_is_set_does_not_change() -> None:
    plan = fit(Machine((need(2048, 4),)), goal(n_ctx=2048))
    assert (plan.fits, plan.trial) == (True, Trial(2048, (5,)))


def test_layers_that_are_set_do_not_change() -> None:
    plan = fit(Machine((need(512) - 1,)), goal(fixed_layers=True))
    assert not plan.fits
    assert "as many layers on them as were asked for" in plan.why
    assert plan.trial.layers is None


def test_contexts_are_a_multiple_of_256_for_each_stream() -> None:
    machine = Machine((need(5000),))
    plan = fit(machine, goal(n_streams=3, min_ctx=256))
    assert plan.trial.n_ctx == 5000 // 768 * 768
    assert machine.trials[1].n_ctx == 3 * 8192


def test_several_devices_are_filled_from_the_last() -> None:
    # The last one holds the output layer and two layers, the first one three.
    sizes = (3 * (LAYER + 512) + 7, need(512, 2))
    plan = fit(Machine(sizes), goal())
    assert (plan.fits, plan.trial) == (True, Trial(512, (3, 3)))
    assert [use.need.total for use in plan.measured.devices] == list(sizes)


def test_a_device_that_does_not_tell_gets_nothing() -> None:
    plan = fit(Machine((0, need(512, 2))), goal())
    assert (plan.fits, plan.trial.layers) == (True, (0, 3))


def test_experts_of_the_first_layers_stay_in_main_memory() -> None:
    plan = fit(Machine((need(512) + 3 * EXPERTS + 10,), experts=True), goal())
    assert (plan.fits, plan.trial) == (True, Trial(512, (11,), 7))


def test_layers_with_experts_that_do_not_even_fit_without_them() -> None:
    plan = fit(Machine((need(512, 4),), experts=True), goal())
    assert (plan.fits, plan.trial) == (True, Trial(512, (5,), 10))


def test_on_a_cpu_only_the_context_changes() -> None:
    cpu = 11 * (LAYER + 4096 * CELL)
    plan = fit(Machine(main=cpu), goal())
    assert (plan.fits, plan.trial) == (True, Trial(4096))
    plan = fit(Machine(main=11 * (LAYER + 511)), goal())
    assert (plan.fits, plan.why, plan.trial.n_ctx) == (False, "the model does not fit main memory", 512)


@pytest.mark.parametrize("size", range(0, need(8192) + 700, 4111))
def test_what_is_found_fits_and_one_more_would_not(size: int) -> None:
    machine = Machine((size,))
    plan = fit(machine, goal())
    assert plan.fits
    assert machine(plan.trial).devices[0].need.total <= size
    if plan.trial.layers is None and plan.trial.n_ctx < 8192:
        assert need(plan.trial.n_ctx + 256) > size
    if plan.trial.layers is not None:
        assert need(512, plan.trial.layers[0]) > size
