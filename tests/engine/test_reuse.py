"""Parts of a prompt that a slot holds in another place are moved: llama-server's rule, for jobs that ask for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain

import pytest

from minka.engine.cells import Cells
from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.engine.prefix_cache import Placement
from minka.engine.reuse import MAX_SHIFTS, Splice, improve, splice
from minka.engine.shift import Shift
from minka.engine.slot import Run, Slot, Wait
from minka.errors import NotSupportedError, RequestError
from minka.types import Job
from tests.engine.rig import Recorder, Rig, job
from tests.fakes import FakeBackend

Rigs = Callable[..., Rig]
KEPT = MemoryConfig(limit=100_000, block=16)


# -- the rule ----------------------------------------------------------------------------------------------------------


def by_definition(held: list[int], wanted: list[int], at_least: int) -> tuple[list[int], int]:
    """Two heads walk over the texts, as in llama-server: what is left, and how much of the prompt that is."""
    n = 0
    while n < min(len(held), len(wanted)) and held[n] == wanted[n]:
        n += 1
    left, here, there = held[:n], n, n
    while here < len(held) and there < len(wanted):
        same = 0
        while here + same < len(held) and there + same < len(wanted) and held[here + same] == wanted[there + same]:
            same += 1
        if same >= at_least:
            left += held[here : here + same]
            here, there = here + same, there + same
        else:
            here += 1
    return left, min(there, len(wanted) - 1)


def carry_out(found: Splice, held: list[int]) -> list[int]:
    for shift in found.shifts:
        assert 0 <= shift.keep < shift.end < len(held)
        held = shift.apply(held)
    return held


def test_the_rule_is_llama_servers() -> None:
    choose = random.Random(1)
    moved = 0
    for _ in range(3000):
        parts = [[choose.randrange(3) for _ in range(choose.randrange(1, 9))] for _ in range(5)]
        held, wanted = ([*chain(*choose.choices(parts, k=choose.randrange(1, 7)))] for _ in range(2))
        at_least = choose.randrange(1, 6)
        found = splice(held, wanted, at_least)
        left, n = by_definition(held, wanted, at_least)
        assert found.n == n
        assert carry_out(found, held)[: found.n] == wanted[: found.n] == left[: found.n]
        moved += bool(found.shifts)
    assert moved > 1000


@pytest.mark.parametrize(
    ("held", "wanted", "at_least", "expected"),
    [
        ("SabcdeF", "Sabcde", 2, Splice(5)),
        ("SxxxabcdeF", "SabcdeG", 5, Splice(6, (Shift(1, 3),))),
        ("SxxxabcdeF", "SabcdeG", 6, Splice(1)),
        ("SxxxabcdyyyefghZ", "SabcdefghG", 4, Splice(9, (Shift(1, 3), Shift(5, 3)))),
        ("SxxxabcdyyyefghZ", "Sabcd", 4, Splice(4, (Shift(1, 3),))),
        ("abcdabcd", "abcd", 1, Splice(3)),
        ("", "abcd", 1, Splice(0)),
        ("xabcd", "abcde", 1, Splice(4, (Shift(0, 1),))),
        ("abcd", "xabcd", 1, Splice(0)),
    ],
)
def test_examples(held: str, wanted: str, at_least: int, expected: Splice) -> None:
    assert splice([*map(ord, held)], [*map(ord, wanted)], at_least) == expected


def test_what_cannot_be_moved_is_passed_over() -> None:
    held, wanted = [*b"Sxabcyyabczz"], [*b"SabcG"]
    assert splice(held, wanted, 3, 0) == Splice(4, (Shift(1, 1),))
    assert splice(held, wanted, 3, 3) == Splice(4, (Shift(1, 6),))
    assert splice(held, wanted, 3, 9) == Splice(1)


def test_long_texts_take_no_time() -> None:
    """Runs that are nearly long enough, everywhere: a search that begins anew at each place would never end."""
    held, wanted = ([1] * 9_999 + [2]) * 10, [3] + [1] * 100_000
    assert splice([*held], [3, *wanted], 10_000) == Splice(0)
    assert splice([3, 4, *held], wanted, 9_000).n == 1 + 10 * 9_999


def test_the_number_of_moves_is_bounded() -> None:
    choose = random.Random(2)
    held, wanted = ([choose.randrange(9) for _ in range(5_000)] for _ in range(2))
    assert len(splice(held, wanted, 1).shifts) == MAX_SHIFTS


# -- which slot --------------------------------------------------------------------------------------------------------


def a_run(text: bytes, **fields: object) -> Run:
    return Run(Job("id", tuple(text), n_cache_reuse=4, **fields), Recorder(), 0, 0.0)  # type: ignore[arg-type]


def holding(id: int, text: bytes, **fields: object) -> Slot:
    return Slot(id, list(text), len(text), **fields)  # type: ignore[arg-type]


SLOTS = [holding(0, b"S--abcd--efgh"), holding(1, b"Sabcd----"), holding(2, b"")]


def improved(run: Run, slots: list[Slot], placement: Placement, **more: int) -> Placement:
    return improve(placement, run, slots, [0] * 3, [0] * 3, n_known=more.get("n_known", 0), only=more.get("only", -1))


def test_the_slot_that_comes_to_hold_most_is_taken() -> None:
    taken = improved(a_run(b"Sabcdefgh!"), SLOTS, Placement(2, 1, 5))
    assert taken == Placement(0, 0, 9, shifts=(Shift(1, 2), Shift(5, 2)))


@pytest.mark.parametrize(
    ("placement", "more"),
    [(Placement(2, 1, 9), {}), (Placement(2), {"n_known": 9}), (Placement(2, -1, 0, Wait(1, 1, 9)), {})],
)
def test_what_is_had_without_moving_is_preferred(placement: Placement, more: dict[str, int]) -> None:
    assert improved(a_run(b"Sabcdefgh!"), SLOTS, placement, **more) == placement


@pytest.mark.parametrize("fields", [{"cache_prompt": False}, {"pin": "name"}, {"cache_salt": "salt"}])
def test_runs_that_must_not_take_it_do_not(fields: dict[str, object]) -> None:
    assert improved(a_run(b"Sabcdefgh!", **fields), SLOTS, Placement(2)) == Placement(2)


def test_only_an_idle_slot_that_may_serve_the_run_is_taken() -> None:
    run = a_run(b"Sabcdefgh!")
    slots = [holding(0, b"S--abcd--efgh", run=a_run(b"x")), holding(1, b"S--abcd--efgh", private=True), SLOTS[2]]
    assert improved(run, slots, Placement(2)) == Placement(2)
    assert improved(run, SLOTS, Placement(2), only=1).slot == 1
    assert improve(Placement(2), run, SLOTS, [13, 9, 0], [0] * 3, n_known=0) == Placement(2)


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_the_ledger_knows_from_where_on_cells_are_its_own() -> None:
    cells = Cells(2, unified=True)
    cells.extend(0, 10)
    assert cells.own(0) == 0
    cells.share(0, 1, 6)
    cells.extend(1, 2)
    assert (cells.own(0), cells.own(1)) == (6, 6)
    cells.drop(1, 3, 7)
    assert (cells.length(1), cells.used, cells.own(0), cells.own(1)) == (4, 11, 3, 3)
    cells.cut(1, 2)
    assert (cells.own(0), cells.own(1), cells.used) == (2, 2, 10)


# -- in the loop -------------------------------------------------------------------------------------------------------

SYSTEM = "System: be short. "
TURNS = [f"User: turn {word} of this talk. Answer: well, {word}. " for word in ("one", "two", "three", "four")]


def test_a_chat_that_forgets_its_first_turn_moves_the_others(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=1024)
    r.run(job("before", SYSTEM + "".join(TURNS[:3]), 2))
    before = r.backend.n_computed
    r.run(job("after", SYSTEM + "".join(TURNS[1:]), 2, n_cache_reuse=16))
    n_moved = len(SYSTEM + TURNS[1] + TURNS[2])
    assert r.inbox.started("after").n_cached >= n_moved
    assert r.backend.n_computed - before <= len(TURNS[3]) + 1
    assert r.backend.sound(0) < len(SYSTEM) + 20
    r.expect_solo()
    r.expect_all_idle()


def test_runs_that_are_too_short_are_computed(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=1024)
    r.run(job("before", SYSTEM + TURNS[0] + TURNS[1], 2))
    r.run(job("after", SYSTEM + TURNS[1], 2, n_cache_reuse=200))
    assert r.inbox.started("after").n_cached < len(SYSTEM) + 20
    assert r.backend.sound(r.inbox.started("after").slot) == r.backend.length(r.inbox.started("after").slot)
    r.expect_solo()


def test_who_does_not_ask_for_it_does_not_get_it(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=1024, kept=KEPT)
    r.run(job("before", SYSTEM + TURNS[0] + TURNS[1], 2))
    r.run(job("moved", SYSTEM + TURNS[1], 2, n_cache_reuse=16))
    assert r.inbox.started("moved").n_cached > len(SYSTEM) + 30
    r.run(job("exact", SYSTEM + TURNS[1], 2))
    assert r.inbox.started("exact").n_cached < len(SYSTEM) + 20
    r.run(job("before again", SYSTEM + TURNS[0] + TURNS[1], 2))
    assert r.inbox.started("before again").n_cached > len(SYSTEM + TURNS[0])
    r.expect_solo()


def test_who_asks_for_it_goes_on_from_what_was_moved(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=1024)
    r.run(job("before", SYSTEM + TURNS[0] + TURNS[1], 2))
    r.run(job("moved", SYSTEM + TURNS[1], 2, n_cache_reuse=16))
    r.run(job("on", SYSTEM + TURNS[1] + TURNS[2], 2, n_cache_reuse=16))
    assert r.inbox.started("on").n_cached >= len(SYSTEM + TURNS[1]) - 1
    r.expect_solo()


def test_cells_that_another_sequence_shares_are_not_moved() -> None:
    with Rig(FakeBackend(unified=True, n_seq_max=3, n_ctx=1024)) as r:
        text = SYSTEM + TURNS[0] + TURNS[1]
        r.submit(job("one", text, 2), job("two", text + TURNS[2], 200))
        r.step_until(lambda: len(r.inbox.tokens("two")) > 1)
        r.run(job("after", SYSTEM + TURNS[1] + TURNS[3], 2, n_cache_reuse=16))
        assert r.inbox.started("after").n_cached < len(SYSTEM) + 20
        r.expect_solo()


def test_nobody_waits_for_what_is_not_what_it_would_compute() -> None:
    """A slot that goes on from moved text computes nothing that another one could take."""
    with Rig(FakeBackend(n_seq_max=2, n_ctx=1024, n_batch=16)) as r:
        r.run(job("before", SYSTEM + TURNS[0] + TURNS[1], 2))
        r.submit(job("moved", SYSTEM + TURNS[1] + TURNS[2] + TURNS[3], 2, n_cache_reuse=16))
        r.step()
        assert 0 < r.inbox.started("moved").n_cached < len(SYSTEM + TURNS[1]) + 20
        r.submit(job("exact", SYSTEM + TURNS[1] + TURNS[2] + TURNS[3], 2))
        r.step()
        assert [slot.wait for slot in r.slots()] == [None, None]
        r.run()
        r.expect_solo()


@pytest.mark.parametrize("memory", ["recurrent", "window"])
def test_a_model_that_cannot_is_refused_by_name(fake_backend: Callable[..., FakeBackend], memory: str) -> None:
    with pytest.raises(NotSupportedError, match="--cache-reuse cannot be used"):
        Engine(fake_backend(memory=memory), EngineConfig(reuses=True))
    engine = Engine(fake_backend(memory=memory), EngineConfig())
    with pytest.raises(RequestError, match='"n_cache_reuse" must be 0') as refused:
        next(engine.stream(job("moved", "abc", n_cache_reuse=5)))
    assert refused.value.param == "n_cache_reuse"
    engine.close()
