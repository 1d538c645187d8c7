"""Real libllama on tiny models: each model is loaded once for the session, contexts are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from minka.native.context import Context
from minka.native.model import Model
from minka.params import ContextParams, ModelParams
from tests.tiny_fixtures import TinyModels

ON_CPU = ModelParams(n_gpu_layers=0)
SMALL: dict[str, object] = {
    "n_ctx": 512,
    "parallel": 4,
    "kv_unified": True,
    "threads": 1,
    "warmup": False,
    "flash_attn": "off",  # flash attention sums in half precision; without it equal computations are equal
}


@pytest.fixture(scope="session")
def load(tiny_models: TinyModels) -> Iterator[Callable[[str], Model]]:
    """A tiny model by name, loaded once."""
    loaded: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in loaded:
            loaded[name] = Model.load(tiny_models(name), ON_CPU)
        return loaded[name]

    yield load
    for model in loaded.values():
        model.close()


@pytest.fixture
def context(load: Callable[[str], Model]) -> Iterator[Callable[..., Context]]:
    """Makes contexts of a tiny model; parameters that are not given are SMALL."""
    with ExitStack() as contexts:

        def make(name: str = "llama", **params: object) -> Context:
            made = Context(load(name), ContextParams(**{**SMALL, **params}))  # type: ignore[arg-type]
            return contexts.enter_context(closing(made))

        yield make


@pytest.fixture(params=["unified", "split"])
def unified(request: pytest.FixtureRequest) -> bool:
    """Both layouts of the KV cache."""
    return bool(request.param == "unified")
