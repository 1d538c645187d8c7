from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from minka.commands.arguments import resolve
from minka.native.placement import EXPERTS, block_overrides, placement
from minka.params import ContextParams, HardwareParams, ModelParams
from minka.tools import fit
from minka.tools.fit_plan import FitPlan, Trial
from minka.tools.fit_run import flags
from tests.commands.llama_flags import parser_of
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka
from tests.tools.tiny_moe import write_moe

__all__ = ["minka"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libllama tells what a model needs on Linux only")
ON_CPU = ("-ngl", "0", "-t", "1")


@pytest.fixture
def model(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


def test_flags_that_fit(minka: Minka, model: Path) -> None:
    outcome = minka("fit", "-m", model, *ON_CPU)
    assert (outcome.code, outcome.out) == (0, "-c 2048 -ngl 0\n")


def test_a_budget_takes_context_away(minka: Minka, model: Path) -> None:
    whole = json.loads(minka("fit", "-m", model, *ON_CPU, "--json").out)["devices"][-1]
    needed = sum(whole[name] for name in ("model", "context", "compute"))
    budget = str(needed // 2**20)  # rounded down, so not all of it
    outcome = minka("fit", "-m", model, *ON_CPU, "-fitt", "0", "-fitc", "256", "--fit-budget", budget, "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert found["fits"]
    assert 256 <= found["n_ctx"] < 2048
    assert sum(found["devices"][-1][name] for name in ("model", "context", "compute")) <= needed // 2**20 * 2**20
    # The margin is taken off the budget.
    outcome = minka(
        "fit", "-m", model, *ON_CPU, "-fitt", "1000", "--fit-budget", str(1000 + int(budget)), "-fitc", "256"
    )
    assert outcome.out == found["flags"] + "\n"


def test_a_model_that_does_not_fit(minka: Minka, model: Path) -> None:
    outcome = minka("fit", "-m", model, *ON_CPU, "--fit-budget", "1", "-fitt", "0")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("minka fit: the model does not fit main memory: it needs ")
    assert outcome.err.endswith("MiB of Host with 2048 tokens of context\n")


def test_needs_are_printed_as_llama_fit_params_does(minka: Minka, model: Path) -> None:
    outcome = minka("fit", "-m", model, *ON_CPU, "-fitp", "on", "-c", "65536")
    name, weights, context, compute = outcome.out.split()
    assert (name, int(weights), int(context)) == ("Host", 0, 16)
    assert int(compute) > 0


def test_a_table(minka: Minka, model: Path) -> None:
    outcome = minka("fit", "-m", model, *ON_CPU, "-fitp", "on", "--table", "-c", "65536")
    head, host = outcome.out.splitlines()
    assert head.split() == ["MiB", "model", "context", "compute", "needed", "there"]
    assert host.split()[:3] == ["Host", "0.5", "16.0"]
    assert "16.0" in minka("fit", "-m", model, *ON_CPU, "--table", "-c", "65536").err


def test_variables(minka: Minka, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_FIT_ESTIMATE", "on")
    assert minka("fit", "-m", model, *ON_CPU).out.startswith("Host ")
    assert minka("fit", "-m", model, *ON_CPU, "-fitp", "off").out.startswith("-c ")
    monkeypatch.setenv("LLAMA_ARG_FIT_TARGET", "x")
    assert "--fit-target must be 0 or more" in minka("fit", "-m", model, *ON_CPU, "-fitp", "off").err


def test_from_python(model: Path) -> None:
    plan = fit(ModelParams(model=str(model), n_gpu_layers=0), ContextParams(n_ctx=512, threads=1))
    assert (plan.fits, plan.trial) == (True, Trial(512))


def test_flags_of_devices(model: Path) -> None:
    measured = fit(ModelParams(model=str(model), n_gpu_layers=0), ContextParams(threads=1)).measured
    one, two = FitPlan(Trial(4096, (7,)), measured, fits=True), FitPlan(Trial(4096, (3, 4), 2), measured, fits=True)
    assert flags(one, ModelParams()) == "-c 4096 -ngl 7"
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    assert flags(two, ModelParams()) == rf'-c 4096 -ngl 7 -ts 3,4 -ot "blk\.0{experts},blk\.1{experts}"'


@pytest.mark.parametrize(
    ("trial", "layers", "split", "n_host"),
    [
        (Trial(4096), -1, (), 0),
        (Trial(4096, (7,)), 7, (), 0),
        (Trial(256, (3, 4), 2), 7, (3.0, 4.0), 2),
        (Trial(512, (40,), 61), 40, (), 61),
    ],
)
def test_every_command_that_runs_a_model_takes_the_flags(
    model: Path, trial: Trial, layers: int, split: tuple[float, ...], n_host: int
) -> None:
    measured = fit(ModelParams(model=str(model), n_gpu_layers=0), ContextParams(threads=1)).measured
    words = shlex.split(flags(FitPlan(trial, measured, fits=True), ModelParams()))
    for command in ("serve", "chat", "complete", "perplexity", "imatrix", "batched-bench", "cvector generate", "fit"):
        parsed = parser_of(command).parse_args(words)
        assert placement(resolve(parsed, HardwareParams, {})).overrides == block_overrides(n_host, EXPERTS)
        assert resolve(parsed, ModelParams, {}) == ModelParams(n_gpu_layers=layers, tensor_split=split)
        # Others read the size of the context as that of a window.
        assert command in ("perplexity", "imatrix") or resolve(parsed, ContextParams, {}).n_ctx == trial.n_ctx


def test_a_placement_counts_and_is_printed_with_the_rest(minka: Minka, tmp_path: Path) -> None:
    moe = write_moe(tmp_path / "moe.gguf")
    outcome = minka("fit", "-m", moe, *ON_CPU, "-ot", "attn_q=CPU", "-ncmoe", "1", "--temp", "0")
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    assert outcome.out == rf'-c 2048 -ngl 0 -ot "attn_q=CPU,blk\.0{experts}"' + "\n"
    parsed = parser_of("serve").parse_args(shlex.split(outcome.out))
    overrides = placement(resolve(parsed, HardwareParams, {})).overrides
    assert overrides == (("attn_q", "CPU"), *block_overrides(1, EXPERTS))
    assert "there is no buffer type 'GPU9'" in minka("fit", "-m", moe, "-ot", "a=GPU9").err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-fitp", "maybe"), "--fit-print must be on or off, but got 'maybe'"),
        (("-fitt", "1,x"), "--fit-target must be 0 or more, but got 'x'"),
        (("--fit-budget", "-1"), "--fit-budget must be 0 or more, but got '-1'"),
        (("-fitc", "x"), "--fit-ctx must be 0 or more, but got 'x'"),
    ],
)
def test_bad_input_is_one_line(minka: Minka, model: Path, words: tuple[str, ...], says: str) -> None:
    outcome = minka("fit", "-m", model, *words)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"minka fit: {says}\n")
