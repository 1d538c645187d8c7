"""How a job ends: by itself, by its limits, by an error. Each end leaves the slot free and the others untouched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from minka.errors import NativeError, RequestError
from minka.params import SamplingParams
from minka.types import Failed, FinishReason, Progress, Started, Token
from tests.engine.rig import GREEDY, Rig, job
from tests.fakes import CONTROL, EOS, Chunk, Cost, FakeVocab, eos_after, scripted

Rigs = Callable[..., Rig]


def test_events_of_a_job_in_order(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": "yes"}))
    r.run(job("a", "ask", 10))
    events = r.inbox.events["a"]
    assert events[0] == Started("a", slot=0, n_prompt=3, n_cached=0)
    assert [event.text for event in events if isinstance(event, Token)] == ["y", "e", "s", ""]
    assert r.inbox.tokens("a")[-1] == EOS
    end = r.inbox.finished("a")
    assert (end.reason, end.text, end.stop_word, end.truncated, end.n_past) == (FinishReason.EOS, "", "", False, 6)
    assert r.ended == ["a"]
    r.expect_all_idle()


def test_all_events_of_a_step_are_one_delivery(rig: Rigs) -> None:
    r = rig()
    r.submit(*(job(str(i), f"prompt {i}", 4) for i in range(4)))
    for step in range(1, 5):
        r.step()
        assert r.inbox.deliveries == step
    assert not r.loop.busy


def test_no_token_is_wanted(rig: Rigs) -> None:
    r = rig()
    r.run(job("a", "a prompt", 0))
    end = r.inbox.finished("a")
    assert (end.reason, end.truncated, end.n_past) == (FinishReason.LIMIT, False, 8)
    assert r.inbox.tokens("a") == []
    assert (end.timings.prompt_n, end.timings.predicted_n) == (8, 0)


@pytest.mark.parametrize("n_predict", [1, 2, 7])
def test_the_token_limit_is_exact(rig: Rigs, n_predict: int) -> None:
    r = rig()
    r.run(job("a", "a prompt", n_predict))
    assert len(r.inbox.tokens("a")) == n_predict
    end = r.inbox.finished("a")
    assert (end.reason, end.truncated, end.timings.predicted_n) == (FinishReason.LIMIT, False, n_predict)
    r.expect_solo()


def test_the_context_is_the_limit_where_there_is_no_other(rig: Rigs) -> None:
    r = rig(n_ctx=64, n_seq_max=2)
    r.run(job("a", "a prompt", -1))
    end = r.inbox.finished("a")
    assert (end.reason, end.truncated) == (FinishReason.LIMIT, True)
    assert 8 + len(r.inbox.tokens("a")) == r.backend.n_ctx_seq
    assert end.n_past == r.backend.n_ctx_seq - 1, "the last token is not computed any more"
    r.expect_solo()


def test_the_longest_prompt_that_fits_gives_one_token(rig: Rigs) -> None:
    r = rig(n_ctx=64, n_seq_max=2)
    r.run(job("a", [97] * (r.backend.n_ctx_seq - 1), -1))
    assert len(r.inbox.tokens("a")) == 1
    assert r.inbox.finished("a").truncated


def test_end_of_text_counts_before_a_limit_reached_at_the_same_time(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": "yes"}), n_ctx=4 * 64)
    r.run(job("a", "ask", 4))
    assert r.inbox.finished("a").reason is FinishReason.EOS


def test_end_of_text_is_ignored_if_wanted(rig: Rigs) -> None:
    r = rig(script=eos_after(4))
    r.run(job("a", "ask", 6, sampling=SamplingParams(temperature=0, ignore_eos=True)), job("b", "ask", 6))
    assert len(r.inbox.tokens("a")) == 6
    assert EOS not in r.inbox.tokens("a")
    assert r.inbox.tokens("b")[-1] == EOS


def test_a_stop_string_ends_the_text_and_is_not_shown(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": "one two STOP three"}))
    r.run(job("a", "ask", 50, stop=("STOP", "never")))
    end = r.inbox.finished("a")
    assert (end.reason, end.stop_word) == (FinishReason.WORD, "STOP")
    assert r.inbox.text("a") == "one two "
    assert len(r.inbox.tokens("a")) == len("one two STOP"), "nothing is computed after it"
    r.expect_solo()


def test_the_beginning_of_a_stop_string_is_shown_at_the_end(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": "one ST"}))
    r.run(job("a", "ask", 50, stop=("STOP",)))
    end = r.inbox.finished("a")
    assert (end.reason, end.text) == (FinishReason.EOS, "ST")
    assert r.inbox.text("a") == "one ST"


def test_a_shorter_stop_string_counts_when_the_longer_one_does_not_come(rig: Rigs) -> None:
    """At the limit the text is held because of "STOP"; "T" in it ends it earlier, by that word."""
    r = rig(script=scripted({"ask": "one STx"}))
    r.run(job("a", "ask", 6, stop=("STOP", "T")))
    end = r.inbox.finished("a")
    assert (end.reason, end.stop_word, r.inbox.text("a")) == (FinishReason.WORD, "T", "one S")
    r.expect_solo()


def test_characters_of_several_tokens(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": "é🤖."}))
    r.run(job("a", "ask", 50))
    texts = [event.text for event in r.inbox.events["a"] if isinstance(event, Token)]
    assert texts == ["", "é", "", "", "", "🤖", ".", ""]
    r.run(job("b", "ask", 4))
    assert (r.inbox.text("b"), r.inbox.finished("b").text) == ("é\ufffd", "\ufffd")


def test_tokens_of_several_characters_and_of_half_ones(rig: Rigs) -> None:
    vocab = FakeVocab(pieces=["ab é".encode(), "🤖".encode()[:2], "🤖".encode()[2:] + b"!STOP!"])
    r = rig(vocab=vocab, script=scripted({"ask": [259, 260, 261, 97, 97]}))
    r.run(job("a", "ask", 50, stop=("STOP",)))
    assert r.inbox.text("a") == "ab é🤖!"
    assert r.inbox.finished("a").stop_word == "STOP"


def test_control_tokens_are_shown_only_if_they_are_preserved(rig: Rigs) -> None:
    r = rig(script=scripted({"ask": [97, CONTROL, 98]}))
    r.run(job("a", "ask", 9), job("b", "ask", 9, preserved_tokens=frozenset({CONTROL})))
    assert (r.inbox.text("a"), r.inbox.text("b")) == ("ab", "a<|control|>b")


def test_time_runs_out_at_the_end_of_a_line(rig: Rigs) -> None:
    """One second a token: the limit of 2.5 s has long passed when the line ends."""
    r = rig(script=scripted({"ask": "a long line\nand more"}), cost=Cost(step=1.0))
    r.run(job("a", "ask", 50, t_max_predict_ms=2500), job("b", "ask", 50, t_max_predict_ms=1_000_000))
    assert r.inbox.text("a") == "a long line\n"
    assert r.inbox.finished("a").reason is FinishReason.LIMIT
    assert r.inbox.text("b") == "a long line\nand more"


def test_timings_are_of_the_clock_and_add_up(rig: Rigs) -> None:
    r = rig(cost=Cost(step=0.5, prefill=0.25), n_batch=16)
    r.run(job("a", [97] * 32, 5))
    timings = r.inbox.finished("a").timings
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 32, 5)
    assert timings.prompt_ms == pytest.approx(2 * (500 + 16 * 250))
    assert timings.predicted_ms == pytest.approx(4 * 500)
    r.run(job("b", [97] * 33, 5))
    timings = r.inbox.finished("b").timings
    assert (timings.cache_n, timings.prompt_n) == (32, 1)


def test_progress_is_told_to_those_who_ask(rig: Rigs) -> None:
    r = rig(n_batch=10)
    r.run(job("a", [97] * 25, 2, return_progress=True), job("b", [98] * 25, 2))
    told = [event for event in r.inbox.events["a"] if isinstance(event, Progress)]
    assert told[0].processed == 0
    assert told[-1].processed == 25
    assert [event.processed for event in told] == sorted(event.processed for event in told)
    assert {(event.total, event.cached, event.slot) for event in told} == {(25, 0, 0)}
    assert not any(isinstance(event, Progress) for event in r.inbox.events["b"])


def test_the_sampler_has_seen_the_prompt_and_every_token(rig: Rigs) -> None:
    r = rig()
    r.run(job("a", "a prompt", 3))
    assert r.backend.samplers[0].said == [*b"a prompt", *r.inbox.tokens("a")]


def test_the_same_seed_gives_the_same_text_wherever_it_runs(rig: Rigs) -> None:
    hot = SamplingParams(temperature=1.5)
    r = rig()
    r.submit(job("a", "ask", 20, sampling=hot), seed=5)
    r.submit(job("b", "ask", 20, sampling=hot), seed=6)
    r.submit(job("c", "ask", 20, sampling=hot), seed=5)
    r.run()
    assert r.inbox.tokens("a") == r.inbox.tokens("c") != r.inbox.tokens("b")


# -- log probabilities -------------------------------------------------------------------------------------------------


def test_log_probabilities_come_with_each_token(rig: Rigs) -> None:
    r = rig()
    r.run(job("a", "ask", 3, sampling=SamplingParams(temperature=0, n_probs=4)), job("b", "ask", 3))
    tokens = [event for event in r.inbox.events["a"] if isinstance(event, Token)]
    assert len(tokens) == 3
    for event in tokens:
        assert event.logprobs is not None
        assert event.logprobs.chosen == event.logprobs.top[0]
        assert event.logprobs.chosen.id == event.token
        assert event.logprobs.chosen.piece == bytes([event.token])
        top = [prob.logprob for prob in event.logprobs.top]
        assert top == sorted(top, reverse=True)
        assert len(top) == 4
        assert -1.0 < top[0] < 0
    assert all(event.logprobs is None for event in r.inbox.events["b"] if isinstance(event, Token))


def test_log_probabilities_are_of_the_model_not_of_the_bias(rig: Rigs) -> None:
    """A bias of -100 forbids the likeliest token; its probability is reported all the same."""
    r = rig()
    r.run(job("a", "ask", 1))
    best = r.inbox.tokens("a")[0]
    banned = SamplingParams(temperature=0, n_probs=2, logit_bias=((best, -100.0),))
    r.run(job("b", "ask", 1, sampling=banned))
    event = next(event for event in r.inbox.events["b"] if isinstance(event, Token))
    assert event.logprobs is not None
    assert event.token != best
    assert event.logprobs.top[0].id == best
    assert event.logprobs.chosen.logprob < event.logprobs.top[0].logprob


def test_probabilities_after_sampling_are_those_that_the_chain_left(rig: Rigs) -> None:
    r = rig()
    after = SamplingParams(temperature=0, n_probs=4, post_sampling_probs=True)
    r.run(job("a", "ask", 1, sampling=after))
    event = next(event for event in r.inbox.events["a"] if isinstance(event, Token))
    assert event.logprobs is not None
    assert [(prob.id, prob.logprob) for prob in event.logprobs.top] == [(event.token, 0.0)]


# -- errors ------------------------------------------------------------------------------------------------------------


def nan_after(text: str) -> Callable[[Sequence[int]], bool]:
    wanted = text.encode()
    return lambda tokens: bytes(t for t in tokens if t < 256).startswith(wanted)


@pytest.mark.parametrize("n_probs", [0, 3])
def test_logits_that_are_no_numbers_fail_that_job_only(rig: Rigs, n_probs: int) -> None:
    r = rig(nan=nan_after("bad"))
    sampling = SamplingParams(temperature=0, n_probs=n_probs)
    r.run(job("good", "a prompt", 8), job("bad", "bad prompt", 8, sampling=sampling), job("other", "a prompt too", 8))
    assert isinstance(r.inbox.error("bad"), NativeError)
    r.expect_solo("good", "other")
    r.expect_all_idle()
    assert [*b"bad prompt"] not in [r.backend.held(seq) for seq in range(4)], "a damaged text is not kept"


def test_a_failed_decode_fails_the_jobs_of_that_batch_only(rig: Rigs) -> None:
    def fail(batch: Sequence[Chunk]) -> bool:
        return any(ord("!") in chunk.tokens for chunk in batch)

    r = rig(fail=fail, n_seq_max=2)
    r.submit(job("a", "a prompt", 8), job("bad", "a prompt of doom!", 8), job("later", "another", 8))
    r.run()
    assert isinstance(r.inbox.error("a"), NativeError)
    assert isinstance(r.inbox.error("bad"), NativeError)
    r.expect_solo("later")
    r.run(job("again", "a prompt", 8))
    r.expect_solo("later", "again")
    r.expect_all_idle()


def test_sampling_that_cannot_be_built_fails_that_job_only(rig: Rigs) -> None:
    r = rig()
    wrong = SamplingParams(temperature=0, logit_bias=((9999, 1.0),))
    r.run(job("wrong", "a prompt", 8, sampling=wrong), job("good", "a prompt", 8))
    assert isinstance(r.inbox.error("wrong"), RequestError)
    assert not any(isinstance(event, Token | Started) for event in r.inbox.events["wrong"])
    r.expect_solo("good")
    r.expect_all_idle()


def test_a_share_that_the_backend_refuses_fails_that_job_and_frees_its_sampler(
    rig: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = rig()
    prompt = "a prompt that is long enough to be shared"
    r.submit(job("first", prompt, 30))
    r.step(2)

    share = r.backend.share

    def refuse(src: int, dst: int, n: int) -> None:
        share(src, dst, n)
        raise NativeError("it failed half-way")

    monkeypatch.setattr(r.backend, "share", refuse)
    r.run(job("second", prompt + ", really", 5))
    assert isinstance(r.inbox.error("second"), NativeError)
    r.expect_solo("first")
    r.expect_all_idle()


def test_a_batch_that_was_begun_when_a_bug_struck_is_forgotten(rig: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig()
    add = r.backend.add

    def strike(seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        return add(seq, tokens, pos, logits=logits) if seq == 0 else 1 // 0

    r.submit(job("a", "a prompt", 8), job("b", "another", 8))
    with monkeypatch.context() as patch:
        patch.setattr(r.backend, "add", strike)
        with pytest.raises(ZeroDivisionError):
            r.loop.step()
    r.loop.abandon(NativeError("a bug"))
    r.run(job("next", "a prompt", 5))
    r.expect_solo("next")


def test_abandon_ends_every_job_with_the_error(rig: Rigs) -> None:
    r = rig(n_seq_max=2)
    r.submit(*(job(str(i), f"prompt {i}", 50) for i in range(4)))
    r.step(3)
    error = NativeError("the end")
    r.loop.abandon(error)
    assert [r.inbox.end(str(i)) for i in range(4)] == [Failed(str(i), error) for i in range(4)]
    assert not r.loop.busy
    r.expect_all_idle()
    r.run(job("next", "prompt 1", 5, sampling=GREEDY))
    r.expect_solo("next")
