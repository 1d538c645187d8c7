"""LoRA adapters loaded and unloaded between the steps of a loop, and through the engine."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from minka.engine.control import LoadAdapter, SaveSlot, SlotState, UnloadAdapter
from minka.engine.engine import Engine
from minka.errors import ModelError, NotFoundError, RequestError, UnavailableError
from minka.types import Adapter, Event, Failed, Finished
from tests.engine.rig import Rig, job
from tests.fakes import WAIT, FakeBackend

PROMPT = "a prompt that is long enough to be kept by everybody"


def load(rig: Rig, name: str = "a.gguf") -> Adapter:
    reply: Future[Adapter] = Future()
    rig.loop.control.do(LoadAdapter(Path(name), 1.0, reply))
    return reply.result(0)


def unload(rig: Rig, id: int) -> Future[None]:
    reply: Future[None] = Future()
    rig.loop.control.do(UnloadAdapter(id, reply))
    return reply


def test_an_adapter_can_be_used_as_soon_as_it_is_loaded() -> None:
    with Rig(FakeBackend()) as rig:
        rig.submit(job("running", PROMPT, 40))
        rig.step(3)
        adapter = load(rig)
        rig.run(job("new", PROMPT, lora=((adapter.id, 1.0),)))
        rig.expect_solo()


def test_unloading_waits_for_the_jobs_that_need_it_and_for_no_others() -> None:
    with Rig(FakeBackend()) as rig:
        first, second = load(rig), load(rig, "b.gguf")
        rig.submit(job("needs", PROMPT, 20, lora=((first.id, 1.0),)), job("not", PROMPT, 60, lora=((second.id, 1.0),)))
        rig.step(3)
        reply = unload(rig, first.id)
        assert not reply.done()
        rig.step_until(reply.done)
        assert rig.inbox.has_ended("needs")
        assert not rig.inbox.has_ended("not")
        rig.step_until(lambda: not rig.loop.busy)
        rig.expect_solo()
        rig.run(job("late", PROMPT, lora=((first.id, 1.0),)))
        assert isinstance(rig.inbox.error("late"), NotFoundError)


def test_what_an_unloaded_adapter_left_is_used_by_nobody() -> None:
    with Rig(FakeBackend()) as rig:
        before = load(rig)
        rig.run(job("before", PROMPT, lora=((before.id, 1.0),)))
        assert unload(rig, before.id).result(0) is None
        after = load(rig)
        assert after.id != before.id
        rig.run(job("after", PROMPT, lora=((after.id, 1.0),)), job("plain", PROMPT))
        assert rig.inbox.started("after").n_cached == 0
        rig.expect_solo("after", "plain")


def test_an_order_for_nothing_is_an_error() -> None:
    with Rig(FakeBackend()) as rig:
        with pytest.raises(ModelError):
            load(rig, "bad.gguf")
        with pytest.raises(NotFoundError):
            unload(rig, 3).result(0)


def test_a_slot_that_adapters_computed_is_not_saved() -> None:
    with Rig(FakeBackend()) as rig:
        adapter = load(rig)
        rig.run(job("a", PROMPT, id_slot=0, lora=((adapter.id, 1.0),)))
        reply: Future[SlotState] = Future()
        rig.loop.control.do(SaveSlot(0, reply))
        with pytest.raises(RequestError, match="LoRA adapters computed its text"):
            reply.result(0)
        rig.run(job("b", PROMPT, id_slot=0))
        reply = Future()
        rig.loop.control.do(SaveSlot(0, reply))
        assert len(reply.result(0).tokens) > len(PROMPT)


def test_the_engine_loads_uses_and_unloads() -> None:
    with FakeBackend() as backend:
        engine = Engine(backend)
        adapter = engine.load_adapter(Path("a.gguf"), 0.5).result(WAIT)
        assert adapter == Adapter(0, "a.gguf", 0.5)
        assert isinstance(list(engine.stream(job("a", PROMPT, lora=((0, 0.5),))))[-1], Finished)
        assert engine.unload_adapter(0).result(WAIT) is None
        with pytest.raises(NotFoundError):
            engine.unload_adapter(0).result(WAIT)
        events: list[Event] = []
        with pytest.raises(NotFoundError):
            events += engine.stream(job("b", PROMPT, lora=((0, 0.5),)))
        assert not any(isinstance(event, Failed) for event in events)
        engine.close()
        with pytest.raises(UnavailableError):
            engine.load_adapter(Path("b.gguf"), 1.0).result(WAIT)
