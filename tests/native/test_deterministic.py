"""On libllama, to the last digit: a deterministic engine gives every greedy job the text that it has alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.native.context import Context
from minka.native.model import Model
from minka.params import ContextParams
from minka.types import Job
from tests.engine.rig import job
from tests.engine.test_engine import Ends
from tests.native.conftest import ON_CPU

Contexts = Callable[..., Context]
CONFIG = EngineConfig(memory=MemoryConfig(limit=64 << 20), deterministic=True, check=True)


def traffic(seed: int, n: int, n_vocab: tuple[int, int], n_predict: int) -> list[Job]:
    """Prompts from a token to three chunks, half of them with one of two common beginnings."""
    choose = random.Random(seed)
    stems = [[choose.randrange(*n_vocab) for _ in range(150)] for _ in range(2)]
    jobs = []
    for i in range(n):
        stem = choose.choice(stems)[: choose.choice((0, 0, 70, 130, 150))]
        tail = [choose.randrange(*n_vocab) for _ in range(choose.randrange(1, 50))]
        jobs.append(job(str(i), [*stem, *tail], choose.randrange(1, n_predict)))
    return jobs


def texts(engine: Engine, jobs: list[Job]) -> dict[str, list[int]]:
    inbox = Ends()
    for one in jobs:
        engine.submit(one, inbox)
    inbox.wait(len(jobs))
    return {one.id: inbox.tokens(one.id) for one in jobs}


def among_others(context: Context, jobs: list[Job]) -> Mapping[str, list[int]]:
    """All at once, and then all once more, from what is kept of the first time."""
    engine = Engine(context, CONFIG)
    first = texts(engine, jobs)
    again = texts(engine, jobs)
    n_cached = engine.view().result().counters.cached_tokens
    engine.close()
    assert again == first, "what was kept is not what was computed"
    assert n_cached > 64 or not context.can_splice
    return first


def alone(make: Callable[[], Context], jobs: list[Job]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in jobs:
        engine = Engine(make(), CONFIG)
        found |= texts(engine, [one])
        engine.close()
    return found


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("name", ["llama", "llama-f16", "swa", "recurrent", "hybrid"])
def test_among_23_others_a_text_is_what_it_is_alone(context: Contexts, name: str, flash_attn: str) -> None:
    params = {"kv_unified": False, "flash_attn": flash_attn}
    jobs = traffic(7, 24, (260, 500), 24)
    together = among_others(context(name, parallel=8, n_ctx=8 * 256, **params), jobs)
    assert together == alone(lambda: context(name, parallel=1, n_ctx=256, **params), jobs)


@pytest.mark.model
def test_the_demo_model_keeps_the_promise(demo_model: Path) -> None:
    def make(n_slots: int) -> Context:
        return Context(
            model, ContextParams(n_ctx=n_slots * 256, parallel=n_slots, kv_unified=False, threads=1, warmup=False)
        )

    with closing(Model.load(demo_model, ON_CPU)) as model:
        jobs = traffic(3, 6, (1000, 40_000), 12)
        assert among_others(make(4), jobs) == alone(lambda: make(1), jobs)
