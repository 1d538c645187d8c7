from __future__ import annotations

from minka.engine.queue import Queue
from minka.engine.slot import Run
from minka.types import Priority
from tests.engine.rig import Recorder, job


def run(id: str, priority: Priority = Priority.NORMAL) -> Run:
    return Run(job(id, "prompt", priority=priority), Recorder(), 0, 0.0)


def ids(queue: Queue) -> list[str]:
    return [run.job.id for run in queue]


def test_order_is_priority_then_arrival() -> None:
    queue = Queue()
    for id, priority in (("n1", 0), ("l1", -1), ("h1", 1), ("n2", 0), ("h2", 1), ("l2", -1)):
        queue.put(run(id, Priority(priority)))
    assert ids(queue) == ["h1", "h2", "n1", "n2", "l1", "l2"]
    assert len(queue) == 6


def test_who_lost_its_slot_is_first_of_its_priority() -> None:
    queue = Queue()
    for new in (run("high", Priority.HIGH), run("n1")):
        queue.put(new)
    queue.put_back(run("again"))
    assert ids(queue) == ["high", "again", "n1"]


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
    assert [run.job.id for run in queue.remove(lambda run: run.job.id.startswith("a"))] == ["a2", "a1", "a3"]
    assert ids(queue) == ["b1"]
    assert queue.remove(lambda _run: False) == []
