"""What is computed once is not computed again: prefixes shared between slots, in both layouts of the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minka.types import Started
from tests.engine.rig import Rig, job

Rigs = Callable[..., Rig]
PREFIX = "You are a careful assistant who answers shortly and never guesses. " * 3
N = len(PREFIX)


def n_prompt_tokens(r: Rig) -> int:
    """Prompt tokens that were computed, counted in the batches: every token but those that were sampled."""
    sampled = sum(max(0, len(r.inbox.tokens(id)) - 1) for id in r.jobs)
    return r.backend.n_computed - sampled


def test_the_next_turn_of_a_chat_goes_on_in_its_slot(rig: Rigs) -> None:
    r = rig()
    r.run(job("one", PREFIX, 5))
    answer = bytes(r.inbox.tokens("one")).decode()
    r.run(job("two", PREFIX + answer + " And then?", 5))
    assert r.inbox.started("two") == Started("two", 0, n_prompt=N + 15, n_cached=N + 4)
    r.expect_solo()


def test_a_repeated_prompt_computes_its_last_token_only(rig: Rigs) -> None:
    r = rig()
    r.run(job("one", PREFIX, 5))
    before = r.backend.n_computed
    r.run(job("two", PREFIX, 1))
    assert r.backend.n_computed == before + 1
    assert r.inbox.started("two").n_cached == N - 1
    r.expect_solo()


def test_without_cache_everything_is_computed(rig: Rigs) -> None:
    r = rig()
    r.run(job("one", PREFIX, 5))
    r.run(job("two", PREFIX, 5, cache_prompt=False))
    assert r.inbox.started("two").n_cached == 0
    assert n_prompt_tokens(r) == 2 * N
    r.expect_solo()


def test_a_cold_prefix_that_comes_many_times_at_once_is_computed_once(rig: Rigs) -> None:
    r = rig(n_seq_max=8, n_batch=64, n_ctx=8 * 512)
    tails = [f"{i}. What is {i} times {i}?" for i in range(8)]
    r.run(*(job(str(i), PREFIX + tail, 10) for i, tail in enumerate(tails)))
    assert n_prompt_tokens(r) == N + sum(map(len, tails))
    assert [r.inbox.started(str(i)).n_cached for i in range(8)] == [0] + [N] * 7
    r.expect_solo()
    view = r.loop.view()
    assert view.counters.prompt_tokens == N + sum(map(len, tails))
    assert view.counters.cached_tokens == 7 * N


def test_the_same_prompt_many_times_at_once(rig: Rigs) -> None:
    r = rig(n_batch=64)
    r.run(*(job(str(i), PREFIX, 10) for i in range(4)))
    assert n_prompt_tokens(r) == N + 3
    r.expect_solo()


def test_who_comes_while_the_prefix_is_half_computed_waits_for_the_rest(rig: Rigs) -> None:
    r = rig(n_batch=50)
    r.submit(job("one", PREFIX + "1", 10))
    r.step(2)
    r.run(job("two", PREFIX + "2", 10))
    assert n_prompt_tokens(r) == N + 2
    r.expect_solo()


def test_a_prefix_is_taken_from_a_running_stream_too(rig: Rigs) -> None:
    r = rig()
    r.submit(job("one", PREFIX, 40))
    r.step(10)
    so_far = bytes(r.inbox.tokens("one")[:8]).decode()
    r.run(job("two", PREFIX + so_far + "?", 10))
    assert r.inbox.started("two").n_cached == N + 8
    r.expect_solo()


def test_prefixes_within_prefixes_are_each_computed_once(rig: Rigs) -> None:
    """A tree: all share the system prompt, two of them a document as well."""
    r = rig(n_batch=32, n_ctx=4 * 512)
    document = "The treaty was signed in spring, by nine of the eleven towns. "
    prompts = [PREFIX + document + "Who?", PREFIX + document + "At which date?", PREFIX + "Something else?"]
    r.run(*(job(str(i), prompt, 10) for i, prompt in enumerate(prompts)))
    assert n_prompt_tokens(r) == N + len(document) + len("Who?" + "At which date?" + "Something else?")
    r.expect_solo()


def test_shared_cells_are_counted_once_in_one_pool(rig: Rigs, unified: bool) -> None:
    r = rig(n_batch=64)
    r.submit(job("one", PREFIX + "1", 20), job("two", PREFIX + "2", 20))
    r.step_until(lambda: len(r.inbox.tokens("two")) == 3)
    lengths = [slot.n_past for slot in r.slots()]
    assert r.loop.view().used_cells == r.backend.used == sum(lengths) - (N if unified else 0)


def test_a_text_that_was_shared_stays_for_the_next_one(rig: Rigs) -> None:
    """The slot of the first chat is not overwritten by another that only starts the same."""
    r = rig()
    r.run(job("one", PREFIX + "A long question of the first chat. " * 8, 5))
    r.run(job("two", PREFIX + "Hi.", 5))
    assert r.inbox.started("two").slot != r.inbox.started("one").slot
    r.run(job("three", PREFIX + "A long question of the first chat. " * 8 + "And?", 5))
    assert r.inbox.started("three").slot == r.inbox.started("one").slot
    assert r.inbox.started("three").n_cached > N + 200
    r.expect_solo()


def test_a_pinned_job_takes_its_prefix_from_elsewhere_into_its_slot(rig: Rigs) -> None:
    r = rig()
    r.run(job("one", PREFIX, 5))
    r.run(job("two", PREFIX + "2", 5, id_slot=3))
    assert (r.inbox.started("two").slot, r.inbox.started("two").n_cached) == (3, N)
    r.expect_solo()


def test_a_follower_of_a_leader_that_fails_computes_the_rest_itself(rig: Rigs) -> None:
    r = rig(n_batch=64, nan=lambda tokens: tokens[-1] == ord("!"))
    r.run(job("bad", PREFIX + "!", 5), job("good", PREFIX + "?", 5))
    r.expect_solo("good")
    assert len(r.ended) == 2


@pytest.mark.parametrize("memory", ["recurrent", "window"])
def test_sequences_that_cannot_be_cut_give_the_same_text(rig: Rigs, memory: str) -> None:
    r = rig(memory=memory, n_batch=64)
    r.run(*(job(str(i), PREFIX + f"{i}?", 12) for i in range(6)))
    answer = bytes(r.inbox.tokens("5")).decode()
    r.run(job("next", PREFIX + "5?" + answer + " And?", 12), job("else", PREFIX + "5?" + answer + " Or?", 12))
    r.run(job("again", PREFIX + "3?", 12))
    assert r.inbox.started("next").n_cached >= N + 2 + 11, "going on at the end is possible for all of them"
    r.expect_solo()
    r.expect_all_idle()


def test_a_window_that_still_reaches_back_is_used(rig: Rigs) -> None:
    r = rig(memory="window", window=40)
    r.run(job("one", PREFIX + "a question of some length", 5))
    r.run(job("two", PREFIX + "a question of some width", 5))
    assert r.inbox.started("two").n_cached == N + len("a question of some ")
    r.expect_solo()
