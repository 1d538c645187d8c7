"""A client that goes away ends its work, wherever that is: in the queue, in the prompt, in the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.fakes import WAIT, Chunk, FakeBackend, eos_after
from tests.server.site import CHAT, Connection, Live, events, fake_runtime

STEP = 0.005
"""Seconds that a step of these backends takes."""
BOUND = 0.2
"""Seconds after which a job of a client that has gone must have ended."""
SLACK = 2.0
"""What a busy machine may add; a job that is not cancelled goes on for ten times as long."""


def slowly(_chunks: Sequence[Chunk]) -> bool:
    """Takes the time that a model would, and never fails."""
    time.sleep(STEP)
    return False


@contextmanager
def slow_site(**options: object) -> Iterator[Live]:
    """A server with a model that writes 200 tokens a second and does not end by itself."""
    backend = FakeBackend(fail=slowly, n_ctx=8192, **options)  # type: ignore[arg-type]
    with backend, Live(fake_runtime(backend)) as live:
        yield live


def wait_until(holds: Callable[[], bool]) -> float:
    """Wait until something is so; returns the seconds it took."""
    began = time.perf_counter()
    while not holds():
        assert time.perf_counter() - began < WAIT, "it never became so"
        time.sleep(STEP)
    return time.perf_counter() - began


def n_busy(live: Live) -> int:
    return sum(slot.busy for slot in live.view().slots)


def expect_cancelled(live: Live, holds: Callable[[], bool]) -> None:
    """Something becomes so in time, and after it nothing is left of any request."""
    assert wait_until(holds) < BOUND + SLACK
    assert live.runtime.engine.n_open == sum(slot.busy for slot in live.view().slots) + live.view().n_queued


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_stream_that_nobody_reads_ends(path: str) -> None:
    with slow_site() as live:
        with live.connect() as client:
            frames = events(client.post(path, prompt="go", stream=True))
            for _ in range(3):
                next(frames)
            assert n_busy(live) == 1
        expect_cancelled(live, lambda: n_busy(live) == 0)
        assert live.view().counters.predicted_tokens < 1000


def test_an_answer_that_nobody_waits_for_ends() -> None:
    with slow_site() as live:
        with live.connect() as client:
            client.send("/completion", prompt="go")
            wait_until(lambda: n_busy(live) == 1 and live.view().slots[0].n_generated > 2)
        expect_cancelled(live, lambda: n_busy(live) == 0)


def test_a_prompt_that_nobody_waits_for_is_not_computed_to_its_end() -> None:
    with slow_site(n_batch=8) as live:
        with live.connect() as client:
            client.send("/completion", prompt=[1] * 8000, stream=True)
            wait_until(lambda: any(0 < slot.n_processed < 8000 for slot in live.view().slots))
        expect_cancelled(live, lambda: n_busy(live) == 0)
        assert live.view().counters.prompt_tokens < 8000


def test_a_place_in_the_queue_is_given_up() -> None:
    with slow_site(n_seq_max=1) as live, live.connect() as first:
        next(events(first.post("/completion", prompt="go", stream=True)))
        with live.connect() as second, live.connect() as third:
            second.send("/completion", prompt="second")
            third.send("/completion", prompt="third", stream=True)
            wait_until(lambda: live.view().n_queued == 2)
        expect_cancelled(live, lambda: live.view().n_queued == 0)
        assert n_busy(live) == 1, "the one that runs goes on"


def test_all_choices_of_a_request_end() -> None:
    with slow_site(n_seq_max=2) as live:
        with live.connect() as client:
            next(events(client.post("/completion", prompt=["a", "b", "c", "d"], stream=True)))
            wait_until(lambda: n_busy(live) == 2 and live.view().n_queued == 2)
        expect_cancelled(live, lambda: n_busy(live) == live.view().n_queued == 0)


def test_the_others_are_not_disturbed() -> None:
    with slow_site(script=eos_after(60)) as live, live.connect() as stays:
        stays.send("/completion", prompt="I stay", stream=True)
        leaving = [live.connect() for _ in range(3)]
        for client in leaving:
            client.send("/completion", prompt="I leave", stream=True, ignore_eos=True)
        wait_until(lambda: n_busy(live) == 4)
        for client in leaving:
            client.leave()
        frames = list(events(stays.answer()))
        assert '"stop_type":"eos"' in frames[-1]
        expect_cancelled(live, lambda: n_busy(live) == 0)


def test_a_client_that_goes_while_its_request_is_read_leaves_nothing() -> None:
    with slow_site() as live:
        client = Connection(live.url)
        client._http.putrequest("POST", CHAT)
        client._http.putheader("content-length", "1000")
        client._http.endheaders(b'{"messages": [')
        client.leave()
        with live.connect() as other:
            assert other.post("/completion", prompt="go", n_predict=2).status == 200
        assert live.runtime.engine.n_open == 0


def test_a_client_that_goes_while_the_server_has_nothing_to_say_is_noticed() -> None:
    """No frame is sent in this time, so the loss cannot be found out by writing."""
    with FakeBackend() as backend, Live(fake_runtime(backend)) as live:
        backend.gate.close()
        with live.connect() as client:
            client.send("/completion", prompt="go", stream=True)
            backend.gate.wait_held()
        with live.connect() as other:  # answers of the server after the loss, so that it must have seen it
            for _ in range(3):
                other.post("/tokenize", content="x").read()
        backend.gate.open()
        expect_cancelled(live, lambda: n_busy(live) == 0)
        assert len(backend.decodes) < 1000
