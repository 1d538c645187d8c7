from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from minka.errors import ModelError, NotSupportedError
from minka.native import context, memory_use
from minka.native.context import Context
from minka.native.memory_use import measure, measure_context
from minka.native.model import Model
from minka.params import ContextParams, ModelParams
from tests.tiny_fixtures import TinyModels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libllama tells what a model needs on Linux only")

READ = ModelParams(n_gpu_layers=0, load_mode="none")
"""Without a memory map: the pages of a mapped file come on top of weights that are rearranged."""


def check(path: Path, **params: object) -> None:
    """What is measured is what a real context has."""
    wanted = ContextParams(**{"threads": 1, "warmup": False, **params})  # type: ignore[arg-type]
    ahead = measure(path, READ, wanted)
    with closing(Model.load(path, READ)) as model, closing(Context(model, wanted)) as made:
        real = measure_context(model, made)
    assert ahead.n_ctx == real.n_ctx
    for name in ("model", "context", "compute"):
        found, expected = getattr(ahead.host.need, name), getattr(real.host.need, name)
        assert expected > 0
        assert found == pytest.approx(expected, rel=0.02), name


@pytest.mark.parametrize("name", ["llama", "llama-f16", "swa", "recurrent", "hybrid"])
def test_tiny_models(tiny_models: TinyModels, name: str) -> None:
    check(tiny_models(name), n_ctx=1024)


@pytest.mark.parametrize(
    "params",
    [
        {"n_ctx": 2048, "n_ubatch": 64},
        {"n_ctx": 512, "parallel": 8},
        {"n_ctx": 1024, "cache_type_k": "f32", "flash_attn": "off"},
    ],
)
def test_parameters_count(tiny_models: TinyModels, params: dict[str, object]) -> None:
    check(tiny_models("llama"), **params)


@pytest.mark.model
def test_the_demo_model(demo_model: Path) -> None:
    check(demo_model, n_ctx=4096)


def test_a_context_in_proportion(tiny_models: TinyModels) -> None:
    def cells(n_ctx: int) -> int:
        return measure(tiny_models("llama"), READ, ContextParams(n_ctx=n_ctx, threads=1)).host.need.context

    assert cells(4096) == 4 * cells(1024) == 4096 * 2 * 2 * 32 * 2  # tokens, K and V, layers, values, bytes


def test_more_than_the_memory_can_be_measured(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "available_memory", lambda: 1000)
    params = ContextParams(n_ctx=1024, parallel=1, threads=1)
    with closing(Model.load(tiny_models("llama"), READ)) as model, pytest.raises(ModelError, match="are free"):
        Context(model, params)
    found = measure(tiny_models("llama"), READ, params)
    assert found.host.need.context > 1000
    assert (found.n_layer, found.n_expert, found.n_ctx_train) == (2, 0, 2048)


def test_a_model_that_is_none(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelError):
        measure(tiny_models("not-gguf"), READ, ContextParams())


def test_other_builds_are_told_apart(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "_BREAKDOWN", "no_such_function")
    with pytest.raises(NotSupportedError, match="does not tell what a model needs"):
        measure(tiny_models("llama"), READ, ContextParams(n_ctx=256))
