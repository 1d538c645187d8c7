"""A job with a grammar: its text matches, what is forced costs no step of its own, the rest works as ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from minka.engine.engine import Engine
from minka.engine.memory import MemoryConfig
from minka.engine.picking import MAX_FORCED
from minka.errors import NativeError, NotSupportedError, RequestError, UnavailableError
from minka.params import SamplingParams
from minka.types import Constraint, FinishReason, Job, Thinking, Token, TokenLogprobs
from tests.engine.rig import GREEDY, Recorder, Rig, job
from tests.fake_constraints import ANY, BAD, FakeConstraints
from tests.fakes import FakeBackend, hashed

Rigs = Callable[..., Rig]

PATTERN = "{name:?,kind:??}"


def bound(id: str, prompt: str = "say it", n_predict: int = 64, grammar: str = PATTERN, **fields: object) -> Job:
    return job(id, prompt, n_predict, constraint=Constraint(grammar), **fields)


def matches(text: str, pattern: str = PATTERN) -> bool:
    return len(text) == len(pattern) and all(
        c in ANY.decode() if p == "?" else c == p for c, p in zip(text, pattern, strict=True)
    )


@pytest.fixture
def guided(rig: Rigs) -> Rigs:
    def make(**options: object) -> Rig:
        return rig(constraints=FakeConstraints(), **options)

    return make


def test_the_text_matches_and_ends_with_the_grammar(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a"))
    assert matches(r.inbox.text("a"))
    end = r.inbox.finished("a")
    assert (end.reason, end.timings.predicted_n) == (FinishReason.EOS, len(PATTERN))
    r.expect_all_idle()


def test_what_is_forced_is_computed_together(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a"))
    sizes = [len(chunk.tokens) for batch in r.backend.decodes for chunk in batch]
    # The prompt; "{" with the forced "name:"; the choice with the forced ",kind:"; a choice; the last one ends it.
    assert sizes == [6, 6, 7, 1]


def test_forced_tokens_come_one_event_each(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", grammar="{ab}"))
    assert [event.text for event in r.inbox.events["a"] if isinstance(event, Token)] == ["{", "a", "b", "}"]


def test_a_long_forced_text_is_appended_in_portions(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", grammar="x" * 50, n_predict=-1))
    assert r.inbox.text("a") == "x" * 50
    sizes = [len(chunk.tokens) for batch in r.backend.decodes for chunk in batch]
    assert sizes == [6, 1 + MAX_FORCED, 1 + MAX_FORCED]


@pytest.mark.parametrize("n_predict", [2, 5, 8])
def test_a_text_that_closes_at_the_limit_tells_of_the_limit(guided: Rigs, n_predict: int) -> None:
    """Its end was not the model's choice, and whoever reads it must be able to see that."""
    r = guided()
    r.run(bound("a", n_predict=n_predict, close_at_limit=True))
    text = r.inbox.text("a")
    assert (len(text), text[-1]) == (n_predict, "}")
    assert r.inbox.finished("a").reason is FinishReason.LIMIT
    r.expect_all_idle()


def test_a_text_that_ends_before_the_limit_ends_as_ever(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", n_predict=len(PATTERN), close_at_limit=True))
    assert matches(r.inbox.text("a"))
    assert r.inbox.finished("a").reason is FinishReason.EOS


@pytest.mark.parametrize(
    ("n_predict", "shifts", "room"), [(5, False, 5), (90, False, 57), (-1, False, 57), (-1, True, -1)]
)
def test_the_room_for_a_text_is_what_the_limit_and_the_context_leave(
    rig: Rigs, n_predict: int, shifts: bool, room: int
) -> None:
    constraints = FakeConstraints()
    r = rig(constraints=constraints, n_ctx=64, n_seq_max=1, shifts=shifts)
    r.run(bound("a", "say it:", n_predict=n_predict, close_at_limit=True))
    r.run(bound("b", "say it:", n_predict=n_predict))
    assert [matcher.room for matcher in constraints.matchers] == [room, -1]


@pytest.mark.parametrize("n_predict", [1, 2, 5, 8])
def test_the_token_limit_holds_within_forced_tokens(guided: Rigs, n_predict: int) -> None:
    r = guided()
    r.run(bound("a", n_predict=n_predict))
    assert len(r.inbox.tokens("a")) == n_predict
    assert r.inbox.finished("a").reason is FinishReason.LIMIT


def test_a_stop_string_within_forced_tokens_ends_the_text(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", stop=("ame:",)))
    end = r.inbox.finished("a")
    assert (r.inbox.text("a"), end.reason, end.stop_word) == ("{n", FinishReason.WORD, "ame:")
    r.expect_all_idle()


def test_constrained_and_free_jobs_share_steps(guided: Rigs) -> None:
    r = guided()
    free = [job(f"f{i}", f"free {i}", 12) for i in range(2)]
    r.run(bound("a"), *free, bound("b", "other prompt"))
    assert matches(r.inbox.text("a"))
    assert matches(r.inbox.text("b"))
    r.expect_solo("f0", "f1")


def test_probabilities_are_those_before_the_grammar_and_nothing_is_forced(guided: Rigs) -> None:
    r = guided()
    plain = r.backend.script
    r.run(bound("a", sampling=replace(GREEDY, n_probs=2)))
    probs = [event.logprobs for event in r.inbox.events["a"] if isinstance(event, Token)]
    assert matches(r.inbox.text("a"))
    assert all(isinstance(entry, TokenLogprobs) for entry in probs)
    first = probs[0]
    assert first is not None
    assert first.top[0].id == plain(list(b"say it")) != first.chosen.id == ord("{")
    assert all(len(chunk.tokens) == 1 for batch in r.backend.decodes[1:] for chunk in batch)


def test_sampling_at_a_temperature_stays_inside(guided: Rigs) -> None:
    r = guided()
    for seed in range(20):
        r.run(bound(f"a{seed}", sampling=SamplingParams(temperature=1.5, seed=seed)))
        assert matches(r.inbox.text(f"a{seed}"))


def test_a_preempted_run_goes_on_in_its_grammar() -> None:
    constraints = FakeConstraints()
    backend = FakeBackend(hashed(), n_ctx=64, n_seq_max=2)
    with Rig(backend, constraints=constraints, kept=MemoryConfig(limit=1_000_000, block=8)) as r:
        r.run(bound("a", "x" * 20, grammar="?" * 25), bound("b", "y" * 20, grammar="?" * 25))
        assert r.loop.counters.preempted
        assert matches(r.inbox.text("a"), "?" * 25)
        assert matches(r.inbox.text("b"), "?" * 25)
        assert len(constraints.matchers) == 2
        r.expect_all_idle()


def test_forced_text_runs_into_a_full_context(guided: Rigs) -> None:
    r = guided(n_ctx=64, n_seq_max=1)
    r.run(bound("a", "p" * 40, grammar="x" * 100, n_predict=-1))
    end = r.inbox.finished("a")
    assert (end.reason, end.truncated) == (FinishReason.LIMIT, True)
    assert r.inbox.text("a") == "x" * 24


def test_a_forced_text_goes_on_in_a_shifted_context(guided: Rigs) -> None:
    r = guided(n_ctx=64, n_seq_max=1, shifts=True)
    r.run(bound("a", "p" * 40, grammar="x" * 100 + "?", n_predict=-1))
    assert matches(r.inbox.text("a"), "x" * 100 + "?")
    r.expect_all_idle()


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_text_alone_and_among_others(guided: Rigs, deterministic: bool) -> None:
    r = guided(shapes=deterministic, deterministic=deterministic)
    r.run(bound("solo", "one and the same", grammar="ab?cd?ef??"))
    many = [bound(f"m{i}", "one and the same", grammar="ab?cd?ef??") for i in range(3)]
    r.run(*many, job("other", "noise", 20))
    assert {r.inbox.text(run.id) for run in many} == {r.inbox.text("solo")}


def test_only_a_token_that_may_not_come_is_picked_again(guided: Rigs) -> None:
    """What the model would write anyway costs no mask."""
    r = guided()
    r.run(job("free", "say it", 1))
    own = r.inbox.text("free")
    r.run(bound("fits", grammar=own), bound("other", grammar="?"))
    constraints = r.loop._constraints
    assert isinstance(constraints, FakeConstraints)
    assert [matcher.n_applied for matcher in constraints.matchers] == [0, 1]
    assert (r.inbox.text("fits"), r.inbox.text("other") in ANY.decode()) == (own, True)


def test_what_is_picked_again_leaves_the_distribution_as_it_is() -> None:
    """As if everything that may not come had been forbidden before: Z has most of the weight here, and is refused."""
    with Rig(FakeBackend(script=lambda _tokens: ord("Z")), constraints=FakeConstraints()) as rig:
        hot = SamplingParams(temperature=4.0)
        n = 2_000
        rig.run(*(bound(f"{seed}", grammar="?", sampling=replace(hot, seed=seed)) for seed in range(n)))
        picked = Counter(rig.inbox.text(f"{seed}") for seed in range(n))
        weights = {"a": np.exp(6 / 4), "h": np.exp(5 / 4), **dict.fromkeys("bcdefg", np.exp(-9 / 4))}
    for char, weight in weights.items():
        share = float(weight / sum(weights.values()))
        assert picked[char] / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)


def test_each_token_is_accepted_once_whether_picked_again_or_not(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", sampling=SamplingParams(temperature=1.5)))
    assert r.backend.samplers[-1].said == [*b"say it", *r.inbox.text("a").encode()]


def test_a_grammar_that_fails_ends_its_job_only(guided: Rigs) -> None:
    r = guided()
    r.run(bound("a", grammar=BAD), job("b", "free", 5))
    assert isinstance(r.inbox.error("a"), RequestError)
    r.expect_solo("b")
    r.expect_all_idle()


def test_no_token_is_left(guided: Rigs) -> None:
    r = guided()
    forbidden = tuple((token, float("-inf")) for token in ANY)
    r.run(bound("a", grammar="??", sampling=replace(GREEDY, logit_bias=forbidden)))
    error = r.inbox.error("a")
    assert isinstance(error, RequestError)
    assert "leave no token" in error.message
    r.expect_all_idle()


def test_a_model_without_numbers_is_not_the_fault_of_the_grammar() -> None:
    with Rig(FakeBackend(nan=lambda _tokens: True), constraints=FakeConstraints()) as rig:
        rig.run(bound("a", grammar="??"))
        error = rig.inbox.error("a")
        assert isinstance(error, NativeError)
        assert "no usable logits" in error.message


def test_an_engine_without_constraints_refuses() -> None:
    engine = Engine(FakeBackend())
    try:
        with pytest.raises(NotSupportedError, match="cannot follow a grammar"):
            engine.submit(bound("a"), Recorder())
    finally:
        engine.close()


# -- reasoning ---------------------------------------------------------------------------------------------------------


def thinking(budget: int = -1, grammar: str = "") -> Constraint:
    return Constraint(grammar, Thinking("<t>", ("</t>",), is_open=True, budget=budget))


def test_a_budget_forces_the_end_of_the_reasoning(guided: Rigs) -> None:
    r = guided()
    r.run(job("a", "think", 40, constraint=thinking(5, PATTERN)))
    thought, _, rest = r.inbox.text("a").partition("</t>")
    assert len(thought) == 5
    assert matches(rest)


def test_reasoning_is_ended_from_outside(guided: Rigs) -> None:
    r = guided()
    r.submit(job("a", "think", 60, constraint=thinking(grammar=PATTERN)))
    assert not r.loop.end_thinking("a")  # it waits
    r.step(4)
    assert not r.loop.end_thinking("b")
    assert r.loop.end_thinking("a")
    assert not r.loop.end_thinking("a")
    r.step_until(lambda: r.inbox.has_ended("a"))
    thought, _, rest = r.inbox.text("a").partition("</t>")
    assert len(thought) == 4
    assert matches(rest)


def test_the_engine_ends_reasoning() -> None:
    backend = FakeBackend()
    engine = Engine(backend, constraints=FakeConstraints())
    try:
        assert not engine.end_thinking("nobody").result(10)
        backend.gate.let(3)
        events = engine.stream(job("a", "think", 60, constraint=thinking(grammar=PATTERN)))
        next(events)
        backend.gate.wait_held()
        asked = engine.end_thinking("a")
        backend.gate.open()
        assert asked.result(10)
        text = "".join(event.text for event in events if isinstance(event, Token))
        assert matches(text.partition("</t>")[2])
    finally:
        engine.close()
    with pytest.raises(UnavailableError):
        engine.end_thinking("a").result(10)
