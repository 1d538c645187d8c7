"""When KV cells run out: idle text goes first, then the least important run is computed again later."""

from __future__ import annotations

from collections.abc import Callable

from minka.types import Priority
from tests.engine.rig import Rig, job
from tests.fakes import Cost, FakeBackend

Rigs = Callable[..., Rig]


def unified(**options: object) -> Rig:
    return Rig(FakeBackend(unified=True, **options))  # type: ignore[arg-type]


def test_runs_that_grow_over_the_pool_all_finish_with_their_own_text() -> None:
    with unified(n_ctx=100) as r:
        r.run(*(job(str(i), f"{i}: a prompt of some size.", 40) for i in range(4)))
        assert r.loop.counters.preempted > 0
        r.expect_solo()
        r.expect_all_idle()


def test_more_prompts_than_fit_at_once_wait_for_room() -> None:
    with unified(n_ctx=100) as r:
        r.run(*(job(str(i), [97 + i] * 60, 10) for i in range(4)))
        assert r.loop.counters.preempted == 0, "nobody is admitted who will not fit"
        r.expect_solo()


def test_the_youngest_gives_way_and_the_oldest_is_never_disturbed() -> None:
    with unified(n_ctx=100) as r:
        r.submit(*(job(str(i), [97 + i] * 20, 60) for i in range(3)))
        r.step_until(lambda: r.loop.counters.preempted == 1)
        assert [run.job.id for run in r.loop.queue] == ["2"]
        r.run()
        gaps = [b - a for a, b in zip(r.inbox.times["0"], r.inbox.times["0"][1:], strict=False)]
        assert len(gaps) == 59
        r.expect_solo()


def test_who_gave_way_comes_back_before_those_who_never_ran() -> None:
    with unified(n_ctx=100, n_seq_max=3) as r:
        r.submit(*(job(str(i), [97 + i] * 20, 60) for i in range(3)), job("newer", [120] * 5, 2))
        r.step_until(lambda: r.loop.counters.preempted == 1)
        assert [run.job.id for run in r.loop.queue.in_order(r.clock())] == ["2", "newer"]
        r.run()
        r.expect_solo()


def test_time_that_runs_out_while_a_run_has_no_room_ends_it_with_the_text_it_gave() -> None:
    with unified(n_ctx=100, n_seq_max=3, cost=Cost(step=1.0)) as r:
        r.submit(*(job(str(i), [97 + i] * 20, 60, timeout_ms=-1 if i < 2 else 20_000) for i in range(3)))
        r.step_until(lambda: r.loop.counters.preempted == 1)
        assert r.clock() < 100 + 20
        r.step_until(lambda: r.inbox.has_ended("2"))
        assert r.clock() <= 100 + 22, "it waited for nothing more"
        assert not r.inbox.has_ended("0")
        r.run()
        end = r.inbox.finished("2")
        assert end.timings.deadline
        assert 10 < end.timings.predicted_n < 60
        r.expect_solo("0", "1")


def test_priority_decides_before_age() -> None:
    with unified(n_ctx=100) as r:
        low = job("low", [97] * 20, 60, priority=Priority.LOW)
        r.submit(low, *(job(str(i), [98 + i] * 20, 60) for i in range(2)))
        r.step_until(lambda: r.loop.counters.preempted == 1)
        assert [run.job.id for run in r.loop.queue] == ["low"]
        r.run()
        r.expect_solo()


def test_idle_text_gives_way_before_any_run() -> None:
    with unified(n_ctx=100) as r:
        r.run(job("old", [97] * 40, 1))
        r.run(job("newer", [98] * 30, 1))
        r.run(job("grows", [99] * 20, 30))
        assert r.loop.counters.preempted == 0
        assert [slot.n_past for slot in r.slots()][:2] == [0, 30], "the one unused for longest"
        r.expect_solo()


def test_a_run_alone_may_use_every_cell() -> None:
    with unified(n_ctx=100) as r:
        r.run(job("idle", [97] * 40, 1))
        r.run(job("whole", [98] * 20, -1))
        assert r.inbox.finished("whole").truncated
        assert len(r.inbox.tokens("whole")) == 80
        r.expect_solo()


def test_sharing_makes_room_for_more() -> None:
    """Four prompts of 60 tokens fit into 100 cells, because 50 of each are the same."""
    with unified(n_ctx=100) as r:
        r.submit(*(job(str(i), [97] * 50 + [98 + i] * 10, 2) for i in range(4)))
        r.step_until(lambda: len(r.inbox.events) == 4)
        assert r.loop.counters.preempted == 0
        assert r.backend.used <= 100
        r.run()
        r.expect_solo()


def test_a_run_that_comes_back_says_started_once_and_keeps_its_text() -> None:
    """The recorder insists on one Started; stop strings that were half seen are still half seen."""
    with unified(n_ctx=80) as r:
        r.run(*(job(str(i), f"{i}: a prompt", 40, stop=("ab", "jk\n", "e ")) for i in range(4)))
        r.expect_solo()


def test_a_waiting_run_can_be_the_one_that_gives_way() -> None:
    with unified(n_ctx=120, n_batch=16) as r:
        shared = [97] * 60
        r.submit(job("old", [120] * 30, 60), job("lead", [*shared, 98], 20))
        r.step(2)
        r.submit(job("wait", [*shared, 99], 20))
        r.run()
        r.expect_solo()


def test_who_waits_for_a_leader_that_gives_way_goes_on() -> None:
    with unified(n_ctx=128, n_batch=8, n_seq_max=3) as r:
        shared = [97] * 64
        r.submit(job("lead", [*shared, 98], 20, priority=Priority.LOW), job("wait", [*shared, 99], 20))
        r.step(2)
        r.submit(job("high", [100] * 50, 60, priority=Priority.HIGH))
        r.run()
        r.expect_solo()


def test_split_slots_never_take_room_from_each_other() -> None:
    with Rig(FakeBackend(unified=False, n_ctx=200, n_seq_max=4)) as r:
        r.run(*(job(str(i), f"{i}: a prompt of some size", -1) for i in range(6)))
        assert r.loop.counters.preempted == 0
        assert all(r.inbox.finished(str(i)).truncated for i in range(6))
        r.expect_solo()
