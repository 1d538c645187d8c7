"""A text that fills its context drops its middle and goes on; nobody else ever starts from what was moved."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.engine.shift import Shift, context_shift
from minka.errors import NotSupportedError, RequestError
from minka.types import Finished, FinishReason, Job
from tests.engine.rig import Rig, job
from tests.fakes import FakeBackend, FakeVocab, digest, tokens_of

Rigs = Callable[..., Rig]
KEPT = MemoryConfig(limit=100_000, block=16)
STORY = "Once upon a time there was a text that did not want to end. "


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "add_bos", "expected"),
    [
        ({}, False, Shift(0, 127)),
        ({}, True, Shift(1, 127)),
        ({"n_keep": 100}, False, Shift(100, 77)),
        ({"n_keep": 100}, True, Shift(101, 77)),
        ({"n_keep": -1}, False, Shift(10, 122)),
        ({"n_keep": -1}, True, Shift(11, 122)),
        ({"n_keep": 252}, False, Shift(252, 1)),
        ({"n_keep": 252}, True, Shift(252, 1)),
        ({"n_keep": 2**31 - 1}, True, Shift(252, 1)),
        ({"n_discard": 1}, False, Shift(0, 1)),
        ({"n_discard": 1000}, False, Shift(0, 254)),
        ({"n_keep": 250, "n_discard": 1000}, False, Shift(250, 4)),
    ],
)
def test_the_rule_is_llama_servers(fields: dict[str, int], add_bos: bool, expected: Shift) -> None:
    assert context_shift(Job("", tuple(range(10)), **fields), 255, 256, add_bos=add_bos) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("n_ctx", range(2, 12))
@pytest.mark.parametrize("n_keep", [-1, 0, 3, 100])
def test_however_small_the_context_there_is_room_afterwards(n_ctx: int, n_keep: int) -> None:
    shift = context_shift(Job("", (1,), n_keep=n_keep), n_ctx - 1, n_ctx, add_bos=True)
    assert 0 <= shift.keep < shift.end <= n_ctx - 1


def test_what_is_left_of_the_tokens() -> None:
    assert Shift(2, 3).apply([0, 1, 2, 3, 4, 5, 6]) == [0, 1, 5, 6]


# -- in the loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["plain", "recurrent"])
@pytest.mark.parametrize(
    "fields", [{}, {"n_keep": 7}, {"n_keep": -1}, {"n_discard": 5}, {"n_keep": 500, "n_discard": 500}]
)
def test_a_text_is_far_longer_than_its_context(rig: Rigs, memory: str, fields: dict[str, int]) -> None:
    r = rig(shifts=True, n_seq_max=1, n_ctx=64, memory=memory)
    r.run(job("long", STORY[:20], 300, **fields))
    r.expect_solo("long")
    end = r.inbox.finished("long")
    assert (end.truncated, end.reason, end.timings.predicted_n) == (True, FinishReason.LIMIT, 300)
    assert end.n_past < 64
    r.expect_all_idle()


def test_the_vocabularys_bos_is_kept_as_well(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=1, n_ctx=64, vocab=FakeVocab(add_bos=True))
    r.run(job("long", STORY[:20], 100))
    assert r.backend.held(0)[0] == ord(STORY[0])
    r.expect_solo("long")


def test_a_text_that_just_fits_is_not_truncated(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=1, n_ctx=64)
    r.run(job("fits", STORY[:20], 44), job("one more", STORY[:21], 44))
    assert [r.inbox.finished(id).truncated for id in ("fits", "one more")] == [False, True]
    r.expect_solo()


def test_without_shifts_the_context_ends_the_text(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=64)
    r.run(job("long", STORY[:20], 300, n_keep=5, n_discard=5))
    end = r.inbox.finished("long")
    assert (end.truncated, end.reason, end.timings.predicted_n) == (True, FinishReason.LIMIT, 44)
    r.expect_solo()


def test_penalties_see_all_that_was_said(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=1, n_ctx=64)
    r.run(job("long", STORY[:20], 200))
    said = r.backend.samplers[0].said
    assert said == [*tokens_of(STORY[:20]), *r.inbox.tokens("long")]


def test_streams_beside_it_do_not_notice(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=4, n_ctx=256)
    r.run(*(job(str(i), STORY[: 20 + 9 * i], 40 + 60 * i, n_keep=i) for i in range(4)))
    assert sum(r.inbox.finished(str(i)).truncated for i in range(4)) in (1, 2, 3)
    r.expect_solo()


def test_what_was_moved_is_no_ones_beginning(rig: Rigs) -> None:
    """A prompt of exactly the tokens that a shifted slot holds takes over what was kept, and computes the rest."""
    r = rig(shifts=True, n_seq_max=2, n_ctx=256, kept=KEPT)
    r.run(job("long", STORY[:20], 300, n_keep=18))
    held = tuple(r.backend.held(0))
    assert r.backend.sound(0) == 18
    for i in range(3):
        r.run(job(f"same {i}", held[:100], 1))
        assert r.inbox.started(f"same {i}").n_cached == (18 if i == 0 else 99)
    r.expect_solo()


def test_what_was_moved_is_kept_nowhere(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=2, n_ctx=256, kept=KEPT)
    r.run(job("long", STORY[:40], 300, n_keep=32))
    held = tuple(r.backend.held(0))
    r.run(*(job(f"other {i}", f"{i} something else " * 3, 4) for i in range(4)))
    assert r.memory.known(held, "") == 32
    r.run(job("again", held[:60], 4))
    assert r.inbox.started("again").n_cached == 32
    r.expect_solo()


def test_a_slot_with_moved_text_is_not_saved(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=1, n_ctx=64)
    r.run(job("long", STORY[:20], 100))
    with pytest.raises(RequestError, match="Unable to save slot: a part of its text was moved"):
        r.loop.control._save(r.slots()[0])
    r.run(job("short", STORY[:20], 4))
    assert r.loop.control._save(r.slots()[0]).tokens == tuple(r.backend.held(0))


def roomy(n_ctx_seq: int = 128, n_seq: int = 2, n_ctx: int = 512) -> Rig:
    """One pool with more cells than a sequence may have positions, as --kv-unified-per-slot makes it."""
    backend = FakeBackend(unified=True, n_seq_max=n_seq, n_ctx=n_ctx)
    backend.n_ctx_seq = n_ctx_seq
    return Rig(backend, shifts=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_crowd_that_shares_its_beginning(seed: int) -> None:
    """Cells that move, cells that others share, and cells that had to be given up, all at once."""
    choose = random.Random(seed)
    stem = [choose.randrange(97, 120) for _ in range(50)]
    with roomy(n_ctx_seq=64, n_seq=4, n_ctx=choose.choice((120, 256))) as r:
        for i in range(12):
            prompt = [*stem[: choose.randrange(20, 50)], *[97 + i] * choose.randrange(3)]
            n_keep, n_discard = choose.choice((-1, 0, 10)), choose.choice((0, 0, 1, 5))
            r.submit(job(str(i), prompt, choose.randrange(1, 120), n_keep=n_keep, n_discard=n_discard))
            r.step(choose.randrange(20))
        r.run()
        r.expect_solo()
        r.expect_all_idle()


def test_cells_of_others_are_not_moved() -> None:
    """Two runs share more than what a shift keeps and drops: who is full computes the rest again, if the other is."""
    with roomy() as r:
        prompt = [97 + digest([i]) % 20 for i in range(110)]
        r.submit(job("first", prompt, 30))
        r.step_until(lambda: len(r.inbox.tokens("first")) > 2)
        r.run(job("second", prompt, 2))
        assert r.inbox.started("second").n_cached == 109
        assert r.inbox.finished("first").truncated
        assert r.backend.sound(0) == r.backend.length(0)
        assert r.backend.n_computed == 110 + 1 + (29 + 1) + (127 - 63)
        r.expect_solo()


def test_cells_that_nobody_shares_any_more_are_moved() -> None:
    with roomy() as r:
        prompt = [97 + digest([i]) % 20 for i in range(110)]
        r.submit(job("first", prompt, 30))
        r.step_until(lambda: len(r.inbox.tokens("first")) > 2)
        r.submit(job("second", prompt, 100))
        r.step_until(lambda: bool(r.inbox.tokens("second")))
        r.loop.cancel("second")
        r.loop.control._erase(r.slots()[1])
        r.step_until(lambda: not r.loop.busy)
        assert r.backend.sound(0) == 0
        assert r.backend.n_computed == 110 + 1 + 29
        r.expect_solo("first")


def test_a_state_that_was_shared_is_computed_again_as_a_whole() -> None:
    """A recurrent state cannot be cut back to what a shift keeps."""
    backend = FakeBackend(unified=True, n_seq_max=2, n_ctx=512, memory="recurrent")
    backend.n_ctx_seq = 64
    with Rig(backend, shifts=True) as r:
        r.submit(job("long", STORY[:40], 100, n_keep=4, n_discard=2))
        r.step_until(lambda: len(r.inbox.tokens("long")) > 3)
        r.submit(job("on", [*backend.held(0), 97, 98], 30, n_keep=4))
        r.step_until(lambda: bool(r.inbox.tokens("on")))
        assert r.inbox.started("on").n_cached > 40
        r.run()
        r.expect_solo()


def test_a_shared_beginning_that_stays_is_shared_on() -> None:
    with Rig(FakeBackend(unified=True, n_seq_max=2, n_ctx=128), shifts=True) as r:
        prompt = [97 + digest([i]) % 20 for i in range(40)]
        r.run(job("a", prompt, 200, n_keep=-1), job("b", prompt, 60, n_keep=-1))
        assert r.inbox.started("b").n_cached == 39
        r.expect_solo()


def test_who_gives_way_after_a_shift_comes_back_with_what_is_left() -> None:
    with Rig(FakeBackend(unified=True, n_seq_max=3, n_ctx=100), shifts=True) as r:
        r.run(*(job(str(i), [97 + i] * 20, 250) for i in range(3)))
        assert r.loop.counters.preempted
        assert all(r.inbox.finished(str(i)).truncated for i in range(3))
        r.expect_solo()


def test_a_run_can_be_cancelled_right_after_a_shift(rig: Rigs) -> None:
    r = rig(shifts=True, n_seq_max=2, n_ctx=128, kept=KEPT)
    r.submit(job("long", STORY[:20], 500, n_keep=17))
    r.step_until(lambda: r.backend.sound(0) == 17 < r.backend.length(0))
    r.loop.cancel("long")
    r.run(*(job(str(i), STORY[:20] + str(i), 4) for i in range(3)))
    r.expect_solo("0", "1", "2")
    r.expect_all_idle()


# -- where it cannot be ------------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_shift_does_not_start(fake_backend: Callable[..., FakeBackend]) -> None:
    for backend in (fake_backend(memory="window"), fake_backend(can_shift=False)):
        with pytest.raises(NotSupportedError, match="--context-shift cannot be used"):
            Engine(backend, EngineConfig(shifts=True))


def test_the_engine_shifts(fake_backend: Callable[..., FakeBackend]) -> None:
    engine = Engine(fake_backend(n_ctx=64, n_seq_max=1), EngineConfig(shifts=True, check=True))
    end = list(engine.stream(job("long", STORY[:20], 100)))[-1]
    engine.close()
    assert isinstance(end, Finished)
    assert (end.truncated, end.timings.predicted_n) == (True, 100)
