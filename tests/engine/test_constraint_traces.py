"""Random traffic with grammars: among full contexts, lost slots, adapters and cancels, a job has the text it has alone.

As `test_traces` does it; the oracle masks the rows of the solo job with a matcher of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from minka.engine.memory import MemoryConfig
from minka.errors import NativeError
from minka.types import Cancelled, Constraint, Failed, Finished, FinishReason, Job, PromptLogprobs, Thinking, Token
from tests.engine.rig import Rig, cut_at_stop, drop_some, found_for_sure
from tests.engine.test_traces import backend, repositioned, run_group, traffic
from tests.engine.test_turns import SETS
from tests.fake_cells import kind_of
from tests.fake_constraints import FakeConstraints, FakeMatcher
from tests.fakes import FakeBackend

N_TRACES = 240
GROUPS = 8
PATTERNS = ("ab?c", "?" * 30, "x" * 45 + "?", "{name:?,kind:??}", "a??bc" * 12, "\n\nab cd?", "")


def bound(random: Random, jobs: list[Job]) -> list[Job]:
    """The jobs, most of them with a grammar, some with all that may come with it."""
    made = []
    for job in jobs:
        thinking = Thinking("<", ("ab",), is_open=True, budget=random.choice((-1, 0, 3, 9)))
        watched = random.random() < 0.3
        grammar = random.choice(PATTERNS)
        constraint = Constraint(grammar, thinking if watched else None) if grammar or watched else None
        made.append(
            replace(
                job,
                constraint=constraint if random.random() < 0.8 else None,
                sampling=replace(job.sampling, n_probs=random.choice((0, 0, 0, 2))),
                prompt_logprobs=random.choice((-1, -1, -1, 0, 2)),
                lora=random.choice(SETS) if random.random() < 0.3 else (),
            )
        )
    return made


@dataclass(frozen=True, slots=True)
class Alone:
    """What a job gives alone."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason


def alone(job: Job, backend: FakeBackend, *, shifts: bool) -> Alone:
    """The definition of a greedy job with a grammar: append the likeliest token that may come, until it is over."""
    matcher = FakeMatcher(job.constraint) if job.constraint is not None else None
    generated: list[int] = []
    context, n_ctx, vocab = list(job.prompt), backend.n_ctx_seq, backend.vocab
    while True:
        raw = vocab.detokenize(generated, special=False)
        text, word = cut_at_stop(raw.decode("utf-8", "replace"), job.stop)
        if generated and found_for_sure(raw, job.stop):
            return Alone(tuple(generated), text, FinishReason.WORD)
        whole = bool(generated) and (vocab.is_eog(generated[-1]) or (matcher is not None and matcher.finished))
        full = len(generated) == job.n_predict or (len(context) >= n_ctx and not shifts)
        if whole or full:
            reason = FinishReason.WORD if word else FinishReason.EOS if whole else FinishReason.LIMIT
            return Alone(tuple(generated), text, reason)
        if generated and len(context) >= n_ctx:
            drop_some(context, job, n_ctx, int(vocab.add_bos))
        row = backend._row([*context, kind_of(job.lora)] if job.lora else context)
        if matcher is not None:
            matcher.apply(row)
        generated.append(int(row.argmax()))
        if matcher is not None:
            matcher.accept(generated[-1])
        context.append(generated[-1])


def run_trace(seed: int) -> Rig:
    random = Random(f"constraints {seed}")
    made = backend(random)
    for n in range(2):
        made.load_adapter(Path(f"{n}.gguf"), 1.0)
    kept = MemoryConfig(random.choice((0, 300, 100_000)), step=random.choice((0, 7)), block=random.choice((4, 16)))
    shifts = made.can_shift and random.random() < 0.4
    deterministic = not shifts and random.random() < 0.2
    with Rig(made, kept=kept, shifts=shifts, deterministic=deterministic, constraints=FakeConstraints()) as rig:
        coming = traffic(random, made.n_ctx_seq, made.n_seq_max)
        coming = bound(random, repositioned(random, coming, made) if shifts else coming)
        cancelled: set[str] = set()
        for _ in range(5000):
            while coming and random.random() < 0.4:
                rig.submit(coming.pop())
            if rig.jobs and random.random() < 0.02:
                cancelled.add(random.choice(list(rig.jobs)))
                for id in cancelled:
                    rig.loop.cancel(id)
            rig.step()
            if not coming and not rig.loop.busy:
                break
        assert not rig.loop.busy, "some job never ends"
        rig.expect_all_idle()
    for job in rig.jobs.values():
        check_end(rig, job, cancelled, alone_with=(made, shifts))
    return rig


def check_end(rig: Rig, job: Job, cancelled: set[str], *, alone_with: tuple[FakeBackend, bool]) -> None:
    match rig.inbox.end(job.id):
        case Finished(reason=reason):
            got = Alone(tuple(rig.inbox.tokens(job.id)), rig.inbox.text(job.id), reason)
            made, shifts = alone_with
            assert got == alone(job, made, shifts=shifts), f"{job.id} among others differs from {job.id} alone"
            check_probabilities(rig, job)
        case Failed(error=error):
            assert isinstance(error, NativeError), error
            assert "scripted failure" in str(error) or "no usable logits" in str(error), error
        case Cancelled():
            assert job.id in cancelled


def check_probabilities(rig: Rig, job: Job) -> None:
    """Each token of the prompt but the first was told of, in order; and each generated one, if it was asked for."""
    events = rig.inbox.events[job.id]
    told = [event for event in events if isinstance(event, PromptLogprobs)]
    chosen = [entry.chosen.id for event in told for entry in event.entries]
    assert chosen == (list(job.prompt[1:]) if job.prompt_logprobs >= 0 else [])
    tokens = [event for event in events if isinstance(event, Token)]
    assert all((token.logprobs is not None) == bool(job.sampling.n_probs) for token in tokens)
    assert all(token.logprobs is None or token.logprobs.chosen.id == token.token for token in tokens)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_finished_job_has_the_text_it_has_alone(group: int) -> None:
    run_group(run_trace, group, N_TRACES // GROUPS)
