"""The engine as its users see it, on a thread of its own. Tests hold that thread in a decode instead of sleeping."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Barrier, Thread

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.inbox import ThreadInbox
from minka.engine.memory import MemoryConfig
from minka.errors import ContextSizeError, NativeError, QueueFullError, RequestError, UnavailableError, UsageError
from minka.types import Cancelled, End, EngineView, Event, Failed, Finished, Job, Started, Token
from tests.engine.rig import Recorder, job, solo
from tests.fakes import WAIT, FakeBackend, scripted

CHECKED = EngineConfig(check=True)
Engines = Callable[..., tuple[Engine, FakeBackend]]


@pytest.fixture
def engine(fake_backend: Callable[..., FakeBackend]) -> Iterator[Engines]:
    """Makes engines that check their laws after every step; closes them at the end."""
    engines: list[tuple[Engine, FakeBackend]] = []

    def make(config: EngineConfig = CHECKED, **options: object) -> tuple[Engine, FakeBackend]:
        backend = fake_backend(**options)
        engines.append((Engine(backend, config), backend))
        return engines[-1]

    yield make
    for made, backend in engines:
        backend.gate.open()
        made.close()


class Ends(Recorder):
    """A recorder whose job ends can be waited for, from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: SimpleQueue[End] = SimpleQueue()

    def deliver(self, events: Sequence[Event]) -> None:
        super().deliver(events)
        for event in events:
            if isinstance(event, End):
                self._ends.put(event)

    def wait(self, n: int = 1) -> list[End]:
        """The next `n` ends."""
        try:
            return [self._ends.get(timeout=WAIT) for _ in range(n)]
        except Empty:
            raise AssertionError(f"fewer than {n} more jobs ended") from None


def look(engine: Engine) -> EngineView:
    return engine.view().result(WAIT)


def test_one_job(engine: Engines) -> None:
    e, _ = engine(script=scripted({"ask": "yes"}))
    events = list(e.stream(job("a", "ask", 10)))
    assert isinstance(events[0], Started)
    assert "".join(event.text for event in events if isinstance(event, Token | Finished)) == "yes"
    assert isinstance(events[-1], Finished)
    assert e.n_open == 0


def test_many_jobs_from_many_threads(engine: Engines) -> None:
    e, backend = engine(n_seq_max=4, n_ctx=4 * 256, n_batch=64)
    jobs = [job(f"{i}", f"You are helper number {i % 5} of many. Question {i}", 12) for i in range(64)]
    inboxes = [Ends() for _ in range(8)]
    barrier = Barrier(8)

    def client(n: int) -> None:
        barrier.wait(WAIT)
        for mine in jobs[n::8]:
            e.submit(mine, inboxes[n])
        inboxes[n].wait(8)

    threads = [Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for i, one in enumerate(jobs):
        expected = solo(one, backend.script, backend.vocab, backend.n_ctx_seq)
        assert tuple(inboxes[i % 8].tokens(one.id)) == expected.tokens
        assert isinstance(inboxes[i % 8].end(one.id), Finished)
    assert e.n_open == 0
    assert max(len(batch) for batch in backend.decodes) == 4, "they ran together"


def test_the_queue_is_bounded_exactly(engine: Engines) -> None:
    e, backend = engine(EngineConfig(queue_size=3, check=True), n_seq_max=2)
    inbox = Ends()
    backend.gate.close()
    for i in range(5):
        e.submit(job(f"{i}", f"prompt {i}", 3), inbox)
    assert e.n_open == 5
    with pytest.raises(QueueFullError, match="3 requests wait"):
        e.submit(job("5", "prompt 5", 3), inbox)
    backend.gate.open()
    inbox.wait(5)
    e.submit(job("5", "prompt 5", 3), inbox)
    assert isinstance(inbox.wait()[0], Finished)


def test_a_refused_job_leaves_no_trace(engine: Engines) -> None:
    e, backend = engine(EngineConfig(queue_size=0, check=True), n_seq_max=1)
    inbox = Ends()
    backend.gate.close()
    e.submit(job("a", "ask", 3), inbox)
    with pytest.raises(QueueFullError):
        e.submit(job("b", "ask", 3), inbox)
    backend.gate.open()
    inbox.wait()
    e.submit(job("b", "ask", 3), inbox)
    inbox.wait()
    assert list(inbox.events) == ["a", "b"]


def test_an_id_is_taken_until_its_job_ends(engine: Engines) -> None:
    e, backend = engine()
    inbox = Ends()
    backend.gate.close()
    e.submit(job("same", "ask", 3), inbox)
    with pytest.raises(RequestError, match="same is running already"):
        e.submit(job("same", "else", 3), inbox)
    backend.gate.open()
    inbox.wait()
    other = Ends()
    e.submit(job("same", "else", 3), other)
    assert isinstance(other.wait()[0], Finished)


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (job("a", []), "prompt"),
        (job("a", [97, 259]), "prompt"),
        (job("a", [97, -1]), "prompt"),
        (job("a", [97], id_slot=4), "id_slot"),
        (job("a", [97], id_slot=-2), "id_slot"),
    ],
)
def test_a_job_that_can_never_run_is_refused_at_once(engine: Engines, bad: Job, param: str) -> None:
    e, _ = engine()
    with pytest.raises(RequestError) as raised:
        e.submit(bad, Ends())
    assert raised.value.param == param
    assert e.n_open == 0


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(engine: Engines) -> None:
    e, _ = engine(n_ctx=64, unified=True)
    with pytest.raises(ContextSizeError) as raised:
        e.submit(job("a", [97] * 64), Ends())
    assert raised.value.extra() == {"n_prompt_tokens": 64, "n_ctx": 64}
    assert len([*e.stream(job("b", [97] * 63, -1))]) == 3


def test_parameters_that_no_sampler_can_be_built_from_raise_in_stream(engine: Engines) -> None:
    e, _ = engine()
    wrong = job("a", "ask", 3).sampling.__class__(logit_bias=((9999, 1.0),))
    with pytest.raises(RequestError, match="9999"):
        list(e.stream(job("a", "ask", 3, sampling=wrong)))
    assert e.n_open == 0


def test_cancel_ends_a_running_and_a_queued_job(engine: Engines) -> None:
    e, backend = engine(n_seq_max=1)
    inbox = Ends()
    backend.gate.let(3)
    e.submit(job("running", "ask", 1000), inbox)
    e.submit(job("queued", "else", 1000), inbox)
    backend.gate.wait_held()
    e.cancel("running")
    e.cancel("queued")
    e.cancel("unknown")
    backend.gate.open()
    assert {type(end) for end in inbox.wait(2)} == {Cancelled}
    assert not any(slot.busy for slot in look(e).slots)
    assert e.n_open == 0
    # Held in its fourth decode: that step still ends, and none comes after it.
    assert len(inbox.tokens("running")) == 4


def test_a_stream_that_is_left_early_is_cancelled(engine: Engines) -> None:
    e, backend = engine()
    backend.gate.let(3)
    events = e.stream(job("a", "ask", -1))
    assert isinstance(next(events), Started)
    assert isinstance(next(events), Token)
    assert isinstance(events, Generator)
    events.close()
    backend.gate.open()
    view = look(e)
    assert not any(slot.busy for slot in view.slots)
    assert e.n_open == 0


def test_a_stream_that_was_read_to_its_end_cancels_nothing(engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel that came late would hit the next job of the same id."""
    e, _ = engine(nan=lambda tokens: ord("!") in tokens)
    cancelled: list[str] = []
    monkeypatch.setattr(e, "cancel", cancelled.append)
    assert isinstance(list(e.stream(job("same", "ask", 2)))[-1], Finished)
    with pytest.raises(NativeError):
        list(e.stream(job("same", "ask!", 2)))
    assert cancelled == []


def test_an_error_of_the_job_is_raised_by_its_stream(engine: Engines) -> None:
    e, _ = engine(nan=lambda tokens: len(tokens) > 5)
    events = e.stream(job("a", "ask", 50))
    with pytest.raises(NativeError):
        list(events)
    assert e.n_open == 0


def test_close_fails_what_runs_and_what_waits(engine: Engines) -> None:
    e, backend = engine(n_seq_max=1)
    inbox = Ends()
    backend.gate.let(2)
    e.submit(job("running", "ask", -1), inbox)
    e.submit(job("waiting", "ask", -1), inbox)
    backend.gate.wait_held()
    closing_thread = Thread(target=e.close)
    closing_thread.start()
    backend.gate.open()
    ends = inbox.wait(2)
    closing_thread.join(WAIT)
    assert {end.id for end in ends} == {"running", "waiting"}
    for end in ends:
        assert isinstance(end, Failed)
        assert isinstance(end.error, UnavailableError)
    assert backend.closed
    assert e.n_open == 0


def test_a_closed_engine_takes_no_jobs(engine: Engines) -> None:
    e, backend = engine()
    e.close()
    e.close()
    assert backend.closed
    with pytest.raises(UnavailableError):
        e.submit(job("a", "ask"), Ends())
    with pytest.raises(UnavailableError):
        next(e.stream(job("a", "ask")))
    with pytest.raises(UnavailableError):
        look(e)
    e.cancel("a")


def test_submits_that_race_with_close_all_get_an_answer(engine: Engines) -> None:
    """Each is either refused with an exception or gets an end."""
    e, _ = engine()
    inbox, refused = Ends(), SimpleQueue[str]()
    barrier = Barrier(5)

    def client(n: int) -> None:
        barrier.wait(WAIT)
        for i in range(30):
            try:
                e.submit(job(f"{n} {i}", "ask", 3), inbox)
            except UnavailableError:
                refused.put(f"{n} {i}")

    threads = [Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait(WAIT)
    e.close()
    for thread in threads:
        thread.join(WAIT)
    assert sum(isinstance(events[-1], End) for events in inbox.events.values()) == len(inbox.events)
    assert len(inbox.events) + refused.qsize() == 4 * 30
    assert e.n_open == 0


def test_the_view_is_of_between_two_steps(engine: Engines) -> None:
    e, backend = engine(n_seq_max=2)
    inbox = Ends()
    assert look(e).n_queued == 0
    backend.gate.let(2)
    for i in range(3):
        e.submit(job(f"{i}", "ask", 3), inbox)
    backend.gate.wait_held()
    view = e.view()
    assert not view.done()
    backend.gate.open()
    seen = view.result(WAIT)
    assert seen.counters.decode_calls >= 3
    inbox.wait(3)
    last = look(e)
    assert not any(slot.busy for slot in last.slots)
    assert last.counters.predicted_tokens == 9
    assert seen.counters.predicted_tokens <= 9, "a copy: it does not change any more"


def test_a_view_that_nobody_waits_for_any_more(engine: Engines) -> None:
    e, backend = engine()
    backend.gate.close()
    e.submit(job("a", "ask", 3), Ends())
    backend.gate.wait_held()
    assert e.view().cancel()
    backend.gate.open()
    assert look(e).n_queued == 0


def test_a_bug_in_a_step_ends_the_running_jobs_and_not_the_engine(
    engine: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    e, backend = engine()
    inbox = Ends()
    with monkeypatch.context() as patch:
        patch.setattr(backend.vocab, "piece", lambda *_a, **_k: 1 / 0)
        e.submit(job("a", "ask", 3), inbox)
        (end,) = inbox.wait()
    assert isinstance(end, Failed)
    assert isinstance(end.error, NativeError)
    assert "ZeroDivisionError" in caplog.text
    assert isinstance(list(e.stream(job("b", "ask", 3)))[-1], Finished)


def test_a_backend_that_cannot_even_be_emptied_stops_the_engine_and_nobody_waits_for_ever(
    engine: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    e, backend = engine(fail=lambda _batch: True)
    inbox = Ends()

    def refuse(seq: int, n: int) -> None:
        raise NativeError("the backend is broken")

    backend.gate.close()
    e.submit(job("a", "ask", 3), inbox)
    backend.gate.wait_held()
    e.submit(job("b", "ask", 3), inbox)
    e.submit(job("c", "ask", 3), inbox)
    view = e.view()
    monkeypatch.setattr(backend, "cut", refuse)
    backend.gate.open()
    assert {type(end) for end in inbox.wait(3)} == {Failed}
    with pytest.raises(UnavailableError):
        view.result(WAIT)
    with pytest.raises(UnavailableError):
        e.submit(job("late", "ask", 3), inbox)
    assert "the engine stops" in caplog.text
    e.close()
    assert backend.closed


def test_a_fork_of_the_process_is_told_that_it_has_no_engine(engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    e, backend = engine()
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(UnavailableError, match="forked"):
            e.submit(job("a", "ask", 3), Ends())
        with pytest.raises(UnavailableError, match="forked"):
            e.view().result(WAIT)
        e.close()
        assert not backend.closed
    assert isinstance(list(e.stream(job("a", "ask", 3)))[-1], Finished)


def test_a_thread_that_reads_events_later_finds_them_all(engine: Engines) -> None:
    e, _ = engine(script=scripted({"ask": "yes"}))
    inbox, sign = ThreadInbox(), Ends()
    e.submit(job("a", "ask"), inbox)
    e.submit(job("b", "ask"), sign)
    sign.wait()
    assert [type(inbox.get()).__name__ for _ in range(6)] == ["Started", *["Token"] * 4, "Finished"]


def test_a_disk_tier_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with FakeBackend() as backend, pytest.raises(UsageError, match="--cache-disk"):
        Engine(backend, EngineConfig(memory=MemoryConfig(limit=1000), disk=tmp_path / "file", disk_limit=1000))
