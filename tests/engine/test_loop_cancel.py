"""A cancelled job is gone at the next step, whatever it was doing, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minka.types import Cancelled, Priority
from tests.engine.rig import Rig, job, only_cancelled

Rigs = Callable[..., Rig]
PREFIX = "The same beginning, long enough to be worth waiting for. " * 2


def in_state(r: Rig, state: str) -> str:
    """Bring a rig of two slots into a state, and say which job is in it."""
    r.submit(job("one", PREFIX + "1?", 30))
    match state:
        case "prefill":
            r.step(2)
            assert 0 < r.slot("one").n_past < len(PREFIX)
            return "one"
        case "generating":
            r.step_until(lambda: len(r.inbox.tokens("one")) == 3)
            return "one"
        case "leading":
            r.submit(job("two", PREFIX + "2?", 30))
            r.step(2)
            assert r.slot("two").wait is not None
            return "one"
        case "waiting":
            r.submit(job("two", PREFIX + "2?", 30))
            r.step(2)
            assert r.slot("two").wait is not None
            return "two"
        case _:
            r.submit(job("two", PREFIX + "2?", 30), job("three", "x", 5))
            r.step(2)
            assert [run.job.id for run in r.loop.queue] == ["three"]
            return "three"


STATES = ["queued", "prefill", "leading", "waiting", "generating"]


@pytest.mark.parametrize("state", STATES)
def test_cancel_in_every_state(rig: Rigs, state: str) -> None:
    r = rig(n_seq_max=2, n_batch=24)
    id = in_state(r, state)
    r.loop.cancel(id)
    assert id not in [slot.run.job.id for slot in r.slots() if slot.run is not None]
    r.loop.check()
    r.step()
    assert only_cancelled(r.inbox.events[id])
    assert r.ended.count(id) == 1
    others = [other for other in r.jobs if other != id]
    r.run()
    for other in others:
        r.expect_solo(other)
    r.expect_all_idle()
    assert only_cancelled(r.inbox.events[id]), "nothing comes after it"
    # What it left in its slot is good for the next one.
    r.run(job("again", r.jobs[id].prompt, 10))
    r.expect_solo("again")


def test_a_follower_goes_on_with_what_a_cancelled_leader_had(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_batch=24)
    in_state(r, "leading")
    done = r.slot("one").n_past
    assert done >= 24
    r.loop.cancel("one")
    r.run()
    assert r.inbox.started("two").n_cached == done
    r.expect_solo("two")


def test_followers_of_a_cancelled_leader_elect_one_of_them(rig: Rigs) -> None:
    """Three wait; the leader goes at once: one of the three computes the prefix, the others wait on."""
    r = rig(n_batch=24)
    r.submit(*(job(str(i), PREFIX + f"{i}?", 10) for i in range(4)))
    r.step()
    r.loop.cancel("0")
    r.run()
    # The leader's 24 tokens, the rest of the prefix, and the last two of each.
    sampled = sum(len(r.inbox.tokens(str(i))) - 1 for i in (1, 2, 3))
    assert r.backend.n_computed - sampled == len(PREFIX) + 3 * 2
    r.expect_solo("1", "2", "3")


def test_the_slot_of_a_cancelled_leader_can_be_taken_in_the_same_step(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_batch=24)
    in_state(r, "leading")
    r.submit(job("new", "something else altogether, and long too", 10, priority=Priority.HIGH))
    r.loop.cancel("one")
    r.step()
    assert not r.slot("new").idle
    r.run()
    r.expect_solo("two", "new")


@pytest.mark.parametrize("state", STATES)
def test_cancel_of_all_leaves_nothing_behind(rig: Rigs, state: str) -> None:
    r = rig(n_seq_max=2, n_batch=24)
    in_state(r, state)
    for id in r.jobs:
        r.loop.cancel(id)
    assert not r.loop.busy
    r.step()
    assert sorted(r.ended) == sorted(r.jobs)
    r.expect_all_idle()
    n = len(r.backend.decodes)
    assert r.loop.step() is False
    assert len(r.backend.decodes) == n


def test_an_unknown_or_ended_job_is_ignored(rig: Rigs) -> None:
    r = rig()
    r.run(job("one", "a prompt", 3))
    r.loop.cancel("one")
    r.loop.cancel("never")
    r.step()
    assert r.ended == ["one"]
    assert not any(isinstance(event, Cancelled) for events in r.inbox.events.values() for event in events)
