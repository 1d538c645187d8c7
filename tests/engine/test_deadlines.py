"""A job's time: over in the queue or in the prompt it fails, over in its text it ends with that."""

from __future__ import annotations

from collections.abc import Callable

from minka.engine.pace import Pace
from minka.errors import DeadlineError
from minka.types import FinishReason
from tests.engine.rig import Rig, job
from tests.fakes import Cost

Rigs = Callable[..., Rig]
SECOND = Cost(step=1.0, lane=0.0, prefill=0.0)
"""A step of this model takes a second of the fake clock."""


def test_over_in_the_queue(rig: Rigs) -> None:
    r = rig(n_seq_max=1, cost=SECOND)
    r.submit(job("first", "a prompt", 20), job("late", "another", 5, timeout_ms=3500))
    r.step(3)
    assert "late" not in r.inbox.events
    r.step(2)
    error = r.inbox.error("late")
    assert isinstance(error, DeadlineError)
    assert error.status == 504
    r.step_until(lambda: not r.loop.busy)
    assert all(chunk.tokens[:3] != tuple(b"ano") for batch in r.backend.decodes for chunk in batch), "it was computed"
    r.expect_solo("first")


def test_over_in_the_prompt(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_batch=8, cost=SECOND)
    r.submit(job("long", "p" * 100, 5, timeout_ms=2500))
    r.step(4)
    assert isinstance(r.inbox.error("long"), DeadlineError)
    r.expect_all_idle()


def test_over_in_the_text_ends_with_what_there_is(rig: Rigs) -> None:
    r = rig(cost=SECOND)
    r.run(job("some", "a prompt", 50, timeout_ms=5500))
    end = r.inbox.finished("some")
    assert end.reason is FinishReason.LIMIT
    assert end.timings.deadline
    assert end.timings.predicted_n == 6
    assert len(r.inbox.text("some")) > 0


def test_in_time_is_not_marked(rig: Rigs) -> None:
    r = rig(cost=SECOND)
    r.run(job("quick", "a prompt", 3, timeout_ms=60_000), job("free", "b prompt", 3))
    assert not r.inbox.finished("quick").timings.deadline
    assert not r.inbox.finished("free").timings.deadline
    r.expect_solo()


def test_retry_after_follows_the_rate() -> None:
    pace = Pace()
    assert pace.retry_after(512) == 1, "nothing is known yet"
    for second in range(1, 50):
        pace.ended(2.0 * second)
    assert pace.retry_after(0) == 2
    assert pace.retry_after(100) == 20
    assert pace.retry_after(10**6) == 300
