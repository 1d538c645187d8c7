"""Text that lost its cells comes back from memory, and never into a place where it does harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minka.engine.memory import MemoryConfig
from tests.engine.rig import Rig, job
from tests.fakes import FakeBackend

Rigs = Callable[..., Rig]
KEPT = MemoryConfig(limit=1_000_000, block=16)
PREFIX = "A story of a village by the sea, told by an old man in winter. " * 2
STORIES = [f"Story number {i}: {PREFIX}" for i in range(4)]


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_a_chat_that_lost_its_slot_goes_on_from_memory(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    for i, story in enumerate(STORIES):
        r.run(job(f"{i}", story, 6))
    answer = bytes(r.inbox.tokens("0")).decode()
    r.run(job("again", STORIES[0] + answer + " And then?", 6))
    assert r.inbox.started("again").n_cached >= len(STORIES[0])
    assert r.loop.counters.recalled_tokens >= len(STORIES[0])
    r.expect_solo()
    r.expect_all_idle()


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_nothing_is_restored_over_a_stream_that_is_still_to_be_copied(rig: Rigs, memory: str) -> None:
    """Two jobs come in one step: the first copies from an idle slot, the second takes that slot and is known."""
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(job("known", STORIES[1], 4))
    r.run(job("other", STORIES[2], 4))
    r.run(job("source", STORIES[3] + "The end. " * 20, 4))
    answer = bytes(r.inbox.tokens("known")).decode()
    copied = STORIES[3] + ("The end. " * 20 + bytes(r.inbox.tokens("source")[:3]).decode() if memory != "plain" else "")
    r.submit(job("copies", copied + "Once more!", 4), job("recalls", STORIES[1] + answer + "?", 4))
    r.run()
    r.expect_solo()
    r.expect_all_idle()


def test_jobs_of_another_salt_never_start_from_each_other(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    r.run(job("mine", STORIES[0], 4, cache_salt="me"))
    r.run(job("yours", STORIES[0], 4, cache_salt="you"))
    r.run(job("nobody's", STORIES[0], 4))
    assert [r.inbox.started(id).n_cached for id in ("mine", "yours", "nobody's")] == [0, 0, 0]
    r.run(job("mine again", STORIES[0], 4, cache_salt="me"))
    assert r.inbox.started("mine again").n_cached == len(STORIES[0]) - 1
    r.expect_solo()


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_a_private_job_leaves_nothing_for_others(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.submit(job("private", STORIES[0], 8, cache_prompt=False))
    r.step(2)
    r.run(job("curious", STORIES[0] + "?", 4))
    assert r.inbox.started("curious").n_cached == 0
    r.run(job("later", STORIES[0] + "!", 4, cache_salt="new"))
    assert r.inbox.started("later").n_cached == 0
    r.expect_solo()


def test_a_preempted_run_comes_back_from_memory() -> None:
    with Rig(FakeBackend(unified=True, n_ctx=100), kept=KEPT) as r:
        r.run(*(job(str(i), [97 + i] * 20, 60) for i in range(3)))
        assert r.loop.counters.preempted > 0
        sampled = sum(len(r.inbox.tokens(str(i))) for i in range(3))
        assert r.backend.n_computed < 3 * 20 + sampled + 16 * r.loop.counters.preempted
        r.expect_solo()


def test_an_idle_engine_remembers_what_the_next_run_would_wait_for(unified: bool) -> None:
    with Rig(FakeBackend(unified=unified, n_seq_max=2, n_ctx=1024), kept=KEPT) as r:
        r.run(job("a", STORIES[0], 6), job("b", STORIES[1], 6))
        known = [r.memory.known(list(STORIES[i].encode()), "") for i in range(2)]
        assert not any(known)
        while r.loop.rest():
            r.loop.check()
        known = [r.memory.known(list(STORIES[i].encode()), "") for i in range(2)]
        # A split layout keeps a text in its own cells until another one needs them.
        assert all(n >= len(STORIES[0]) - KEPT.block for n in known) == unified
        assert not r.loop.rest()
        r.run(job("c", STORIES[0], 6))
        assert r.inbox.started("c").n_cached == len(STORIES[0]) - 1
        r.expect_solo()


def test_a_private_text_is_not_remembered_in_an_idle_moment(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    r.run(job("a", STORIES[0], 6, cache_prompt=False))
    while r.loop.rest():
        r.loop.check()
    assert not r.memory.known(list(STORIES[0].encode()), "")
