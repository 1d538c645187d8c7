from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from minka.engine.engine import Engine
from minka.engine.inbox import LoopInbox, Mailbox
from minka.types import Cancelled, End, Event, Finished, Token
from tests.engine.rig import job
from tests.fakes import WAIT, FakeBackend, scripted

T = TypeVar("T")


def run(main: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, WAIT))


async def read(mailbox: Mailbox, n_jobs: int) -> dict[str, str]:
    """The texts of the jobs, once all of them ended."""
    texts: dict[str, str] = {}
    while n_jobs:
        for event in await mailbox.take():
            if isinstance(event, Token | Finished):
                texts[event.id] = texts.get(event.id, "") + event.text
            n_jobs -= isinstance(event, End)
    return texts


def test_an_event_loop_reads_many_jobs_through_one_inbox(fake_backend: Callable[..., FakeBackend]) -> None:
    engine = Engine(fake_backend(script=scripted({"one": "first answer", "two": "second", "three": "third"})))

    async def main() -> list[dict[str, str]]:
        inbox = LoopInbox(asyncio.get_running_loop())
        single, pair = inbox.open(["a"]), inbox.open(["b", "c"])
        for id, prompt in (("a", "one"), ("b", "two"), ("c", "three")):
            engine.submit(job(id, prompt, 50), inbox)
        return list(await asyncio.gather(read(single, 1), read(pair, 2)))

    assert run(main()) == [{"a": "first answer"}, {"b": "second", "c": "third"}]
    engine.close()


def test_a_step_wakes_the_loop_once() -> None:
    async def main() -> None:
        loop, calls = asyncio.get_running_loop(), list[object]()
        inbox = LoopInbox(loop)
        boxes = inbox.open(["a"]), inbox.open(["b"])
        inbox.deliver([Cancelled("a"), Cancelled("b"), Cancelled("nobody")])
        loop.call_soon(calls.append, 1)
        await asyncio.sleep(0)
        assert calls == [1]
        assert [await box.take() for box in boxes] == [[Cancelled("a")], [Cancelled("b")]]

    run(main())


def test_events_that_wait_are_taken_together_and_in_order() -> None:
    async def main() -> list[Event]:
        inbox = LoopInbox(asyncio.get_running_loop())
        box = inbox.open(["a", "b"])
        for id in ("a", "b", "a"):
            inbox.deliver([Cancelled(id)])
        await asyncio.sleep(0)
        return await box.take()

    assert run(main()) == [Cancelled("a"), Cancelled("b"), Cancelled("a")]


def test_patience_ends_with_nothing_and_loses_nothing() -> None:
    async def main() -> None:
        box = Mailbox()
        assert await box.take(patience=0.001) == []
        box.put(Cancelled("a"))
        assert await box.take(patience=WAIT) == [Cancelled("a")]

    run(main())


def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    async def main() -> None:
        box = Mailbox()
        reader = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        reader.cancel()
        box.put(Cancelled("a"))
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await box.take() == [Cancelled("a")]

    run(main())


def test_events_of_a_job_that_was_closed_are_dropped() -> None:
    async def main() -> None:
        inbox = LoopInbox(asyncio.get_running_loop())
        box = inbox.open(["a", "b"])
        inbox.close(["a"])
        inbox.close(["a", "never"])
        inbox.deliver([Cancelled("a"), Cancelled("b")])
        await asyncio.sleep(0)
        assert await box.take() == [Cancelled("b")]

    run(main())


def test_a_loop_that_is_gone_does_not_disturb_the_engine() -> None:
    loop = asyncio.new_event_loop()
    inbox = LoopInbox(loop)
    loop.close()
    inbox.deliver([Cancelled("a")])
