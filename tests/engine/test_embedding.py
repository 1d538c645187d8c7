"""Embeddings in the engine's thread: who is computed when, in how large batches, and how requests end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import pytest

from minka.engine.embed_plan import MAX_SKIPS, Ask
from minka.engine.embedding import UNMEASURED, Embedding
from minka.engine.engine import Engine, EngineConfig
from minka.engine.queue import AGING
from minka.errors import (
    DeadlineError,
    NativeError,
    NotSupportedError,
    QueueFullError,
    RequestError,
    UnavailableError,
)
from minka.types import Counters, EmbedJob, Priority, Token, Vectors
from tests.engine.rig import job as generation
from tests.engine.test_engine import Ends
from tests.fake_embedder import FakeEmbedder, vector_of
from tests.fakes import WAIT, Cost, FakeBackend, FakeClock

Backends = Callable[..., FakeBackend]


class Desk:
    """An embedding side under a test's control."""

    def __init__(self, *, max_gap: float = 0.2, **options: object) -> None:
        self.clock = FakeClock()
        self.backend = FakeEmbedder(clock=self.clock, **options)  # type: ignore[arg-type]
        self.embedding = Embedding(self.backend, max_gap=max_gap, clock=self.clock)
        self.counters = Counters()
        self._asked: list[tuple[EmbedJob, Future[tuple[Vectors, ...]]]] = []

    def ask(self, *lengths: int, **fields: object) -> Future[tuple[Vectors, ...]]:
        """Texts of these lengths, each of tokens of its own."""
        base = 1 + 100 * len(self._asked)
        return self.ask_for([[base + n] * length for n, length in enumerate(lengths)], **fields)

    def ask_for(self, texts: Sequence[Sequence[int]], **fields: object) -> Future[tuple[Vectors, ...]]:
        job = EmbedJob(tuple(map(tuple, texts)), **fields)  # type: ignore[arg-type]
        reply: Future[tuple[Vectors, ...]] = Future()
        self.embedding.put(Ask(job, reply, self.clock()))
        self._asked.append((job, reply))
        return reply

    def step(self, step_seconds: float = -1.0) -> list[int]:
        """One computation; the number of tokens of each part of it."""
        self.embedding.step(self.counters, step_seconds)
        return [len(part.tokens) for part in self.backend.batches[-1]]

    def run(self) -> None:
        """All that waits. Every answer must be right."""
        while self.embedding.step(self.counters):
            pass
        self.verify()

    def verify(self) -> None:
        self.backend.verify()
        assert len(self.embedding) == 0
        for job, reply in self._asked:
            assert reply.done()
            if not reply.cancelled() and reply.exception() is None:
                assert [own.tolist() for own in reply.result()] == [[vector_of(tokens)] for tokens in job.inputs]


def firsts(parts: Sequence[object]) -> list[int]:
    return [part.tokens[0] for part in parts]  # type: ignore[attr-defined]


# -- batches -----------------------------------------------------------------------------------------------------------


def test_texts_of_all_requests_go_into_one_batch() -> None:
    desk = Desk(n_batch=32)
    replies = [desk.ask(5), desk.ask(6, 7), desk.ask(4)]
    assert sorted(desk.step()) == [4, 5, 6, 7]
    assert all(reply.done() for reply in replies)
    desk.verify()
    assert desk.counters.prompt_tokens == 22
    assert desk.counters.decode_calls == 1


def test_a_request_is_answered_when_its_last_text_is() -> None:
    desk = Desk(n_batch=10)
    reply = desk.ask(6, 6)
    desk.step()
    assert not reply.done()
    desk.step()
    assert reply.done()
    desk.verify()


def test_a_text_over_the_batch_is_alone_if_it_cannot_be_split() -> None:
    desk = Desk(n_batch=10, n_input_max=50)
    desk.ask(40), desk.ask(3, 3)
    assert desk.step() == [40]
    assert desk.step() == [3, 3]
    desk.verify()


def test_a_long_text_does_not_overtake_for_ever_nor_wait_for_ever() -> None:
    """A text that does not fit beside others is the first of the next batch, since its request is the oldest."""
    desk = Desk(n_batch=10)
    desk.ask(6, 9)
    for _ in range(3):
        desk.ask(4)
    assert desk.step() == [6, 4]
    desk.ask(4)
    assert desk.step() == [9]
    desk.run()


def test_no_more_texts_than_sequences() -> None:
    desk = Desk(n_batch=32, n_seq_max=3)
    desk.ask(*[2] * 7)
    assert [len(desk.step()) for _ in range(3)] == [3, 3, 1]
    desk.verify()


def test_split_texts_share_the_batch_and_waste_nothing() -> None:
    desk = Desk(splits=True, n_batch=64, n_cells=512)
    desk.ask(100), desk.ask(100), desk.ask(3)
    assert sum(desk.step()) == 64
    assert len(desk.backend.batches[0]) == 3
    desk.run()
    assert sum(len(part.tokens) for batch in desk.backend.batches for part in batch) == 203


def test_a_text_that_needs_more_cells_gets_its_turn_and_the_cache_grows() -> None:
    desk = Desk(splits=True, n_batch=16, n_cells=64, n_input_max=200)
    short = desk.ask(40)
    desk.step()
    long = desk.ask(150)
    later = [desk.ask(20) for _ in range(4)]
    desk.run()
    assert desk.backend.n_cells >= 150
    assert all(reply.done() for reply in (short, long, *later))


def test_texts_that_do_not_fit_are_not_all_looked_at() -> None:
    """Of a request of thousands only so many are tried for what is left of a batch."""
    desk = Desk(n_batch=20)
    desk.ask(15, *[10] * (MAX_SKIPS + 1), 5)
    assert desk.step() == [15]
    desk.run()


# -- order -------------------------------------------------------------------------------------------------------------


def test_a_request_of_one_text_is_not_stuck_behind_one_of_many() -> None:
    desk = Desk(n_batch=20)
    many = desk.ask(*[10] * 50)
    one = desk.ask(10)
    desk.step()
    assert one.done()
    assert not many.done()
    desk.run()


def test_tenants_take_turns_whoever_has_more_requests() -> None:
    desk = Desk(n_batch=4)
    crowd = [desk.ask(2, 2, tenant="a") for _ in range(10)]
    single = desk.ask(2, 2, tenant="b")
    desk.step()
    desk.step()
    assert single.done()
    assert sum(reply.done() for reply in crowd) < 2
    desk.run()


def test_higher_priority_goes_first_and_waiting_raises_it() -> None:
    desk = Desk(n_batch=4)
    low = desk.ask(4, priority=Priority.LOW)
    high = desk.ask(4, priority=Priority.HIGH)
    desk.step()
    assert (high.done(), low.done()) == (True, False)
    desk.clock.now += 3 * AGING
    desk.ask(4, priority=Priority.HIGH)
    desk.step()
    assert low.done()
    desk.run()


def test_vectors_are_in_the_order_of_the_texts() -> None:
    desk = Desk(n_batch=12, n_input_max=64)
    reply = desk.ask(9, 1, 5, 30, 2, 9)
    desk.run()
    assert [own[0, 0] for own in reply.result()] == [9, 1, 5, 30, 2, 9]


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_whatever_comes_every_text_gets_its_own_vector(seed: int, splits: bool) -> None:
    """Random requests, priorities, tenants, cancels, budgets and failures."""
    choose = random.Random(seed)
    desk = Desk(splits=splits, n_batch=24, n_seq_max=4, n_cells=40, n_input_max=90, cost=1e-3)
    replies: list[Future[tuple[Vectors, ...]]] = []
    for _ in range(150):
        if choose.random() < 0.4:
            lengths = [choose.choice((1, 3, 8, 20, 70)) for _ in range(choose.choice((1, 1, 2, 9)))]
            priority, tenant = Priority(choose.choice((-1, 0, 1))), choose.choice("abc")
            replies.append(desk.ask(*lengths, priority=priority, tenant=tenant))
        if replies and choose.random() < 0.05:
            choose.choice(replies).cancel()
        desk.backend.fails_next = choose.random() < 0.02
        desk.embedding.step(desk.counters, choose.choice((-1.0, 0.0, 0.05, 0.4)))
    desk.backend.fails_next = False
    desk.run()


# -- beside streams ----------------------------------------------------------------------------------------------------


def test_beside_streams_a_batch_takes_what_is_left_of_the_longest_pause() -> None:
    desk = Desk(splits=True, n_batch=512, n_cells=4096, n_input_max=4096, cost=1e-3, max_gap=0.2)
    desk.ask(3000)
    assert sum(desk.step(0.01)) == UNMEASURED
    for step_seconds, expected in ((0.01, 190), (0.1, 100), (0.2, 20), (5.0, 20)):
        began = desk.clock.now
        assert sum(desk.step(step_seconds)) == pytest.approx(expected, abs=2)
        assert desk.clock.now - began <= max(0.2 - step_seconds, 0.02) + 0.002
    assert sum(desk.step(-1.0)) == 512
    desk.run()


def test_a_stream_runs_on_beside_embeddings(fake_backend: Backends) -> None:
    backend, embedder = fake_backend(), FakeEmbedder(n_batch=8)
    backend.gate.close()
    engine = Engine(backend, EngineConfig(check=True), embedder=embedder)
    inbox = Ends()
    engine.submit(generation("stream", "abc", 12), inbox)
    backend.gate.wait_held()
    reply = engine.embed(EmbedJob(tuple((5, 6, 7, 8) for _ in range(10))))
    backend.gate.open()
    inbox.wait(1)
    assert len(reply.result(WAIT)) == 10
    assert sum(isinstance(event, Token) for event in inbox.events["stream"]) == 12
    engine.close()
    assert embedder.closed


@pytest.mark.parametrize("lora", [False, True])
def test_no_pause_of_a_stream_is_longer_beside_prompts_and_embeddings_together(
    fake_backend: Backends, lora: bool
) -> None:
    """A prompt that comes while texts are embedded finds that a part of the pause is gone already."""
    backend = fake_backend(cost=Cost(0.004, 0.001, 0.001), n_ctx=8192, n_batch=512)
    clock = backend.clock
    embedder = FakeEmbedder(splits=True, n_batch=512, n_cells=8192, n_input_max=8192, cost=1e-3, clock=clock)
    engine = Engine(backend, EngineConfig(max_gap_ms=200), embedder=embedder, clock=clock)
    inbox = Ends()
    inbox._clock = clock
    engine.load_adapter(Path("0.gguf"), 1.0).result(WAIT)
    engine.submit(generation("the first is measured", [99] * 500, 5), inbox)
    inbox.wait()
    backend.gate.close()
    engine.submit(generation("stream", "abc", 150), inbox)
    backend.gate.wait_held()
    replies = [engine.embed(EmbedJob(((5,) * 3000,))) for _ in range(2)]
    backend.gate.let(20)
    backend.gate.wait_held()
    for n in range(3):
        sets = ((0, 1.0),) if lora and n else ()
        engine.submit(generation(f"{n}", [n + 1] * 1500, 30, lora=sets), inbox)
    backend.gate.open()
    inbox.wait(4)
    assert all(reply.result(WAIT) for reply in replies)
    engine.close()
    gaps = [after - before for before, after in pairwise(inbox.times["stream"])]
    assert max(gaps[10:]) <= 0.2 + 0.01
    assert max(gaps[10:]) > 0.15, "the pause is used"


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [False, True])
def test_a_request_that_is_taken_back_is_computed_no_further(splits: bool) -> None:
    desk = Desk(splits=splits, n_batch=8, n_cells=256)
    gone, other = desk.ask(*[20] * 5), desk.ask(4)
    desk.step()
    assert gone.cancel()
    desk.run()
    assert other.done()
    n_tokens = sum(len(part.tokens) for batch in desk.backend.batches for part in batch)
    assert n_tokens <= 20 + 4 + 8


def test_time_that_is_over_ends_a_request() -> None:
    desk = Desk(n_batch=8)
    late, other = desk.ask(8, 8, timeout_ms=50), desk.ask(8)
    desk.step()
    desk.clock.now += 0.06
    desk.run()
    assert isinstance(late.exception(), DeadlineError)
    assert other.exception() is None


def test_a_failure_ends_who_took_part_and_others_begin_again() -> None:
    desk = Desk(splits=True, n_batch=16, n_cells=256, n_seq_max=2)
    first, second = desk.ask(100, priority=Priority.LOW), desk.ask(30)
    desk.step()
    desk.step()
    desk.step()
    desk.ask(2, priority=Priority.HIGH), desk.ask(2, priority=Priority.HIGH)
    desk.backend.fails_next = True
    desk.embedding.step(desk.counters)
    desk.run()
    assert second.done()
    assert first.done()
    failed = [reply for reply in (first, second) if reply.exception() is not None]
    assert all(isinstance(reply.exception(), NativeError) for reply in failed)


def test_texts_that_cannot_be_are_refused_at_once(fake_backend: Backends) -> None:
    backend = fake_backend()
    engine = Engine(backend, embedder=FakeEmbedder(n_input_max=20))
    n_vocab = backend.vocab.n_tokens
    for inputs, message in (
        ((), "no text"),
        (((1,), ()), "text 1 has no tokens"),
        (((1,) * 21,), "text 0 is too large .* 21 tokens, at most 20 "),
        (((n_vocab,),), "outside the vocabulary"),
        (((-1,),), "outside the vocabulary"),
    ):
        with pytest.raises(RequestError, match=message):
            engine.embed(EmbedJob(inputs))
    assert engine.n_open == 0
    engine.close()


def test_an_engine_without_an_embedder_says_so(fake_backend: Backends) -> None:
    engine = Engine(fake_backend())
    with pytest.raises(NotSupportedError, match="no embeddings"):
        engine.embed(EmbedJob(((1,),)))
    engine.close()


def test_the_queue_has_a_bound_and_answers_free_a_place(fake_backend: Backends) -> None:
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert released.wait(WAIT)

    engine = Engine(fake_backend(n_seq_max=1), EngineConfig(queue_size=2), embedder=FakeEmbedder(hook=hold))
    job = EmbedJob(((1, 2),))
    replies = [engine.embed(job)]
    assert held.wait(WAIT)
    replies += [engine.embed(job), engine.embed(job)]
    with pytest.raises(QueueFullError):
        engine.embed(job)
    assert replies[-1].cancel()
    replies.append(engine.embed(job))
    released.set()
    assert all(reply.cancelled() or reply.result(WAIT) for reply in replies)
    assert engine.n_open == 0
    engine.close()


def test_closing_ends_what_waits(fake_backend: Backends) -> None:
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert released.wait(WAIT)

    engine = Engine(fake_backend(), embedder=FakeEmbedder(n_batch=2, hook=hold))
    reply = engine.embed(EmbedJob(((1, 2), (3, 4))))
    assert held.wait(WAIT)
    closing = threading.Thread(target=engine.close)
    closing.start()
    released.set()
    closing.join(WAIT)
    assert reply.exception(WAIT) is None or isinstance(reply.exception(), UnavailableError)
    with pytest.raises(UnavailableError):
        engine.embed(EmbedJob(((1,),)))


def test_a_bug_in_the_backend_ends_requests_and_not_the_engine(fake_backend: Backends) -> None:
    fails = [True]

    def hook() -> None:
        if fails.pop():
            raise ZeroDivisionError

    engine = Engine(fake_backend(), embedder=FakeEmbedder(hook=hook))
    with pytest.raises(NativeError, match="internal error"):
        engine.embed(EmbedJob(((1,),))).result(WAIT)
    fails.append(False)
    assert engine.embed(EmbedJob(((1,),))).result(WAIT)[0].shape == (1, 4)
    engine.close()


def test_embeddings_are_got_ready_at_the_start_if_asked_for(fake_backend: Backends) -> None:
    for embeds in (False, True):
        embedder = FakeEmbedder()
        engine = Engine(fake_backend(), EngineConfig(embeds=embeds), embedder=embedder)
        engine.view().result(WAIT)
        assert embedder.warm is embeds
        engine.close()
