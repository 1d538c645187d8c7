from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.memory import MemoryConfig
from minka.errors import NativeError
from minka.types import Finished, FinishReason, PromptLogprobs, Started, Token, TokenLogprobs
from tests.engine.rig import Recorder, Rig, job
from tests.fakes import FakeBackend, tokens_of

LONG = "the quick brown fox jumps over the lazy dog, twice a day and once more at night"


def scores(inbox: Recorder, id: str) -> list[TokenLogprobs]:
    """The probabilities that a job was told of, which must come in order, without holes, before its first token."""
    events = inbox.events[id]
    told = [event for event in events if isinstance(event, PromptLogprobs)]
    at = 1
    for event in told:
        assert event.first == at
        assert event.entries
        at += len(event.entries)
    first = next((n for n, event in enumerate(events) if isinstance(event, Token | Finished)), len(events))
    assert all(not isinstance(event, PromptLogprobs) for event in events[first:])
    return [entry for event in told for entry in event.entries]


def expected(backend: FakeBackend, prompt: tuple[int, ...]) -> list[float]:
    """The definition: the log softmax of the row behind each token, at the next one."""
    rows = [backend._row(prompt[:n]).astype(np.float64) for n in range(1, len(prompt))]
    return [
        float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()))
        for row, token in zip(rows, prompt[1:], strict=True)
    ]


@pytest.mark.parametrize("n_rows", [4, 7, 64])
def test_every_prompt_token_but_the_first_has_its_probability(n_rows: int) -> None:
    backend = FakeBackend(n_rows=n_rows, n_batch=64)
    with Rig(backend) as rig:
        rig.run(job("a", LONG, 3, prompt_logprobs=2))
        told = scores(rig.inbox, "a")
        assert [entry.chosen.id for entry in told] == list(tokens_of(LONG)[1:])
        assert [entry.chosen.logprob for entry in told] == pytest.approx(expected(backend, tokens_of(LONG)), abs=1e-5)
        assert all(len(entry.top) == 2 and entry.top[0].logprob > entry.top[1].logprob for entry in told)
        rig.expect_solo("a")


def test_the_rank_counts_likelier_tokens() -> None:
    with Rig(FakeBackend()) as rig:
        rig.run(job("a", LONG, 1, prompt_logprobs=5))
        ranked = [entry for entry in scores(rig.inbox, "a") if entry.chosen in entry.top]
        assert ranked
        assert all(entry.top[entry.rank - 1] == entry.chosen for entry in ranked)
        rig.expect_solo("a")


def test_no_alternatives_if_none_are_wanted() -> None:
    with Rig(FakeBackend()) as rig:
        rig.run(job("a", LONG, 1, prompt_logprobs=0))
        assert [entry.top for entry in scores(rig.inbox, "a")] == [()] * (len(LONG) - 1)


def test_a_prompt_alone_can_be_scored() -> None:
    with Rig(FakeBackend()) as rig:
        rig.run(job("a", LONG, 0, prompt_logprobs=1), job("b", "x", 0, prompt_logprobs=1))
        assert len(scores(rig.inbox, "a")) == len(LONG) - 1
        assert scores(rig.inbox, "b") == []
        assert rig.inbox.finished("a").reason is FinishReason.LIMIT
        assert rig.inbox.tokens("a") == []


def test_nothing_is_taken_over_for_a_prompt_that_is_scored_but_others_take_from_it() -> None:
    backend = FakeBackend()
    with Rig(backend, kept=MemoryConfig(limit=1 << 30)) as rig:
        rig.run(job("warm", LONG))
        rig.run(job("scored", LONG, prompt_logprobs=1))
        assert rig.inbox.started("scored").n_cached == 0
        told = [entry.chosen.logprob for entry in scores(rig.inbox, "scored")]
        assert told == pytest.approx(expected(backend, tokens_of(LONG)), abs=1e-5)
        rig.run(job("after", LONG + " more"))
        assert rig.inbox.started("after").n_cached == len(LONG)
        rig.expect_solo()


def test_a_scored_prompt_waits_for_nobody_who_computes_the_same() -> None:
    with Rig(FakeBackend(n_batch=16)) as rig:
        rig.run(job("leader", LONG), job("scored", LONG, prompt_logprobs=0))
        assert len(scores(rig.inbox, "scored")) == len(LONG) - 1
        rig.expect_solo()


def test_several_prompts_share_the_rows() -> None:
    backend = FakeBackend(n_rows=5, n_batch=64)
    with Rig(backend) as rig:
        rig.submit(job("stream", "hello", 200))
        rig.step(3)
        rig.run(*(job(str(n), LONG + str(n), 2, prompt_logprobs=1) for n in range(3)))
        for n in range(3):
            assert len(scores(rig.inbox, str(n))) == len(LONG)
        rig.expect_solo()


def test_a_run_that_loses_its_slot_tells_nothing_twice() -> None:
    backend = FakeBackend(n_ctx=200, n_rows=10, n_seq_max=2, n_batch=64)
    with Rig(backend) as rig:
        rig.submit(job("old", "once", 150))
        rig.step(20)
        rig.run(job("scored", LONG, 60, prompt_logprobs=1))
        told = [entry.chosen.logprob for entry in scores(rig.inbox, "scored")]
        assert told == pytest.approx(expected(backend, tokens_of(LONG)), abs=1e-5)
        rig.expect_solo()


def test_it_works_with_whole_states_and_in_deterministic_plans() -> None:
    for backend, deterministic in (
        (FakeBackend(memory="recurrent"), False),
        (FakeBackend(memory="window"), False),
        (FakeBackend(unified=False, n_rows=64), True),
    ):
        with Rig(backend, kept=MemoryConfig(limit=1 << 30), deterministic=deterministic) as rig:
            rig.run(job("warm", LONG))
            rig.run(job("scored", LONG, prompt_logprobs=1))
            told = [entry.chosen.logprob for entry in scores(rig.inbox, "scored")]
            assert told == pytest.approx(expected(backend, tokens_of(LONG)), abs=1e-5)
            rig.expect_solo()


def test_logits_that_are_no_numbers_end_the_job() -> None:
    backend = FakeBackend(nan=lambda tokens: len(tokens) == 10)
    with Rig(backend) as rig:
        rig.run(job("bad", LONG, prompt_logprobs=1), job("good", "hi"))
        assert isinstance(rig.inbox.error("bad"), NativeError)
        rig.expect_solo("good")


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(-1, 3), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(4, 20),
    st.booleans(),
)
def test_any_mix_of_jobs(sizes: list[tuple[int, int, int]], n_rows: int, unified: bool) -> None:
    backend = FakeBackend(n_rows=n_rows, n_batch=32, n_ctx=800, unified=unified)
    with Rig(backend, kept=MemoryConfig(limit=1 << 20)) as rig:
        text = (LONG * 2)[:90]
        rig.run(*(job(str(n), text[:size], n_new, prompt_logprobs=top) for n, (size, top, n_new) in enumerate(sizes)))
        for n, (size, top, n_new) in enumerate(sizes):
            assert len(scores(rig.inbox, str(n))) == (size - 1 if top >= 0 else 0)
            assert isinstance(rig.inbox.events[str(n)][0], Started)
            if n_new:
                rig.expect_solo(str(n))
