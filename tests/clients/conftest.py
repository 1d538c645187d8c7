"""Real servers for real clients: a tiny random model, and the demo model, each loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minka.engine.engine import EngineConfig
from minka.params import ChatParams, ContextParams, GenerationParams, ModelParams, SamplingParams, ServerParams
from minka.runtime import Settings, load
from tests.clients.programs import Play
from tests.clients.scripted import scripted_runtime
from tests.server.site import Live
from tests.tiny_fixtures import TinyModels

Serve = Callable[[Path, ServerParams], Live]


@pytest.fixture(scope="package")
def serve() -> Iterator[Serve]:
    """Starts a server for a model; all are stopped at the end."""
    with ExitStack() as servers:

        def start(model: Path, params: ServerParams) -> Live:
            settings = Settings(
                model=ModelParams(model=str(model), alias=("test-model",)),
                context=ContextParams(n_ctx=2048, parallel=4, kv_unified=True, threads=2, warmup=False),
                sampling=SamplingParams(temperature=0.0),
                generation=GenerationParams(n_predict=64),
                chat=ChatParams(),
                engine=EngineConfig(queue_size=32, check=True),
            )
            return servers.enter_context(Live(load(settings), params))

        yield start


@pytest.fixture
def play() -> Iterator[Play]:
    """Starts servers whose models play parts."""
    with ExitStack() as servers:
        yield lambda player: servers.enter_context(Live(scripted_runtime(player)))


@pytest.fixture(scope="package")
def tiny_server(serve: Serve, tiny_models: TinyModels) -> Live:
    """A server of a random model, which wants a key."""
    return serve(tiny_models("llama"), ServerParams(api_key=("secret",)))


@pytest.fixture(scope="package")
def demo_server(serve: Serve, demo_model: Path) -> Live:
    """A server of the demo model, which understands a little."""
    return serve(demo_model, ServerParams())
