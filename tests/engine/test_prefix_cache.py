from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.prefix_cache import MIN_SHARED, Placement, common_prefix, place, wait_is_over
from minka.engine.slot import Run, Slot, Wait
from tests.engine.rig import Recorder, job

LONG = tuple(range(100))


def waiting(tokens: Sequence[int], **fields: object) -> Run:
    return Run(job("new", tokens, **fields), Recorder(), 0, 0.0)  # type: ignore[arg-type]


def idle(id: int, tokens: Sequence[int] = (), *, last_used: float = 0.0) -> Slot:
    return Slot(id, list(tokens), len(tokens), last_used=last_used)


def busy(id: int, tokens: Sequence[int], n_past: int, *, order: int = 1, wait: Wait | None = None) -> Slot:
    """A slot in the middle of its prompt."""
    run = Run(job(f"in slot {id}", tokens), Recorder(), 0, 0.0)
    run.order = order
    return Slot(id, run.tokens, n_past, run, wait)


def placed(run: Run, *slots: Slot, floors: Sequence[int] | None = None, only: int = -1) -> Placement:
    placement = place(run, slots, floors or [0] * len(slots), only=only)
    assert placement is not None
    return placement


# -- common prefix -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(0, 40))
def test_common_prefix_is_what_a_loop_counts(a: list[int], b: list[int], same: int) -> None:
    b = a[:same] + b
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == common_prefix(b, a) == naive


# -- which slot --------------------------------------------------------------------------------------------------------


def test_no_slot_is_idle() -> None:
    assert place(waiting(LONG), [busy(0, LONG, 10)], [0]) is None


def test_a_new_text_goes_to_an_empty_slot_then_to_the_one_unused_for_longest() -> None:
    run = waiting([7] * 50)
    assert placed(run, idle(0, LONG), idle(1)) == Placement(1)
    assert placed(run, idle(0), idle(1)) == Placement(0)
    assert placed(run, idle(0, LONG, last_used=5), idle(1, LONG, last_used=3)) == Placement(1)
    assert placed(run, idle(0, LONG, last_used=3), idle(1, LONG, last_used=5)) == Placement(0)


def test_a_header_that_all_texts_share_protects_none_of_them() -> None:
    """Every text starts with the same few tokens; the one unused for longest gives way all the same."""
    header = [1, 2, 3]
    texts = [idle(id, [*header, *[10 + id] * 50], last_used=used) for id, used in enumerate((4, 3, 9))]
    assert placed(waiting([*header, *[7] * 50]), *texts) == Placement(1, 1, 3)
    texts[0].last_used = 1
    assert placed(waiting([*header, *[7] * 50]), *texts) == Placement(0, 0, 3)


def test_a_copy_goes_where_nothing_was_used_for_longest() -> None:
    source = idle(0, LONG, last_used=1)
    others = idle(1, [9] * 50, last_used=7), idle(2, [8] * 50, last_used=5)
    assert placed(waiting([*LONG[:40], 5]), source, *others) == Placement(2, 0, 40)


def test_a_prompt_that_goes_on_stays_in_its_slot() -> None:
    assert placed(waiting([*LONG, 5]), idle(0), idle(1, LONG)) == Placement(1, 1, 100)


def test_the_last_token_is_always_computed() -> None:
    assert placed(waiting(LONG), idle(0, LONG)) == Placement(0, 0, 99)
    assert placed(waiting([1]), idle(0, [1])) == Placement(0)


def test_a_text_that_would_lose_more_than_it_keeps_is_copied_to_another_slot() -> None:
    """100 tokens are held, 40 are the same: the other 60 may be wanted again."""
    run = waiting([*LONG[:40], 5, 5, 5])
    assert placed(run, idle(0, LONG), idle(1)) == Placement(1, 0, 40)
    assert placed(run, idle(0, LONG)) == Placement(0, 0, 40), "nowhere else to go"


def test_a_text_that_keeps_more_than_it_loses_goes_on_in_place() -> None:
    assert placed(waiting([*LONG[:60], 5]), idle(0, LONG), idle(1)) == Placement(0, 0, 60)


def test_the_longest_text_wins_and_a_busy_slot_can_give_too() -> None:
    run = waiting([*LONG, 5])
    assert placed(run, idle(0, LONG[:50]), busy(1, [*LONG, 8], 90), idle(2)) == Placement(2, 1, 90)
    assert placed(run, idle(0, LONG[:50]), idle(1, LONG[:30])) == Placement(0, 0, 50)


def test_of_two_equal_texts_the_idle_one_is_used() -> None:
    assert placed(waiting([*LONG, 5]), busy(0, [*LONG, 8], 100), idle(1, LONG)) == Placement(1, 1, 100)


def test_a_few_common_tokens_are_not_worth_a_copy() -> None:
    few = LONG[: MIN_SHARED - 1]
    assert placed(waiting([*few, 200, 201]), busy(0, LONG, 100), idle(1)) == Placement(1)
    enough = LONG[:MIN_SHARED]
    assert placed(waiting([*enough, 200, 201]), busy(0, LONG, 100), idle(1)) == Placement(1, 0, MIN_SHARED)


def test_a_few_more_tokens_elsewhere_are_not_worth_a_copy() -> None:
    run, own = waiting([*LONG[:60], 5], id_slot=0), idle(0, [*LONG[: 60 - MIN_SHARED + 1], 9])
    assert placed(run, own, busy(1, LONG, 100)) == Placement(0, 0, 60 - MIN_SHARED + 1)
    less = idle(0, [*LONG[: 60 - MIN_SHARED], 9])
    assert placed(run, less, busy(1, LONG, 100)) == Placement(0, 1, 60)


def test_a_job_can_ask_for_a_slot_and_for_no_cache() -> None:
    slots = idle(0, LONG), idle(1, [9] * 30)
    assert placed(waiting([*LONG, 5], id_slot=1), *slots) == Placement(1, 0, 100)
    assert place(waiting(LONG, id_slot=0), [busy(0, LONG, 3), idle(1)], [0, 0]) is None
    assert placed(waiting([*LONG, 5], cache_prompt=False), idle(0, LONG)) == Placement(0)
    assert placed(waiting([*LONG, 5]), *slots, only=1) == Placement(1, 0, 100)


@pytest.mark.parametrize(("floor", "n_reuse"), [(0, 60), (60, 60), (61, 0), (100, 0)])
def test_a_sequence_is_not_used_under_its_floor(floor: int, n_reuse: int) -> None:
    placement = placed(waiting([*LONG[:60], 5]), idle(0, LONG), floors=[floor])
    assert placement == Placement(0, 0 if n_reuse else -1, n_reuse)


# -- waiting for a leader ----------------------------------------------------------------------------------------------


def test_a_prompt_that_somebody_is_computing_is_waited_for() -> None:
    leader = busy(0, [*LONG, 1, 1], 10, order=3)
    assert placed(waiting([*LONG, 2, 2]), leader, idle(1)).wait == Wait(0, order=3, n=100)


def test_the_wait_leaves_the_last_token_to_compute() -> None:
    assert placed(waiting(LONG), busy(0, LONG, 10), idle(1)).wait == Wait(0, order=1, n=99)


def test_no_wait_for_less_than_a_copy_is_worth() -> None:
    few = [*LONG[: MIN_SHARED - 1], 200]
    assert placed(waiting(few), busy(0, LONG, 0), idle(1)).wait is None
    half_held = idle(1, LONG[: 100 - MIN_SHARED + 1])
    assert placed(waiting([*LONG, 5]), busy(0, [*LONG, 6], 3), half_held).wait is None


def test_no_wait_for_what_is_computed_already_or_generated() -> None:
    assert placed(waiting([*LONG, 5]), busy(0, [*LONG, 6], 100), idle(1)) == Placement(1, 0, 100)
    generating = busy(0, LONG, 99)
    assert generating.run is not None
    generating.tokens.append(7)
    generating.n_past = 100
    assert placed(waiting([*LONG, 7, 8]), generating, idle(1)).wait is None


def test_no_wait_for_a_sequence_that_could_not_be_shared_then() -> None:
    assert placed(waiting([*LONG, 5]), busy(0, [*LONG, 6], 10), idle(1), floors=[10, 0]).wait is None


def test_no_wait_without_cache() -> None:
    assert placed(waiting(LONG, cache_prompt=False), busy(0, LONG, 10), idle(1)).wait is None


def test_a_leader_may_itself_wait() -> None:
    leader = busy(0, [*LONG, 1], 0, order=1)
    middle = busy(1, [*LONG, 2, 2, 2] + [3] * 30, 0, order=2, wait=Wait(0, 1, 100))
    run = waiting([*LONG, 2, 2, 2] + [3] * 30 + [4])
    assert placed(run, leader, middle, idle(2)).wait == Wait(1, order=2, n=133)


def test_only_an_older_run_leads_so_nobody_waits_in_a_circle() -> None:
    run = waiting([*LONG, 5])
    run.order = 2
    younger, older = busy(0, [*LONG, 6], 10, order=3), busy(1, [*LONG, 7], 0, order=1)
    assert placed(run, younger, idle(1)).wait is None
    assert placed(run, younger, older, idle(2)).wait == Wait(1, order=1, n=100)


@given(st.data())
def test_waits_never_form_a_circle(data: st.DataObject) -> None:
    """Slots whose runs are placed again and again, in any order: each wait points to an older run."""
    prefix = [1] * (2 * MIN_SHARED)
    slots = [busy(i, [*prefix, i], data.draw(st.integers(0, 20)), order=i + 1) for i in range(5)]
    for slot_id in data.draw(st.lists(st.integers(0, 4), max_size=12)):
        slot = slots[slot_id]
        run, slot.run, slot.wait = slot.run, None, None
        assert run is not None
        again = placed(run, *slots, only=slot_id)
        slot.run, slot.wait = run, again.wait
    for slot in slots:
        seen = {slot.id}
        while slot.wait is not None:
            slot = slots[slot.wait.leader]
            assert slot.id not in seen
            seen.add(slot.id)


def test_when_a_wait_is_over() -> None:
    wait = Wait(leader=0, order=1, n=50)
    assert not wait_is_over(wait, busy(0, LONG, 49))
    assert wait_is_over(wait, busy(0, LONG, 50))
    assert wait_is_over(wait, idle(0, LONG[:20])), "the leader was cancelled"
    assert wait_is_over(wait, busy(0, LONG, 0, order=2)), "the slot serves another run"
