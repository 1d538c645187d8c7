from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from minka.engine.memory import MemoryConfig
from minka.engine.turns import TURN
from minka.errors import NotFoundError
from minka.params import Adapters
from tests.engine.rig import Rig, job
from tests.fakes import Cost, FakeBackend

A: Adapters = ((0, 1.0),)
B: Adapters = ((1, 0.5),)
BOTH: Adapters = ((0, 1.0), (1, 0.5))
SETS = ((), A, B, BOTH)
PROMPT = "one prompt that is long enough to be shared by everybody"


def adapted(**options: object) -> FakeBackend:
    """A backend with two adapters."""
    backend = FakeBackend(**options)  # type: ignore[arg-type]
    for n in range(2):
        backend.load_adapter(Path(f"{n}.gguf"), 1.0)
    return backend


def test_each_job_is_computed_with_its_own_adapters() -> None:
    with Rig(adapted()) as rig:
        rig.run(*(job(str(n), PROMPT, 20, lora=lora) for n, lora in enumerate(SETS)))
        rig.expect_solo()
        texts = [rig.inbox.text(str(n)) for n in range(len(SETS))]
        assert len(set(texts)) == len(SETS)


def test_jobs_of_one_set_are_computed_together() -> None:
    backend = adapted()
    with Rig(backend) as rig:
        rig.run(*(job(str(n), PROMPT + str(n), 30, lora=A) for n in range(4)))
        assert backend.n_adapted == 1
        assert len(backend.decodes) < 40
        rig.expect_solo()


def test_sets_take_turns_and_none_starves() -> None:
    backend = adapted(cost=Cost(step=0.01))
    with Rig(backend) as rig:
        rig.submit(*(job(str(n), PROMPT, 60, lora=lora) for n, lora in enumerate(SETS)))
        rig.step_until(lambda: all(rig.inbox.tokens(str(n)) for n in range(4)))
        began = [len(rig.inbox.tokens(str(n))) for n in range(4)]
        seen: list[int] = []
        for _ in range(4 * TURN * 5):
            rig.step()
            seen.append(next(chunk.seq for chunk in backend.decodes[-1]))
            assert len({rig.slots()[chunk.seq].lora for chunk in backend.decodes[-1]}) == 1
        grown = [len(rig.inbox.tokens(str(n))) - before for n, before in enumerate(began)]
        assert max(grown) - min(grown) <= TURN
        assert set(Counter(seen).values()) <= {5 * TURN - TURN, 5 * TURN, 5 * TURN + TURN}
        rig.step_until(lambda: not rig.loop.busy)
        rig.expect_solo()


def test_streams_of_one_set_do_not_wait_long_for_the_prompt_of_another() -> None:
    """A whole turn of the others fits into the longest pause: their prompts are computed in pieces that small."""
    backend = adapted(n_ctx=8192, cost=Cost(step=0.01, prefill=0.001))
    with Rig(backend, max_gap=0.2) as rig:
        rig.submit(job("stream", "hello", 400))
        rig.step(30)
        rig.submit(job("long", "x" * 3000, 4, lora=A))
        rig.step_until(lambda: bool(rig.inbox.tokens("long")))
        times = rig.inbox.times["stream"]
        assert max(b - a for a, b in pairwise(times)) <= 0.2 + 0.01
        rig.step_until(lambda: not rig.loop.busy)
        rig.expect_solo()


def test_text_of_one_set_is_never_used_by_another() -> None:
    backend = adapted()
    with Rig(backend, kept=MemoryConfig(limit=1 << 30)) as rig:
        for n, lora in enumerate(SETS):
            rig.run(job(f"cold{n}", PROMPT, lora=lora))
            assert rig.inbox.started(f"cold{n}").n_cached == 0
        for n, lora in enumerate(SETS):
            rig.run(job(f"warm{n}", PROMPT, lora=lora))
            assert rig.inbox.started(f"warm{n}").n_cached == len(PROMPT) - 1
        rig.run(job("other", PROMPT, lora=((0, 0.5),)))
        assert rig.inbox.started("other").n_cached == 0
        rig.expect_solo()


def test_a_salt_and_a_set_are_both_needed() -> None:
    with Rig(adapted(), kept=MemoryConfig(limit=1 << 30)) as rig:
        rig.run(job("a", PROMPT, lora=A, cache_salt="x"))
        rig.run(job("b", PROMPT, lora=A))
        rig.run(job("c", PROMPT, cache_salt=job("", "x", lora=A, cache_salt="x").namespace + "."))
        rig.run(job("d", PROMPT, lora=A, cache_salt="x"))
        assert [rig.inbox.started(id).n_cached > 0 for id in "abcd"] == [False, False, False, True]


def test_a_job_whose_adapter_is_gone_fails_alone() -> None:
    backend = adapted()
    with Rig(backend) as rig:
        backend.unload_adapter(1)
        rig.run(job("gone", PROMPT, lora=BOTH), job("fine", PROMPT, lora=A))
        assert isinstance(rig.inbox.error("gone"), NotFoundError)
        rig.expect_solo("fine")


def test_a_deterministic_engine_takes_turns_as_well() -> None:
    backend = adapted(unified=False, n_rows=64, shapes=True)
    texts = []
    for among in (False, True):
        with Rig(adapted(unified=False, n_rows=64, shapes=True), deterministic=True) as rig:
            others = [job(str(n), PROMPT * 3, 20, lora=lora) for n, lora in enumerate(SETS[1:])] if among else []
            rig.run(job("me", PROMPT * 2, 30, lora=A), *others)
            texts.append(rig.inbox.text("me"))
    assert texts[0] == texts[1]
    backend.close()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.booleans(),
)
def test_any_mix_gives_everybody_the_text_of_its_set(
    wanted: list[tuple[int, int, int]], n_seq_max: int, unified: bool
) -> None:
    backend = adapted(n_seq_max=n_seq_max, n_ctx=160 * n_seq_max, n_batch=32, unified=unified)
    with Rig(backend, kept=MemoryConfig(limit=1 << 20)) as rig:
        text = PROMPT * 2
        rig.run(*(job(str(n), text[:size], new, lora=SETS[which]) for n, (which, size, new) in enumerate(wanted)))
        rig.expect_solo()
        rig.expect_all_idle()


def test_the_set_is_changed_once_a_turn() -> None:
    backend = adapted()
    with Rig(backend) as rig:
        rig.run(job("a", PROMPT, 20 * TURN), job("b", PROMPT, 20 * TURN, lora=A))
        assert 0 < backend.n_adapted <= len(backend.decodes) / TURN + 2
