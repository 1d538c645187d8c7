"""Who waits how long, in fake seconds: the decode of a batch takes `step + prefill * n + lane * streams`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from minka.types import Priority
from tests.engine.rig import Rig, job
from tests.fakes import Cost

Rigs = Callable[..., Rig]
COST = Cost(step=0.010, prefill=0.002, lane=0.005)


def gaps(r: Rig, id: str) -> list[float]:
    return [b - a for a, b in pairwise(r.inbox.times[id])]


def test_a_long_prompt_does_not_stop_a_running_stream(rig: Rigs) -> None:
    """Computed at once, 3,000 tokens would take 6 s."""
    r = rig(cost=COST, n_ctx=4 * 4096, n_batch=2048)
    r.submit(job("stream", "a prompt of more than eight tokens", 200))
    r.step(20)
    r.submit(job("long", [98] * 3000, 5))
    r.run()
    assert max(gaps(r, "stream")) <= 0.2 + 1e-9
    # And the prompt gets all the time that the gap leaves: 185 ms of each 200.
    assert r.inbox.times["long"][0] - 100 < 3000 * 0.002 / 0.185 * 0.2 + 1.0


@pytest.mark.parametrize("max_gap", [0.05, 0.1, 0.4])
def test_the_gap_is_the_one_that_was_asked_for(rig: Rigs, max_gap: float) -> None:
    r = rig(max_gap=max_gap, cost=COST, n_ctx=4 * 4096, n_batch=2048)
    r.submit(job("stream", "a prompt of more than eight tokens", 200))
    r.step(5)
    r.submit(*(job(f"long {i}", [98 + i] * 2000, 5) for i in range(3)))
    r.run()
    assert max(gaps(r, "stream")) <= max_gap * 1.1
    assert max(gaps(r, "stream")) > max_gap * 0.6, "the gap is used"


def test_streams_get_a_token_each_step_in_the_same_lanes(rig: Rigs) -> None:
    r = rig()
    r.submit(*(job(str(i), f"prompt {i}", 30) for i in range(4)))
    r.step(10)
    lanes = [[chunk.seq for chunk in batch] for batch in r.backend.decodes[-8:]]
    assert lanes == [[0, 1, 2, 3]] * 8


def test_a_short_prompt_is_not_stuck_behind_long_ones(rig: Rigs) -> None:
    r = rig(cost=COST, n_ctx=4 * 4096, n_batch=512)
    r.submit(*(job(f"long {i}", [98 + i] * 3000, 5) for i in range(3)))
    r.step()
    r.submit(job("short", "What is the time?", 5))
    r.step(2)
    assert len(r.inbox.tokens("short")) >= 1
    r.run()
    r.expect_solo()


def test_long_prompts_get_on_together(rig: Rigs) -> None:
    r = rig(n_ctx=4 * 4096, n_batch=300)
    r.submit(*(job(str(i), [97 + i] * 1000, 5) for i in range(3)))
    r.step(5)
    assert [slot.n_past for slot in r.slots()] == [500, 500, 500, 0]


def test_a_prompt_gets_on_where_every_step_is_slow(rig: Rigs) -> None:
    r = rig(cost=Cost(step=1.0, prefill=1.0, lane=1.0))
    r.submit(job("stream", "a prompt of more than eight tokens", 60))
    r.step(3)
    r.submit(job("long", [98] * 100, 5))
    r.step_until(lambda: bool(r.inbox.tokens("long")), limit=100 // 8 + 2)
    r.run()
    r.expect_solo()


def test_a_higher_priority_is_admitted_first(rig: Rigs) -> None:
    r = rig(n_seq_max=1)
    r.submit(job("running", "a", 5))
    r.step()
    r.submit(
        job("low", "b", 2, priority=Priority.LOW), job("normal", "c", 2), job("high", "d", 2, priority=Priority.HIGH)
    )
    r.run()
    assert r.ended == ["running", "high", "normal", "low"]


def test_who_waits_for_a_certain_slot_holds_nobody_up(rig: Rigs) -> None:
    r = rig(n_seq_max=2)
    r.submit(job("long", "a", 20, id_slot=0))
    r.step()
    r.submit(job("pinned", "b", 2, id_slot=0), job("free", "c", 2))
    r.run()
    assert r.ended == ["free", "long", "pinned"]
    assert [r.inbox.started(id).slot for id in ("long", "pinned", "free")] == [0, 0, 1]
    r.expect_solo()


def test_every_batch_is_as_full_as_it_may_be(rig: Rigs) -> None:
    r = rig(n_batch=20)
    r.run(job("a", [97] * 95, 1))
    assert [sum(len(chunk.tokens) for chunk in batch) for batch in r.backend.decodes] == [20, 20, 20, 20, 15]
    assert [chunk.logits for batch in r.backend.decodes for chunk in batch] == [0, 0, 0, 0, 1], "one row, at the end"


def test_the_view_tells_what_is_going_on(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_batch=24)
    r.submit(job("a", [97] * 80, 10), job("b", [98] * 4, 10), job("c", "c", 1))
    r.step(2)
    view = r.loop.view()
    assert view.n_queued == 1
    a, b = view.slots
    assert (a.busy, a.n_prompt, a.n_processed, a.n_generated, a.order) == (True, 80, a.n_past, 0, 1)
    assert (b.busy, b.n_prompt, b.n_processed, b.n_generated, b.order) == (True, 4, 4, 2, 2)
    assert a.job == r.jobs["a"]
    assert view.counters.decode_calls == 2
    assert view.counters.busy_slots == 4
    assert view.used_cells == a.n_past + b.n_past
    r.run()
    view = r.loop.view()
    assert [slot.busy for slot in view.slots] == [False, False]
    assert view.slots[0].job is not None, "the last job is still shown"
    assert view.counters.predicted_tokens == 21
    assert view.counters.prompt_tokens == 85
    assert view.counters.n_tokens_max == 89


def test_steps_of_pure_decode_keep_their_lanes(rig: Rigs) -> None:
    """The same slots in the same order, each with one token, so that the backend can reuse its graph."""
    r = rig()
    r.submit(*(job(str(i), f"prompt {i}", 12) for i in range(4)))
    r.step_until(lambda: all(slot.generating for slot in r.slots()))
    before = r.loop.view().counters.graphs_reused
    r.step(6)
    assert r.loop.view().counters.graphs_reused - before >= 5
