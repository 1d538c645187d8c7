"""Whatever raises, wherever and when: every job ends once, and every question is answered.

One part of what the engine stands on is made to raise at one call of it, while jobs of all kinds, embeddings, commands
and cancels are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from minka.engine.control import SlotState
from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.errors import MinkaError, NativeError, UnavailableError
from minka.types import Constraint, EmbedJob, Job
from tests.engine.rig import job
from tests.engine.test_engine import Ends
from tests.fake_constraints import FakeConstraints, FakeMatcher
from tests.fake_embedder import FakeEmbedder
from tests.fakes import WAIT, FakeBackend, FakeSampler

OF_BACKEND = (
    *("add", "adapt", "check_adapters", "decode", "discard", "logits", "sampler", "share", "shift", "cut", "floor"),
    *("length", "extract", "insert", "save", "restore", "load_adapter", "unload_adapter", "portable", "adopt"),
)
OF_OTHERS = (
    *((FakeSampler, name) for name in ("sample", "guess", "accept", "close", "candidates")),
    *((FakeEmbedder, name) for name in ("grow", "compute", "drop")),
    (FakeConstraints, "start"),
    *((FakeMatcher, name) for name in ("allows", "apply", "forced", "accept")),
)
PARTS = [*((FakeBackend, name) for name in OF_BACKEND), *OF_OTHERS]
FAULTS = (
    *((RuntimeError, 1, False), (RuntimeError, 1, True), (RuntimeError, 4, False), (RuntimeError, 20, True)),
    *((NativeError, 1, True), (NativeError, 4, False), (MemoryError, 3, False)),
)
"""What is raised, at which call, and whether at all that follow."""
STEM = "You are a helper who answers in one sentence. "


class Fault:
    """Replaces a method by one that raises at its call number `at`, and at all that follow if it `stays`."""

    def __init__(self, owner: type, name: str, error: type[Exception], at: int, *, stays: bool) -> None:
        self._real: Callable[..., object] = getattr(owner, name)
        self._empties = name == "decode"
        self._error, self._at, self._stays = error, at, stays
        self.n_calls = self.n_raised = 0

    def __call__(self, *args: object, **options: object) -> object:
        self.n_calls += 1
        if self.n_calls == self._at or (self._stays and self.n_calls > self._at):
            self.n_raised += 1
            if self._empties:
                FakeBackend.discard(args[0])  # type: ignore[arg-type]  # a decode that fails has emptied the batch
            raise self._error("scripted")
        return self._real(*args, **options)


def jobs() -> list[Job]:
    made = [job(f"{i}", STEM + "abc"[i % 3] * i, 6, cache_salt="me" if i % 5 == 4 else "") for i in range(8)]
    return [
        *made,
        replace(made[0], id="private", cache_prompt=False),
        replace(made[1], id="bound", constraint=Constraint("x" * 8)),
        replace(made[2], id="scored", prompt_logprobs=1),
        replace(made[3], id="pinned", pin="stem"),
        replace(made[4], id="adapted", lora=((0, 1.0),)),
        replace(made[5], id="endless", n_predict=90, n_keep=300),
        replace(made[6], id="there", id_slot=1),
    ]


def ask_all(engine: Engine, inbox: Ends) -> tuple[int, list[Future[object]]]:
    """Everything that can be asked of an engine: how many jobs it took, and the futures of what has one."""
    n_taken = 0
    replies: list[Future[object]] = [engine.load_adapter(Path("0.gguf"), 1.0)]  # type: ignore[list-item]
    replies[0].exception(WAIT)
    texts = ((1, 2, 3), (4,) * 40, (5,) * 100)
    for number, one in enumerate(jobs()):
        try:
            engine.submit(one, inbox)
        except UnavailableError:
            continue
        n_taken += 1
        if number == 4:
            with suppress(UnavailableError):
                replies.append(engine.embed(EmbedJob(texts)))  # type: ignore[arg-type]
            replies += [engine.save_slot(0), engine.view()]  # type: ignore[list-item]
        if number == 8:
            replies += [engine.restore_slot(1, SlotState((), b"")), engine.erase_slot(2)]  # type: ignore[list-item]
            replies += [engine.cache(), engine.end_thinking("bound"), engine.unload_adapter(7)]  # type: ignore[list-item]
    engine.cancel("private")
    engine.cancel("7")
    return n_taken, replies


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0].__name__}.{part[1]}")
def test_every_job_ends_once_and_every_question_is_answered(
    part: tuple[type, str], unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(memory=MemoryConfig(limit=2000, block=16), shifts=True, check=True)
    for error, at, stays in FAULTS:
        backend = FakeBackend(unified=unified, n_seq_max=3, n_ctx=130 if unified else 390, n_batch=48)
        fault = Fault(*part, error, at, stays=stays)
        with monkeypatch.context() as patch:
            patch.setattr(*part, lambda *args, fault=fault, **options: fault(*args, **options))
            engine = Engine(backend, config, FakeConstraints(), FakeEmbedder(splits=True))
            inbox = Ends()
            try:
                n_taken, replies = ask_all(engine, inbox)
                inbox.wait(n_taken)
                for reply in replies:
                    assert isinstance(reply.exception(WAIT), MinkaError | None)
            except CancelledError:
                raise AssertionError("a question was neither answered nor refused") from None
            finally:
                engine.close()
        assert not backend.misuses
        assert engine.n_open == 0
        for events in inbox.events.values():
            assert sum(type(event).__name__ in ("Finished", "Failed", "Cancelled") for event in events) == 1
