"""Slots saved, restored and erased, and the cache looked at and emptied, between the steps of a loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from minka.engine.control import ClearCache, EraseSlot, LookAtCache, RestoreSlot, SaveSlot, SlotState, Unpin
from minka.engine.memory import MemoryConfig
from minka.errors import NativeError, RequestError, UnavailableError
from minka.types import CacheView, TierView
from tests.engine.rig import Rig, job
from tests.fakes import CONTROL, Cost, FakeBackend, tokens_of

T = TypeVar("T")
Rigs = Callable[..., Rig]

KEPT = MemoryConfig(limit=1_000_000, block=16, clear_idle=False)
MEMORIES = ["plain", "recurrent", "window"]
STORY = "A story of a village by the sea, told by an old man in winter. "
OTHER = "Other stories, of a town in the hills, told by a child at noon. "


def now(reply: Future[T]) -> T:
    """The reply, which must be there already."""
    assert reply.done(), "the command still waits"
    return reply.result()


def save(r: Rig, slot: int = 0) -> Future[SlotState]:
    reply: Future[SlotState] = Future()
    r.loop.control.do(SaveSlot(slot, reply))
    return reply


def restore(r: Rig, saved: SlotState, slot: int = 0, salt: str = "") -> Future[None]:
    reply: Future[None] = Future()
    r.loop.control.do(RestoreSlot(slot, saved, salt, reply))
    r.loop.check()
    return reply


def erase(r: Rig, slot: int = 0) -> Future[int]:
    reply: Future[int] = Future()
    r.loop.control.do(EraseSlot(slot, reply))
    r.loop.check()
    return reply


def look(r: Rig) -> CacheView:
    reply: Future[CacheView] = Future()
    r.loop.control.do(LookAtCache(reply))
    return now(reply)


def tiers(r: Rig) -> dict[str, TierView]:
    return {tier.name: tier for tier in look(r).tiers}


def clear(r: Rig) -> int:
    reply: Future[int] = Future()
    r.loop.control.do(ClearCache(reply))
    r.loop.check()
    return now(reply)


def n_cached(r: Rig, id: str) -> int:
    return r.inbox.started(id).n_cached


# -- slots -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_saved_slot_goes_on_in_another_one(rig: Rigs, memory: str) -> None:
    r = rig(memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=1))
    saved = now(save(r, 1))
    held = STORY + bytes(r.inbox.tokens("a")[:-1]).decode()
    assert bytes(saved.tokens).decode() == held, "the last token was never computed"
    assert now(erase(r, 1)) == len(held)
    now(restore(r, saved, 0))
    r.run(job("b", held + " And then?", 8))
    assert n_cached(r, "b") == len(held)
    assert r.inbox.finished("b").slot == 0
    r.expect_solo()
    r.expect_all_idle()


def test_an_erased_slot_holds_nothing(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=1))
    assert now(erase(r, 1)) == len(STORY) + 7
    assert now(erase(r, 1)) == 0
    r.run(job("b", STORY, 8, id_slot=1))
    assert n_cached(r, "b") == 0
    r.expect_solo()


def test_an_empty_slot_can_be_saved_and_restored(rig: Rigs) -> None:
    r = rig(n_seq_max=2)
    saved = now(save(r, 1))
    assert saved.tokens == ()
    r.run(job("a", STORY, 8, id_slot=0))
    now(restore(r, saved, 0))
    assert now(save(r, 0)).tokens == ()
    r.expect_all_idle()


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_a_slot_held_before_a_restore_is_remembered(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=0))
    saved = now(save(r))
    r.run(job("b", OTHER, 8, id_slot=0))
    held = OTHER + bytes(r.inbox.tokens("b")[:-1]).decode()
    now(restore(r, saved))
    r.run(job("c", held + "!", 8))
    assert n_cached(r, "c") >= len(OTHER)
    r.expect_solo()


def test_restored_text_serves_one_salt(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=0, cache_salt="mine"))
    saved = now(save(r))
    now(erase(r))
    clear(r)
    now(restore(r, saved, salt="yours"))
    r.run(job("nobody's", STORY + "?", 4, id_slot=1), job("mine", STORY + "?", 4, id_slot=1, cache_salt="mine"))
    assert (n_cached(r, "nobody's"), n_cached(r, "mine")) == (0, 0)
    r.run(job("yours", STORY + "?", 4, cache_salt="yours"))
    assert n_cached(r, "yours") == len(STORY)
    r.expect_solo()


def test_a_command_waits_for_its_slot_and_nothing_waits_for_it(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=1024)
    r.submit(job("long", STORY, 40, id_slot=0))
    r.step(3)
    waits = save(r, 0)
    free = save(r, 1)
    assert free.done()
    r.submit(job("short", OTHER, 4, id_slot=1))
    r.step_until(lambda: r.inbox.has_ended("short"))
    assert not waits.done()
    assert not r.inbox.has_ended("long")
    r.submit(job("next", OTHER, 4, id_slot=0))
    r.step_until(lambda: waits.done())
    assert r.inbox.has_ended("long")
    held = STORY + bytes(r.inbox.tokens("long")[:-1]).decode()
    assert bytes(now(waits).tokens).decode() == held, "the command came before the next job"
    r.run()
    r.expect_solo()


def test_commands_for_a_busy_slot_are_done_in_order(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=256)
    r.submit(job("a", STORY, 8))
    r.step(2)
    saves, erases, again = save(r), erase(r), save(r)
    assert [reply.done() for reply in (saves, erases, again)] == [False] * 3
    r.run()
    assert len(now(saves).tokens) == len(STORY) + 7
    assert now(erases) == len(STORY) + 7
    assert now(again).tokens == ()


def test_a_cancelled_job_frees_the_slot_for_a_command(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=256)
    r.submit(job("a", STORY, 100))
    r.step(3)
    waits = erase(r)
    r.loop.cancel("a")
    assert r.loop.busy, "the engine must make one more step"
    r.step()
    assert now(waits) > len(STORY)
    assert not r.loop.busy


def test_nobody_waits_for_a_command_that_was_taken_back(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=256)
    r.submit(job("a", STORY, 20))
    r.step(2)
    waits = erase(r)
    assert waits.cancel()
    r.step()
    assert not r.loop.control.waits
    r.run()
    assert len(now(save(r)).tokens) == len(STORY) + 19, "nothing was erased"


def test_a_loop_that_ends_refuses_what_waits(rig: Rigs) -> None:
    r = rig(n_seq_max=1, n_ctx=256)
    r.submit(job("a", STORY, 20))
    r.step(2)
    waits = save(r)
    r.loop.abandon(UnavailableError("the server is stopping"))
    with pytest.raises(UnavailableError):
        now(waits)


def test_there_is_no_such_slot(rig: Rigs) -> None:
    r = rig(n_seq_max=2)
    for slot in (-1, 2):
        for error in (save(r, slot).exception(), restore(r, SlotState((), b""), slot).exception()):
            assert isinstance(error, RequestError)
            assert str(error) == "Invalid slot ID"
        assert isinstance(erase(r, slot).exception(), RequestError)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_state_that_does_not_fit_leaves_an_empty_slot(rig: Rigs, memory: str) -> None:
    r = rig(memory=memory, n_seq_max=2, n_ctx=256)
    r.run(job("a", STORY, 8, id_slot=0))
    saved = now(save(r))
    for bad in (
        SlotState(saved.tokens, b"nonsense"),
        SlotState(saved.tokens, saved.state[:-1]),
        SlotState(saved.tokens[:-1], saved.state),
        SlotState((*saved.tokens, 65), saved.state),
    ):
        r.run(job(f"{len(r.jobs)}", STORY, 8, id_slot=1))
        with pytest.raises(RequestError, match="No available space in KV cache or invalid slot save file"):
            now(restore(r, bad, 1))
        assert now(save(r, 1)).tokens == ()
    r.run(job("b", STORY, 8, id_slot=1, cache_prompt=False))
    r.expect_solo("b")


def test_tokens_are_checked_before_anything_is_touched(rig: Rigs) -> None:
    r = rig(n_seq_max=2, n_ctx=256)
    r.run(job("a", STORY, 8, id_slot=0))
    saved, n_ctx_seq = now(save(r)), r.backend.n_ctx_seq
    for tokens, reason in (
        ((*saved.tokens[:-1], CONTROL + 1), "Invalid tokens in slot save file"),
        ((*saved.tokens[:-1], -1), "Invalid tokens in slot save file"),
        ((65,) * (n_ctx_seq + 1), "Restored prompt does not fit in the slot context"),
    ):
        with pytest.raises(RequestError, match=f"^Unable to restore slot: {reason}$"):
            now(restore(r, SlotState(tokens, saved.state)))
    assert now(save(r)) == saved


def test_idle_text_gives_way_to_a_restored_slot() -> None:
    with Rig(FakeBackend(unified=True, n_seq_max=4, n_ctx=220)) as r:
        r.run(job("a", STORY, 8, id_slot=0))
        saved = now(save(r))
        r.run(job("b", OTHER, 8, id_slot=1), job("c", STORY[::-1], 8, id_slot=2))
        assert r.backend.used == 3 * len(saved.tokens) + 1
        now(restore(r, saved, 3))
        assert now(save(r, 3)).tokens == saved.tokens
        assert now(save(r, 0)).tokens == (), "it was not used for longest"
        assert len(now(save(r, 2)).tokens) == len(saved.tokens)
        r.expect_all_idle()


def test_a_busy_pool_has_no_room_for_a_restored_slot() -> None:
    with Rig(FakeBackend(unified=True, n_seq_max=2, n_ctx=120)) as r:
        r.run(job("a", STORY, 8, id_slot=0))
        saved = now(save(r))
        now(erase(r))
        r.submit(job("b", OTHER, 30, id_slot=1))
        r.step(3)
        with pytest.raises(RequestError, match="No available space"):
            now(restore(r, saved))
        r.run()
        r.expect_solo()


def test_an_error_of_the_backend_is_the_reply(rig: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(n_seq_max=1)

    def full(_seq: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(r.backend, "save", full)
    with pytest.raises(NativeError, match="not enough memory"):
        now(save(r))


# -- cache -------------------------------------------------------------------------------------------------------------


def test_tiers_say_what_they_hold_and_what_they_were_good_for(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    assert [(tier.entries, tier.tokens, tier.hits, tier.served) for tier in look(r).tiers] == [(0, 0, 0, 0)] * 2
    r.run(job("a", STORY, 8, id_slot=0))
    n = len(STORY) + 7
    assert tiers(r)["device"] == TierView("device", 1, n, None, 1024, 0, 0)
    r.run(job("b", STORY + "!", 1, id_slot=0))
    held = tiers(r)
    assert (held["device"].hits, held["device"].served) == (1, len(STORY))
    r.run(job("c", OTHER, 1, id_slot=0), job("d", OTHER[::-1], 1, id_slot=1))
    r.run(job("e", STORY + "!", 1, id_slot=1))
    ram = tiers(r)["ram"]
    assert (ram.hits, ram.served, ram.limit) == (1, len(STORY), 1_000_000)
    assert ram.tokens >= n
    assert ram.n_bytes == 4 * ram.tokens
    assert ram.entries >= n // 16
    device = tiers(r)["device"]
    assert (device.hits, device.served) == (1, len(STORY)), "what came from memory is not counted twice"
    r.expect_solo()


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_emptied_cache_knows_nothing_and_harms_nobody(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=0), job("b", OTHER, 8, id_slot=0))
    r.submit(job("busy", STORY[::-1], 20, id_slot=1))
    r.step(3)
    assert clear(r) > 1
    held = tiers(r)
    assert held["device"].entries == 1, "the busy slot keeps its text"
    assert (held["ram"].entries, held["ram"].tokens, held["ram"].n_bytes) == (0, 0, 0)
    r.run(job("a again", STORY, 8, id_slot=0), job("b again", OTHER, 8))
    assert (n_cached(r, "a again"), n_cached(r, "b again")) == (0, 0)
    r.expect_solo()
    assert clear(r) > 0
    assert clear(r) == 0


def test_a_name_that_is_not_pinned_cannot_be_unpinned(rig: Rigs) -> None:
    r = rig(kept=KEPT)
    reply: Future[bool] = Future()
    r.loop.control.do(Unpin("nothing", reply))
    assert now(reply) is False


def test_counters_of_time_cover_the_tokens_after_the_first(rig: Rigs) -> None:
    r = rig(n_seq_max=2, cost=Cost(step=0.5))
    r.run(job("a", STORY, 8), job("b", OTHER, 1), job("c", OTHER, 0))
    counters = r.loop.counters
    assert (counters.predicted_tokens, counters.predicted_steps, counters.predicted_seconds) == (9, 7, 3.5)


def test_restoring_is_no_use_of_the_cache(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORY, 8, id_slot=0))
    now(restore(r, now(save(r, 0)), 1))
    assert all(tier.hits == 0 for tier in look(r).tiers)
    assert tokens_of(STORY) == now(save(r, 1)).tokens[: len(STORY)]
