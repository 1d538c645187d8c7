from __future__ import annotations

from minka.engine.queue import AGING, Queue
from minka.engine.slot import Run
from minka.types import Priority
from tests.engine.rig import Recorder, job


def run(id: str, priority: Priority = Priority.NORMAL, *, tenant: str = "", at: float = 0.0) -> Run:
    return Run(job(id, "prompt", priority=priority, tenant=tenant), Recorder(), 0, at)


def ids(queue: Queue, now: float = 0.0) -> list[str]:
    return [run.job.id for run in queue.in_order(now)]


def test_order_is_priority_then_arrival() -> None:
    queue = Queue()
    for id, priority in (("n1", 0), ("l1", -1), ("h1", 1), ("n2", 0), ("h2", 1), ("l2", -1)):
        queue.put(run(id, Priority(priority)))
    assert ids(queue) == ["h1", "h2", "n1", "n2", "l1", "l2"]
    assert len(queue) == 6


def test_who_lost_its_slot_is_first_of_its_priority() -> None:
    queue = Queue()
    for new in (run("again"), run("high", Priority.HIGH), run("n1")):
        queue.put(new)
    again = next(iter(queue))
    queue.take(again)
    queue.put_back(again)
    assert ids(queue) == ["high", "again", "n1"]


def test_tenants_take_turns_whoever_sends_more() -> None:
    queue = Queue()
    for index in range(4):
        queue.put(run(f"a{index}", tenant="a"))
    for index in range(2):
        queue.put(run(f"b{index}", tenant="b"))
    assert ids(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_new_tenant_begins_at_the_present_turn() -> None:
    queue = Queue()
    runs = [run(f"a{index}", tenant="a") for index in range(6)]
    for new in runs:
        queue.put(new)
    for served in runs[:3]:
        queue.take(served)
    for index in range(3):
        queue.put(run(f"b{index}", tenant="b"))
    assert ids(queue) == ["b0", "a3", "b1", "a4", "b2", "a5"]


def test_tenants_are_not_remembered_for_ever_while_somebody_always_waits() -> None:
    queue = Queue()
    queue.put(run("waits", Priority.LOW))
    for index in range(5000):
        queue.put(new := run(f"{index}", tenant=f"tenant {index}"))
        queue.take(new)
    assert len(queue._turns) < 200


def test_waiting_raises_the_priority() -> None:
    queue = Queue()
    queue.put(run("low", Priority.LOW, at=0.0))
    queue.put(run("normal", at=AGING + 1))
    queue.put(run("high", Priority.HIGH, at=AGING + 1))
    assert ids(queue, now=AGING + 1) == ["high", "low", "normal"]
    assert ids(queue, now=2 * AGING + 0.5) == ["low", "high", "normal"]


def test_take_removes_that_run_only() -> None:
    queue = Queue()
    first, second = run("a"), run("b")
    queue.put(first)
    queue.put(second)
    queue.take(second)
    assert ids(queue) == ["a"]
    queue.take(first)
    assert not queue


def test_remove_returns_what_it_removed_from_all_lines() -> None:
    queue = Queue()
    for id, priority in (("a1", 0), ("b1", 0), ("a2", 1), ("a3", -1)):
        queue.put(run(id, Priority(priority)))
    assert sorted(r.job.id for r in queue.remove(lambda run: run.job.id.startswith("a"))) == ["a1", "a2", "a3"]
    assert ids(queue) == ["b1"]
    assert queue.remove(lambda _run: False) == []
