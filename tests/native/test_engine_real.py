"""The engine on libllama: among others a job generates what it generates alone.

The oracle is a fresh context that computes prompt and text from nothing: at each step the generated token must be the
likeliest one (or as likely but for rounding). So a wrong cell anywhere is seen, and a tie is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.loop import Loop
from minka.engine.outbox import Outbox
from minka.engine.slot import Run
from minka.errors import NativeError
from minka.native.context import Context
from minka.native.model import Model
from minka.params import ContextParams, SamplingParams
from minka.types import Finished, Job, Priority, Token
from tests.engine.rig import Recorder, job
from tests.engine.test_engine import Ends
from tests.native.conftest import ON_CPU

Contexts = Callable[..., Context]
MODELS = ["llama", "swa", "recurrent", "hybrid"]
ROUNDING = 0.02


def expect_solo(fresh: Context, one: Job, tokens: Sequence[int]) -> None:
    """Every token is the likeliest one after those before it."""
    fresh.cut(0, 0)
    row = fresh.add(0, one.prompt, 0, logits=1)
    fresh.decode()
    for at, (token, following) in enumerate(pairwise([*tokens, -1])):
        logits = fresh.logits(row)
        assert logits[token] >= logits.max() - ROUNDING, f"{one.id}: token {at} is not what it would be alone"
        if following >= 0:
            row = fresh.add(0, [token], fresh.length(0), logits=1)
            fresh.decode()


def prompts(seed: int, n: int, length: int) -> list[list[int]]:
    """Prompts of which all share a third of their tokens and some two thirds."""
    choose = random.Random(seed)
    stem = [choose.randrange(260, 500) for _ in range(length)]
    return [
        stem[: choose.choice((length // 3, 2 * length // 3))] + [choose.randrange(260, 500) for _ in range(9)]
        for _ in range(n)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_job_among_eight_gives_what_it_gives_alone(context: Contexts, unified: bool, name: str) -> None:
    backend = context(name, n_ctx=2048, parallel=8, kv_unified=unified, n_batch=64)
    jobs = [job(str(i), prompt, 16) for i, prompt in enumerate(prompts(1, 16, 90))]
    inbox = Ends()
    engine = Engine(backend, EngineConfig(check=True))
    for one in jobs:
        engine.submit(one, inbox)
    inbox.wait(len(jobs))
    engine.close()
    fresh = context(name, n_ctx=256, parallel=1)
    for one in jobs:
        assert isinstance(inbox.end(one.id), Finished)
        expect_solo(fresh, one, inbox.tokens(one.id))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_the_others(context: Contexts, unified: bool, name: str, seed: int) -> None:
    """Too little room, priorities, cancels, small batches, slots asked for: what finishes is right."""
    choose = random.Random(f"{name} {seed}")
    backend = context(name, n_ctx=256 if unified else 768, parallel=3, kv_unified=unified, n_batch=24, n_ubatch=16)
    inbox = Recorder()
    loop = Loop(backend, Outbox(lambda _id: None), max_gap=0.2)
    coming = [
        job(
            f"{i}", prompt, choose.choice((1, 12, 40)), id_slot=choose.choice((-1, -1, 0)), priority=Priority(i % 3 - 1)
        )
        for i, prompt in enumerate(prompts(seed, 10, 110))
    ]
    jobs, cancelled = list(coming), set[str]()
    while coming or loop.busy:
        if coming and choose.random() < 0.3:
            loop.queue.put(Run(coming.pop(), inbox, 0, 0.0))
        if choose.random() < 0.01:
            cancelled.add(choose.choice(jobs).id)
            for id in cancelled:
                loop.cancel(id)
        loop.step()
        loop.check()
    fresh = context(name, n_ctx=256, parallel=1)
    finished = [one for one in jobs if isinstance(inbox.events.get(one.id, [None])[-1], Finished)]
    assert {one.id for one in jobs} - {one.id for one in finished} <= cancelled
    for one in finished:
        expect_solo(fresh, one, inbox.tokens(one.id))


def test_a_seed_gives_the_same_text_alone_and_among_others(context: Contexts, unified: bool) -> None:
    hot = SamplingParams(temperature=1.0, seed=11)
    one, *others = (job(str(i), prompt, 20, sampling=hot) for i, prompt in enumerate(prompts(4, 6, 60)))

    def text(*jobs: Job) -> list[int]:
        inbox = Ends()
        engine = Engine(context(n_ctx=1024, kv_unified=unified), EngineConfig(check=True))
        for each in jobs:
            engine.submit(each, inbox)
        inbox.wait(len(jobs))
        engine.close()
        return inbox.tokens("0")

    assert text(one) == text(one, *others)


def test_a_damaged_model_fails_its_jobs_and_not_the_process(context: Contexts) -> None:
    engine = Engine(context("nan"), EngineConfig(check=True))
    for sampling in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(n_probs=3)):
        with pytest.raises(NativeError, match="no usable logits"):
            list(engine.stream(job("a", [1, 300, 301], 5, sampling=sampling)))
    engine.close()


def test_log_probabilities_of_the_real_thing(context: Contexts) -> None:
    engine = Engine(context(), EngineConfig(check=True))
    for post in (False, True):
        sampling = SamplingParams(temperature=1.0, n_probs=5, post_sampling_probs=post)
        events = list(engine.stream(job("a", [1, 300, 301], 10, sampling=sampling)))
        tokens = [event for event in events if isinstance(event, Token)]
        assert len(tokens) == 10
        for event in tokens:
            assert event.logprobs is not None
            assert event.logprobs.chosen.id == event.token
            assert all(prob.logprob <= 1e-6 for prob in event.logprobs.top)
            assert 1 <= len(event.logprobs.top) <= 5
    engine.close()


@pytest.mark.model
def test_the_demo_model_knows_its_capitals(demo_model: Path) -> None:
    params = ContextParams(n_ctx=1024, warmup=False)
    with closing(Model.load(demo_model, ON_CPU)) as model:
        engine = Engine(Context(model, params), EngineConfig(check=True))
        start = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        questions = [f"What is the capital of {country}?" for country in ("France", "Italy", "Germany")]
        inbox = Ends()
        for question in questions:
            prompt = model.vocab.tokenize(start.format(question), add_special=True, parse_special=True)
            engine.submit(job(question, prompt, 24, stop=("\n",)), inbox)
        inbox.wait(len(questions))
        engine.close()
    answers = [inbox.text(question) for question in questions]
    assert ["Paris" in answers[0], "Rome" in answers[1], "Berlin" in answers[2]] == [True] * 3, answers
