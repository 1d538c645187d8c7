"""Saved slots and pins on libllama: what goes on from them is what would be computed from nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minka.engine.control import SlotState
from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.errors import RequestError
from minka.native import slot_file
from minka.native.context import Context
from minka.types import Finished, Job, Started, Token
from tests.engine.rig import job
from tests.fakes import WAIT
from tests.native.test_engine_real import MODELS, expect_solo, prompts

Contexts = Callable[..., Context]

CHECKED = EngineConfig(check=True)


def run(engine: Engine, one: Job) -> tuple[int, list[int]]:
    """How much of a job was cached, and what it generated."""
    events = list(engine.stream(one))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    return events[0].n_cached, [event.token for event in events if isinstance(event, Token)]


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_slot_goes_on_in_another_process(context: Contexts, tmp_path: Path, unified: bool, name: str) -> None:
    prompt, *_ = prompts(3, 1, 60)
    first = Engine(context(name, kv_unified=unified), CHECKED)
    _, said = run(first, job("a", prompt, 12, id_slot=1))
    saved = first.save_slot(1).result(WAIT)
    assert list(saved.tokens) == [*prompt, *said[:-1]]
    slot_file.write(tmp_path / "a", saved.tokens, saved.state)
    first.close()

    file = slot_file.read(tmp_path / "a", 512)
    second = Engine(context(name, kv_unified=unified), CHECKED)
    second.restore_slot(2, SlotState(file.tokens, file.state)).result(WAIT)
    again = job("b", [*prompt, *said, 300, 301], 12, id_slot=2)
    n_cached, tokens = run(second, again)
    assert n_cached == len(saved.tokens)
    second.close()
    expect_solo(context(name, n_ctx=256, parallel=1), again, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_or_foreign_state_is_refused_and_harms_nobody(context: Contexts, unified: bool, name: str) -> None:
    prompt, *_ = prompts(3, 1, 60)
    engine = Engine(context(name, kv_unified=unified), CHECKED)
    run(engine, job("a", prompt, 12, id_slot=1))
    saved = engine.save_slot(1).result(WAIT)
    other = Engine(context("hybrid" if name == "llama" else "llama", kv_unified=unified), CHECKED)
    run(other, job("a", prompt, 12, id_slot=1))
    foreign = other.save_slot(1).result(WAIT)
    other.close()
    cuts = (0, 7, 8, 12, 40, len(saved.state) // 2, len(saved.state) - 1)
    bad = [SlotState(saved.tokens, saved.state[:n]) for n in cuts]
    bad += [SlotState(saved.tokens[:-1], saved.state), SlotState((*saved.tokens, 300), saved.state)]
    bad += [SlotState(saved.tokens, foreign.state)]
    for one in bad:
        with pytest.raises(RequestError, match="No available space in KV cache or invalid slot save file"):
            engine.restore_slot(0, one).result(WAIT)
        assert engine.save_slot(0).result(WAIT).tokens == ()
    later = job("b", prompt, 12, id_slot=0)
    _, tokens = run(engine, later)
    engine.close()
    expect_solo(context(name, n_ctx=256, parallel=1), later, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_a_pinned_prefix_survives_pressure_on_libllama(context: Contexts, unified: bool, name: str) -> None:
    backend = context(name, kv_unified=unified)
    prompt, *_ = prompts(5, 1, 90)
    stem = prompt[:60]
    probe = Engine(backend, EngineConfig(memory=MemoryConfig(limit=1 << 30), check=True))
    run(probe, Job("pin", tuple(stem), n_predict=0, pin="stem"))
    n_bytes = probe.cache().result(WAIT).pins[0].n_bytes
    probe.close()

    memory = MemoryConfig(limit=3 * n_bytes)
    engine = Engine(context(name, kv_unified=unified), EngineConfig(memory=memory, check=True))
    run(engine, Job("pin", tuple(stem), n_predict=0, pin="stem"))
    for i in range(12):
        run(engine, job(f"{i}", [260 + i] * 70, 2))
    (_, ram) = engine.cache().result(WAIT).tiers
    assert ram.n_bytes is not None
    assert ram.n_bytes <= memory.limit
    one = job("a", prompt, 8)
    n_cached, tokens = run(engine, one)
    assert n_cached == len(stem)
    engine.close()
    expect_solo(context(name, n_ctx=256, parallel=1), one, tokens)
