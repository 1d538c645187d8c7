"""A deterministic engine gives a text that does not depend on other jobs, although its numbers depend on batch shapes.

The fake backend is told to compute something else in another shape (`shapes`), as real kernels do in the last digits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.engine.one_at_a_time import CHUNK, OneAtATime
from minka.engine.scheduler import Grant
from minka.engine.slot import Run, Slot, Wait
from minka.errors import NotSupportedError, RequestError
from minka.types import Finished, Job
from tests.engine.rig import Recorder, Rig, job
from tests.fakes import FakeBackend, hashed

KEPT = MemoryConfig(limit=1_000_000, block=8)
UNIT = 8


# -- plans -------------------------------------------------------------------------------------------------------------


def a_slot(id: int, n_prompt: int, n_past: int, n_generated: int = 0, wait: Wait | None = None) -> Slot:
    run = Run(Job(str(id), tuple([1] * n_prompt)), Recorder(), 0, 0.0)
    for _ in range(n_generated):
        run.append(2)
    return Slot(id, run.tokens, n_past, run, wait)


def plans(planner: OneAtATime, slots: Sequence[Slot], n: int) -> list[tuple[int, int]]:
    """The next grants, carried out."""
    made = []
    for _ in range(n):
        (grant,) = planner.plan(slots)
        slot = slots[grant.slot]
        slot.n_past += grant.n
        if not slot.pending and slot.run is not None:
            slot.run.append(2)
        made.append((grant.slot, grant.n))
    return made


@pytest.mark.parametrize(
    ("n_prompt", "n_past", "n_generated", "expected"),
    [
        (20, 0, 0, 8),
        (20, 8, 0, 8),
        (20, 16, 0, 4),
        (16, 8, 0, 8),
        (5, 0, 0, 5),
        (20, 11, 0, 5),
        (20, 20, 5, 1),
        (20, 24, 5, 1),
        (20, 16, 5, 4),
    ],
)
def test_pieces_end_at_multiples_of_the_chunk_and_behind_the_prompt_are_single(
    n_prompt: int, n_past: int, n_generated: int, expected: int
) -> None:
    assert OneAtATime(UNIT).plan([a_slot(0, n_prompt, n_past, n_generated)]) == [Grant(0, expected)]


def test_streams_take_turns_and_a_round_has_one_chunk_of_a_prompt() -> None:
    slots = [a_slot(0, 4, 4, 1), a_slot(1, 20, 0), a_slot(2, 4, 4, 1), a_slot(3, 12, 0)]
    made = plans(OneAtATime(UNIT), slots, 15)
    assert made[:9] == [(0, 1), (2, 1), (1, 8), (0, 1), (2, 1), (3, 8), (0, 1), (2, 1), (1, 8)]
    assert made[9:] == [(0, 1), (2, 1), (3, 4), (0, 1), (2, 1), (3, 1)]


def test_prompts_alone_take_turns_and_one_that_waits_is_passed_over() -> None:
    slots = [a_slot(0, 20, 0), a_slot(1, 20, 0, wait=Wait(0, 1, 16)), a_slot(2, 20, 0)]
    assert plans(OneAtATime(UNIT), slots, 5) == [(0, 8), (2, 8), (0, 8), (2, 8), (0, 4)]
    assert OneAtATime(UNIT).plan([Slot(0), a_slot(1, 20, 0, wait=Wait(0, 1, 16))]) == []


# -- texts -------------------------------------------------------------------------------------------------------------


def backend(*, unified: bool, n_seq: int, n_ctx_seq: int = 96, salt: int = 0, cells: int = 0) -> FakeBackend:
    return FakeBackend(
        hashed(salt=salt),
        unified=unified,
        n_seq_max=n_seq,
        n_ctx=cells or n_ctx_seq * n_seq,
        n_batch=UNIT,
        shapes=True,
    )


def alone(one: Job, *, salt: int, deterministic: bool = True) -> list[int]:
    with Rig(backend(unified=False, n_seq=1, salt=salt), deterministic=deterministic) as r:
        r.run(one)
        return r.inbox.tokens(one.id)


def traffic(choose: random.Random) -> list[Job]:
    """Prompts that begin alike, of all lengths, and conversations that go on."""
    texts = [[choose.randrange(97, 107) for _ in range(70)] for _ in range(2)]
    return [
        job(
            str(i),
            [*choose.choice(texts)[: choose.randrange(1, 60)], *([choose.randrange(97, 107)] * choose.randrange(6))],
            choose.choice((1, 5, 20)),
            cache_salt=choose.choice(("", "", "", "salt")),
            cache_prompt=choose.random() < 0.9,
        )
        for i in range(12)
    ]


def among_others(seed: int, *, unified: bool, deterministic: bool, cells: int = 0) -> tuple[Rig, dict[str, Job]]:
    choose = random.Random(seed)
    kept = choose.choice((None, KEPT))
    jobs = traffic(choose)
    made = {one.id: one for one in jobs}
    with Rig(backend(unified=unified, n_seq=4, salt=seed, cells=cells), kept=kept, deterministic=deterministic) as r:
        while jobs or r.loop.busy:
            while jobs and choose.random() < 0.4:
                r.submit(jobs.pop())
            r.step()
            for id in list(made):
                if r.inbox.has_ended(id) and len(made) < 18:  # the conversation goes on
                    before = made[id]
                    if before.id.count("+") < 2 and len(before.prompt) < 60:
                        on = job(f"{id}+{len(made)}", [*before.prompt, *r.inbox.tokens(id), 97], 5)
                        made[on.id] = on
                        jobs.append(on)
        return r, made


@pytest.mark.parametrize("seed", range(30))
def test_a_text_is_the_same_alone_and_among_others(seed: int) -> None:
    r, jobs = among_others(seed, unified=False, deterministic=True)
    assert {id: r.inbox.tokens(id) for id in jobs} == {id: alone(one, salt=seed) for id, one in jobs.items()}
    assert all(len(batch) == 1 for batch in r.backend.decodes)


@pytest.mark.parametrize("seed", range(15))
def test_also_if_it_had_to_give_way_and_was_computed_again(seed: int) -> None:
    """Only a common pool is ever full. What the order of its cells does to sums is not known to the fake backend."""
    r, jobs = among_others(seed, unified=True, deterministic=True, cells=110)
    assert {id: r.inbox.tokens(id) for id in jobs} == {id: alone(one, salt=seed) for id, one in jobs.items()}


def test_the_traffic_reaches_what_it_is_for() -> None:
    rigs = [among_others(seed, unified=False, deterministic=True)[0] for seed in range(15)]
    assert sum(r.loop.counters.cached_tokens for r in rigs) > 500
    assert sum(r.loop.counters.recalled_tokens for r in rigs) > 50
    assert all(event.n_cached % UNIT == 0 for r in rigs for event in map(r.inbox.started, r.jobs))
    full = [among_others(seed, unified=True, deterministic=True, cells=110)[0] for seed in range(15)]
    assert sum(r.loop.counters.preempted for r in full) > 5


def test_without_the_flag_texts_differ() -> None:
    """Else the tests above would prove nothing."""
    differ = 0
    for seed in range(5):
        r, jobs = among_others(seed, unified=False, deterministic=False)
        differ += sum(r.inbox.tokens(id) != alone(one, salt=seed, deterministic=False) for id, one in jobs.items())
    assert differ > 20


def test_generated_text_is_never_taken_over() -> None:
    with Rig(backend(unified=False, n_seq=2, salt=3), kept=KEPT, deterministic=True) as r:
        r.run(job("one", [97] * 20, 30))
        r.run(job("two", [*[97] * 20, *r.inbox.tokens("one")], 4))
        assert r.inbox.started("two").n_cached == 16
        r.run(job("three", [*[97] * 20, *r.inbox.tokens("one"), 98], 4))
        assert r.inbox.started("three").n_cached == 48
        for id in ("two", "three"):
            assert r.inbox.tokens(id) == alone(r.jobs[id], salt=3)


def test_a_state_from_outside_is_not_taken_over() -> None:
    with Rig(backend(unified=False, n_seq=1), deterministic=True) as r:
        r.run(job("one", [97] * 40, 10))
        saved = r.loop.control._save(r.slots()[0])
        r.run(job("other", [98] * 40, 4))
        r.loop.control._restore(r.slots()[0], saved, "")
        r.run(job("again", [97] * 40, 10))
        assert r.inbox.started("again").n_cached == 0


@pytest.mark.parametrize("memory", ["recurrent", "window"])
def test_models_that_are_not_plain_attention_start_anew(memory: str) -> None:
    made = FakeBackend(unified=False, n_seq_max=2, n_ctx=256, n_batch=UNIT, memory=memory)  # type: ignore[arg-type]
    with Rig(made, kept=KEPT, deterministic=True) as r:
        r.run(job("one", [97] * 60, 10))
        r.run(job("again", [97] * 60, 10), job("longer", [97] * 80, 10))
        assert [r.inbox.started(id).n_cached for id in ("again", "longer")] == [0, 0]
        assert not r.memory.snapshots
        r.expect_solo()


def test_a_pin_is_of_use_or_refused() -> None:
    with Rig(backend(unified=False, n_seq=2), kept=KEPT, deterministic=True) as r:
        r.run(job("one", [97] * 44, 4, pin="name"))
        r.run(*(job(str(i), [98 + i] * 40, 2) for i in range(4)))
        r.run(job("again", [97] * 44 + [98], 4))
        assert r.inbox.started("again").n_cached == 40
    whole = FakeBackend(unified=False, n_seq_max=1, n_ctx=256, memory="recurrent")
    with Rig(whole, kept=KEPT, deterministic=True) as r:
        r.run(job("one", [97] * 44, 4, pin="name"))
        assert isinstance(r.inbox.error("one"), RequestError)


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unified", "config", "says"),
    [
        (True, {}, "needs a KV buffer for each slot"),
        (False, {"shifts": True}, "--context-shift exclude each other"),
        (False, {"reuses": True}, "--cache-reuse cannot be used: --deterministic forbids"),
        (False, {"disk": "somewhere"}, "--cache-disk exclude each other"),
    ],
)
def test_what_would_break_the_promise_is_refused(
    fake_backend: Callable[..., FakeBackend], unified: bool, config: dict[str, object], says: str
) -> None:
    with pytest.raises(NotSupportedError, match=says):
        Engine(fake_backend(unified=unified), EngineConfig(deterministic=True, **config))  # type: ignore[arg-type]


def test_the_engine_keeps_the_promise(fake_backend: Callable[..., FakeBackend]) -> None:
    made = fake_backend(unified=False, shapes=True)
    engine = Engine(made, EngineConfig(deterministic=True, check=True))
    with pytest.raises(RequestError, match="n_cache_reuse"):
        next(engine.stream(job("moved", "abc", n_cache_reuse=5)))
    texts = [list(engine.stream(job(str(i), "a" * 100, 8))) for i in range(2)]
    engine.close()
    assert all(isinstance(events[-1], Finished) for events in texts)
    assert [len(chunk.tokens) for batch in made.decodes for chunk in batch][:2] == [CHUNK, 100 - CHUNK]
