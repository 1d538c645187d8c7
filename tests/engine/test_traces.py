"""Random traffic: whatever meets whatever, a job that finishes has the text it would have alone.

Each trace is a seed: random jobs with shared beginnings, on a random small backend, with random cancels and faults. A
failure names its seed; `run_trace(seed)` shows it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from minka.engine.memory import MemoryConfig
from minka.errors import NativeError
from minka.types import Cancelled, Failed, Finished, Job, Priority
from tests.engine.rig import Rig, job
from tests.fakes import Chunk, FakeBackend, FakeVocab, digest, eos_after, hashed

N_TRACES = 360
GROUPS = 12
ALPHABET = (*b"abcde fgh\n", 259, 260, 261)
PIECES = ("é".encode()[:1], "é".encode()[1:], b"ab cd")


def traffic(random: random.Random, n_ctx_seq: int, n_seq: int) -> list[Job]:
    """Jobs whose prompts are beginnings of few texts, with tails."""
    texts = [[random.choice(ALPHABET) for _ in range(n_ctx_seq)] for _ in range(3)]
    texts.append(texts[0][: n_ctx_seq // 3] + texts[1][n_ctx_seq // 3 :])
    jobs = []
    for i in range(random.randint(3, 14)):
        head = random.choice(texts)[: random.randint(1, n_ctx_seq * 2 // 3)]
        tail = [random.choice(ALPHABET) for _ in range(random.choice((0, 0, 1, 5)))]
        jobs.append(
            job(
                f"job {i}",
                [*head, *tail],
                random.choice((0, 1, 3, 8, 20, -1)),
                stop=tuple(random.sample(("ab", "abc", "c", "é", "\n\n", "d e"), random.choice((0, 0, 1, 3)))),
                priority=random.choice((Priority.LOW, Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
                id_slot=random.choice((-1, -1, -1, -1, random.randrange(n_seq))),
                cache_prompt=random.random() < 0.9,
                cache_salt=random.choice(("", "", "", "salt")),
                return_progress=random.random() < 0.2,
            )
        )
    return jobs


def backend(random: random.Random) -> FakeBackend:
    n_seq = random.randint(1, 5)
    unified = random.random() < 0.6
    per_seq = random.choice((24, 48, 96))
    salt = random.randrange(2**30)
    script = hashed(ALPHABET, salt=salt)
    faulty = random.random() < 0.3

    def nan(tokens: Sequence[int]) -> bool:
        return faulty and digest(tokens, salt + 1) % 50 == 0

    def fail(batch: Sequence[Chunk]) -> bool:
        return faulty and digest([t for chunk in batch for t in chunk.tokens], salt + 2) % 60 == 0

    return FakeBackend(
        eos_after(per_seq // 2, script) if random.random() < 0.3 else script,
        unified=unified,
        n_seq_max=n_seq,
        n_ctx=random.choice((per_seq, per_seq + 8, per_seq * n_seq)) if unified else per_seq * n_seq,
        n_batch=max(n_seq, random.choice((5, 16, 64))),
        memory=random.choice(("plain", "plain", "recurrent", "window")),
        window=random.choice((4, 12)),
        vocab=FakeVocab(PIECES),
        nan=nan,
        fail=fail,
    )


def repositioned(random: random.Random, jobs: list[Job], backend: FakeBackend) -> list[Job]:
    """The jobs with what they want of a full context, and some that take over moved text."""
    limit = 3 * backend.n_ctx_seq
    return [
        replace(
            job,
            n_predict=job.n_predict if job.n_predict >= 0 else limit,
            n_keep=random.choice((-1, 0, 5, 100)),
            n_discard=random.choice((0, 0, 1, 7, 100)),
            n_cache_reuse=random.choice((0, 1, 3)) if backend.can_splice else 0,
        )
        for job in jobs
    ]


def run_trace(seed: int) -> Rig:
    random_, positions = random.Random(seed), random.Random(f"positions {seed}")
    kept = MemoryConfig(
        random_.choice((0, 0, 300, 100_000)), step=random_.choice((0, 7)), block=random_.choice((4, 16))
    )
    made = backend(random_)
    if made.kv_unified and positions.random() < 0.5:  # as --kv-unified-per-slot does it
        made.n_ctx_seq = max(24, made.n_ctx // made.n_seq_max)
    shifts = made.can_shift and positions.random() < 0.4
    deterministic = not shifts and positions.random() < 0.2
    with Rig(made, kept=kept, shifts=shifts, deterministic=deterministic) as rig:
        coming, cancelled = traffic(random_, rig.backend.n_ctx_seq, rig.backend.n_seq_max), set[str]()
        if shifts or (not deterministic and positions.random() < 0.3):
            coming = repositioned(positions, coming, made)
        for _ in range(5000):
            while coming and random_.random() < 0.4:
                rig.submit(coming.pop())
            if rig.jobs and random_.random() < 0.02:
                cancelled.add(random_.choice(list(rig.jobs)))
                for id in cancelled:
                    rig.loop.cancel(id)
            rig.step()
            assert rig.loop.view().used_cells == rig.backend.used
            if not coming and not rig.loop.busy:
                break
        assert not rig.loop.busy, "some job never ends"
        rig.expect_all_idle()
    check_ends(rig, cancelled)
    return rig


def check_ends(rig: Rig, cancelled: set[str]) -> None:
    for id in rig.jobs:
        match rig.inbox.end(id):
            case Finished():
                rig.expect_solo(id)
            case Failed(error=error):
                assert isinstance(error, NativeError)
                assert "scripted failure" in str(error) or "no usable logits" in str(error), error
            case Cancelled():
                assert id in cancelled


def run_group(run: Callable[[int], object], group: int, n_traces: int) -> None:
    """Run so many traces; a failure names its seed."""
    for seed in range(group * n_traces, (group + 1) * n_traces):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"trace {seed}: run_trace({seed}) shows it again")
            raise


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_finished_job_has_the_text_it_has_alone(group: int) -> None:
    run_group(run_trace, group, N_TRACES // GROUPS)


def count(rigs: Sequence[Rig], what: Callable[[Rig], int]) -> int:
    return sum(what(rig) for rig in rigs)


def test_the_traces_reach_what_they_are_for() -> None:
    """A trace that never shares, preempts, waits or fails would prove little."""
    rigs = [run_trace(seed) for seed in range(80)]
    ends = [rig.inbox.end(id) for rig in rigs for id in rig.jobs]
    assert count(rigs, lambda rig: rig.loop.counters.preempted) > 10
    assert count(rigs, lambda rig: rig.loop.counters.cached_tokens) > 1000
    assert count(rigs, lambda rig: rig.loop.counters.recalled_tokens) > 100
    assert count(rigs, lambda rig: rig.backend.n_shifts) > 50
    assert sum(isinstance(end, Finished) and end.truncated for end in ends) > 10
    assert sum(isinstance(end, Finished) and bool(end.stop_word) for end in ends) > 10
    assert sum(isinstance(end, Failed) for end in ends) > 5
    assert sum(isinstance(end, Cancelled) for end in ends) > 5
