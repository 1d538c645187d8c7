"""What the flags of hardware do to a model that the engine runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from minka.engine.engine import EngineConfig
from minka.errors import UsageError
from minka.native.model import Model
from minka.native.placement import Placement, placement
from minka.native.threadpool import Pinning, Threadpool
from minka.params import (
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    HardwareParams,
    ModelParams,
    SamplingParams,
)
from minka.runtime import Settings, load
from minka.types import Finished, Job, Token
from tests.tiny_fixtures import TinyModels


def settings(path: Path, hardware: HardwareParams) -> Settings:
    return Settings(
        ModelParams(model=str(path)),
        ContextParams(n_ctx=256, parallel=1, threads=2),
        SamplingParams(),
        GenerationParams(),
        ChatParams(),
        EngineConfig(),
        hardware=hardware,
    )


def answer(wanted: Settings) -> str:
    job = Job("a", (1, 5, 6, 7), SamplingParams(temperature=0), n_predict=6)
    with closing(load(wanted)) as runtime:
        return "".join(event.text for event in runtime.engine.stream(job) if isinstance(event, Token | Finished))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Placement | None]:
    """The placements of the models that are loaded."""
    found: list[Placement | None] = []
    original = Model.load.__func__  # type: ignore[attr-defined]

    def note(cls: type[Model], *args: object) -> Model:
        found.append(args[3])  # type: ignore[arg-type]
        return original(cls, *args)  # type: ignore[no-any-return]

    monkeypatch.setattr(Model, "load", classmethod(note))
    return found


def test_the_engine_loads_tensors_where_the_flags_say(tiny_models: TinyModels, loaded: list[Placement | None]) -> None:
    path = tiny_models("llama")
    hardware = HardwareParams(override_tensor=("ffn_.*=CPU",), n_cpu_ffn=1, lazy_mode="off")
    assert answer(settings(path, hardware)) == answer(settings(path, HardwareParams()))
    assert loaded == [placement(hardware), Placement()]


def test_metadata_change_the_model_and_what_tells_it_apart(tiny_models: TinyModels) -> None:
    path = tiny_models("llama")
    other = HardwareParams(override_kv=("llama.rope.freq_base=float:500.0",))
    assert answer(settings(path, other)) != answer(settings(path, HardwareParams()))
    prints = []
    for hardware in (HardwareParams(), other, other):
        with closing(Model.load(path, ModelParams(), None, placement(hardware))) as model:
            prints.append(model.fingerprint)
    assert prints[0] != prints[1] == prints[2], "computed text of the one must not be taken for the other's"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, Pinning]]]:
    """The thread pools that are made; at the end all must be closed."""
    made: list[tuple[int, Pinning]] = []
    live: list[Threadpool] = []
    original = Threadpool.__init__

    def note(self: Threadpool, n_threads: int, pinning: Pinning) -> None:
        original(self, n_threads, pinning)
        made.append((n_threads, pinning))
        live.append(self)

    monkeypatch.setattr(Threadpool, "__init__", note)
    yield made
    assert [pool._pool for pool in live] == [None] * len(live)


def test_threads_are_pinned_for_text_and_embeddings(
    tiny_models: TinyModels, pools: list[tuple[int, Pinning]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attached: list[int] = []
    original = Threadpool.attach

    def note(self: Threadpool, context: int, batch: Threadpool | None = None) -> None:
        attached.append(context)
        original(self, context, batch)

    monkeypatch.setattr(Threadpool, "attach", note)
    path = tiny_models("llama")
    pinned = settings(path, HardwareParams(cpu_mask="0x1", poll=0, poll_batch=10))
    pinned = replace(pinned, context=replace(pinned.context, threads_batch=1))
    assert answer(pinned) == answer(settings(path, HardwareParams()))
    assert pools == [(2, Pinning(frozenset({0}), poll=0)), (1, Pinning(poll=10))]
    assert len(attached) == 1
    attached.clear()
    load(replace(pinned, embedding=EmbeddingParams(embeddings=True))).close()
    assert len(set(attached)) > 1, "those of text, and those that embed"


@pytest.mark.skipif(
    sys.platform != "linux" or os.cpu_count() == 1, reason="needs Linux's view of threads, and two CPUs"
)
def test_pinned_threads_run_where_they_should(tiny_models: TinyModels) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = {thread.name for thread in Path("/proc/self/task").iterdir()}
    with closing(load(settings(tiny_models("llama"), HardwareParams(cpu_range=f"{cpu}-{cpu}")))) as runtime:
        job = Job("a", (1, 5, 6, 7), SamplingParams(temperature=0), n_predict=2)
        assert [event for event in runtime.engine.stream(job) if isinstance(event, Finished)]
        new = [thread for thread in Path("/proc/self/task").iterdir() if thread.name not in before]
        pinned = [thread for thread in new if os.sched_getaffinity(int(thread.name)) == {cpu}]
        assert len(pinned) >= 2


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        (HardwareParams(device=("CUDA9",)), "no device 'CUDA9'"),
        (HardwareParams(override_tensor=("a=CUDA9",)), "no buffer type 'CUDA9'"),
        (HardwareParams(cpu_mask="zz"), "no CPU mask"),
        (HardwareParams(override_kv=("a",)), "KEY=TYPE:VALUE"),
    ],
)
def test_what_cannot_be_is_known_before_the_model_is_looked_for(hardware: HardwareParams, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(settings(Path("none.gguf"), hardware))


def test_priority_and_numa_are_the_process_s(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("minka.native.placement.set_priority", calls.append)
    monkeypatch.setattr("minka.native.placement.init_numa", calls.append)
    answer(settings(tiny_models("llama"), HardwareParams(prio=2, numa="isolate")))
    assert calls == ["isolate", 2]
