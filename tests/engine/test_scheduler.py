from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.scheduler import (
    IDLE_CHUNK,
    MIN_CHUNK,
    MIN_LANES,
    PORTION,
    UNMEASURED_CHUNK,
    Grant,
    Scheduler,
    Speed,
    has_room,
    victim,
)
from minka.engine.slot import Run, Slot, Wait
from minka.types import Priority
from tests.engine.rig import Recorder, job


def prefilling(id: int, pending: int, *, n_past: int = 0, order: int = 1, wait: Wait | None = None) -> Slot:
    run = Run(job("p", [1] * (n_past + pending)), Recorder(), 0, 0.0)
    run.order = order
    return Slot(id, run.tokens, n_past, run, wait)


def generating(id: int, *, order: int = 1, priority: Priority = Priority.NORMAL) -> Slot:
    run = Run(job("g", [1] * 10, priority=priority), Recorder(), 0, 0.0)
    run.order = order
    run.tokens.append(2)
    return Slot(id, run.tokens, 10, run)


def grants(scheduler: Scheduler, slots: Sequence[Slot]) -> dict[int, int]:
    plan = scheduler.plan(slots)
    assert [grant.slot for grant in plan] == sorted({grant.slot for grant in plan}), "slot order, one grant a slot"
    return {grant.slot: grant.n for grant in plan}


def measured(n_batch: int = 2048, max_gap: float = 0.2, *, decode: float = 0.01, prefill: float = 0.001) -> Scheduler:
    scheduler = Scheduler(n_batch, max_gap)
    scheduler.speed = Speed(decode, prefill)
    return scheduler


# -- the budget --------------------------------------------------------------------------------------------------------


def test_nothing_to_do() -> None:
    assert Scheduler(512, 0.2).plan([Slot(0), Slot(1, [1, 2], 2)]) == []


def test_a_lone_prompt_gets_a_large_chunk_and_not_more() -> None:
    assert grants(measured(), [prefilling(0, 4000)]) == {0: IDLE_CHUNK}
    assert grants(measured(), [prefilling(0, 30)]) == {0: 30}


def test_beside_a_stream_the_chunk_is_what_fits_into_the_gap() -> None:
    assert grants(measured(), [generating(0), prefilling(1, 4000)]) == {0: 1, 1: 190}


def test_before_anything_is_measured_the_chunk_is_small() -> None:
    assert grants(Scheduler(2048, 0.2), [generating(0), prefilling(1, 4000)]) == {0: 1, 1: UNMEASURED_CHUNK}


def test_a_slow_model_still_gets_on_with_its_prompts() -> None:
    slow = measured(decode=1.0, prefill=5.0)
    assert grants(slow, [generating(0), prefilling(1, 4000)]) == {0: 1, 1: MIN_CHUNK}
    # Where one step alone takes longer than the gap, three of them are allowed.
    assert grants(measured(decode=1.0, prefill=0.01), [generating(0), prefilling(1, 4000)])[1] == 200


def test_the_batch_is_never_overfull_although_the_gap_allows_more() -> None:
    assert grants(measured(n_batch=64), [generating(0), prefilling(1, 4000)]) == {0: 1, 1: 63}
    assert grants(measured(n_batch=64), [prefilling(1, 4000)]) == {1: 64}


# -- fair shares -------------------------------------------------------------------------------------------------------


def test_prompts_share_equally_and_a_short_one_leaves_its_rest_to_the_others() -> None:
    scheduler = measured(n_batch=120)
    assert grants(scheduler, [prefilling(i, 500) for i in range(3)]) == {0: 40, 1: 40, 2: 40}
    assert grants(scheduler, [prefilling(0, 500), prefilling(1, 10), prefilling(2, 500)]) == {0: 55, 1: 10, 2: 55}


def test_a_leader_computes_for_its_followers_too() -> None:
    followers = [prefilling(i, 300, order=i + 1, wait=Wait(0, 1, 200)) for i in (1, 2)]
    plan = grants(measured(n_batch=120), [prefilling(0, 300), *followers, prefilling(3, 300)])
    assert plan == {0: 90, 3: 30}


def test_who_waits_computes_nothing() -> None:
    assert grants(measured(), [prefilling(0, 50, wait=Wait(1, 1, 40))]) == {}


SLOT = st.tuples(
    st.sampled_from(["generating", "prefilling", "waiting", "idle"]), st.integers(1, 700), st.integers(0, 7)
)


def made(kinds: Sequence[tuple[str, int, int]]) -> list[Slot]:
    slots: list[Slot] = []
    for id, (kind, pending, leader) in enumerate(kinds):
        match kind:
            case "generating":
                slots.append(generating(id))
            case "prefilling":
                slots.append(prefilling(id, pending))
            case "waiting":
                slots.append(prefilling(id, pending, wait=Wait(leader, 1, pending)))
            case _:
                slots.append(Slot(id))
    return slots


@given(
    kinds=st.lists(SLOT, min_size=1, max_size=8),
    n_batch=st.integers(8, 600),
    speed=st.one_of(st.none(), st.tuples(st.floats(1e-4, 2), st.floats(1e-6, 1))),
)
def test_every_plan_is_within_its_bounds_and_wastes_nothing(
    kinds: list[tuple[str, int, int]], n_batch: int, speed: tuple[float, float] | None
) -> None:
    scheduler = Scheduler(n_batch, 0.2)
    scheduler.speed = Speed(*speed) if speed else Speed()
    slots = made(kinds)
    plan = grants(scheduler, slots)
    lanes = [slot.id for slot in slots if slot.generating]
    prompts = [slot for slot in slots if slot.prefilling and slot.wait is None]
    assert all(plan[id] == 1 for id in lanes), "every stream gets its token"
    assert set(plan) <= {*lanes, *(slot.id for slot in prompts)}
    assert all(0 < n <= slots[id].pending for id, n in plan.items())
    assert sum(plan.values()) <= n_batch
    # Water-filling: the prompts get the whole budget or everything they need.
    n_prefill, needed = sum(plan.values()) - len(lanes), sum(slot.pending for slot in prompts)
    room = n_batch - len(lanes)
    if not lanes:
        assert n_prefill == min(needed, IDLE_CHUNK, room)
    elif speed is None:
        assert n_prefill == min(needed, UNMEASURED_CHUNK, room)
    else:
        gap = max(0.2, 3 * speed[0])
        assert n_prefill >= min(needed, MIN_CHUNK, room)
        assert n_prefill <= MIN_CHUNK or speed[0] + n_prefill * speed[1] <= gap * (1 + 1e-9)
        assert n_prefill == min(needed, room) or speed[0] + (max(n_prefill, MIN_CHUNK) + 1) * speed[1] > gap * (
            1 - 1e-9
        )


@given(
    kinds=st.lists(SLOT, min_size=1, max_size=8),
    n_batch=st.integers(8, 600),
)
def test_as_many_as_can_have_a_portion_are_served_the_oldest_always_and_equals_get_equal(
    kinds: list[tuple[str, int, int]], n_batch: int
) -> None:
    slots = made(kinds)
    plan = grants(measured(n_batch, prefill=1e-9), slots)
    prompts = [slot for slot in slots if slot.prefilling and slot.wait is None]
    weights = {slot.id: 1 + sum(s.wait is not None and s.wait.leader == slot.id for s in slots) for slot in prompts}
    served = [slot for slot in prompts if slot.id in plan]
    room = n_batch - sum(slot.pending for slot in slots if slot.generating)
    budget = min(IDLE_CHUNK, room) if not any(slot.generating for slot in slots) else room
    enough = min(len(prompts), max(budget, 0), max(MIN_LANES, budget // PORTION))
    assert len(served) >= enough
    assert len(served) == enough or sum(sorted(slot.pending for slot in served)[:-1]) < budget
    if served:
        assert min(slot.run.order for slot in prompts if slot.run) in {slot.run.order for slot in served if slot.run}
    if sum(plan[slot.id] for slot in served) >= sum(weights[slot.id] for slot in served):
        hungry = [slot for slot in served if plan[slot.id] < slot.pending]
        shares = [plan[slot.id] / weights[slot.id] for slot in hungry]
        assert not shares or max(shares) - min(shares) <= len(served)


def test_a_small_budget_is_for_the_oldest_prompt_and_the_one_that_needs_least() -> None:
    slow = measured(prefill=0.01)  # 19 tokens
    slots = [generating(0), *(prefilling(i, 4000 - i, order=9 - i) for i in range(1, 5)), prefilling(5, 20, order=9)]
    assert grants(slow, slots) == {0: 1, 4: 9, 5: 10}


def test_a_large_budget_is_for_all() -> None:
    slots = [prefilling(i, 4000, order=i) for i in range(8)]
    assert grants(measured(), slots) == dict.fromkeys(range(8), IDLE_CHUNK // 8)


def test_nobody_starves_while_shorter_prompts_keep_coming() -> None:
    """Nine prompts on a budget for eight: the long one gets on although there is always something shorter."""
    slow = measured(decode=1.0, prefill=5.0)
    long = prefilling(9, 300, order=1)
    for step in range(300):
        slots = [generating(0), *(prefilling(i, 5, order=step + i + 1) for i in range(1, 9)), long]
        long.n_past += grants(slow, slots)[9]
    assert not long.pending


def test_a_leader_of_many_does_not_starve_the_others() -> None:
    followers = [prefilling(i, 300, order=i + 1, wait=Wait(0, 1, 200)) for i in range(1, 8)]
    slow = measured(decode=1.0, prefill=5.0)
    assert grants(slow, [prefilling(0, 300), *followers, prefilling(8, 3000), generating(9)]) == {0: 7, 8: 1, 9: 1}


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_the_first_measurement_counts_whole_and_later_ones_a_quarter() -> None:
    speed = Speed()
    speed.observe(0, 4, 0.1)
    assert speed.decode == pytest.approx(0.1)
    speed.observe(0, 4, 0.2)
    assert speed.decode == pytest.approx(0.125)


def test_prefill_is_what_a_step_takes_beyond_its_streams() -> None:
    speed = Speed(decode=0.1)
    speed.observe(100, 2, 0.3)
    assert speed.prefill == pytest.approx(0.002)
    alone = Speed(decode=0.1)
    alone.observe(100, 0, 0.3)
    assert alone.prefill == pytest.approx(0.003)


def test_a_few_prompt_tokens_measure_nothing_and_prefill_is_never_free() -> None:
    speed = Speed(decode=0.1)
    speed.observe(MIN_CHUNK - 1, 2, 9.0)
    assert speed == Speed(decode=0.1)
    speed.observe(10, 2, 0.05)
    assert 0 < speed.prefill <= 0.05 / 10


# -- room --------------------------------------------------------------------------------------------------------------


def test_who_gives_way() -> None:
    slots = [generating(0, order=1), generating(1, order=3), generating(2, order=2), Slot(3)]
    assert victim(slots) is slots[1], "the youngest"
    slots.append(generating(4, order=0, priority=Priority.LOW))
    assert victim(slots) is slots[4], "but first of all the least important"
    assert victim([slots[0], Slot(1)]) is None
    assert victim([Slot(0)]) is None


def test_room_beside_what_is_held_and_known_to_come() -> None:
    slots = [prefilling(0, 30, n_past=20), Slot(1)]
    assert has_room(50, slots, n_ctx=100, n_busy_cells=20)
    assert not has_room(51, slots, n_ctx=100, n_busy_cells=20)


def test_what_a_waiting_slot_will_share_is_counted_once() -> None:
    slots = [prefilling(0, 60), prefilling(1, 70, order=2, wait=Wait(0, 1, 60))]
    assert has_room(30, slots, n_ctx=100, n_busy_cells=0)
    assert not has_room(31, slots, n_ctx=100, n_busy_cells=0)


def test_alone_anything_may_try() -> None:
    assert has_room(5000, [Slot(0)], n_ctx=100, n_busy_cells=0)


def test_grants_are_values() -> None:
    assert Grant(1, 2) == Grant(1, 2)
