"""Streams that go on without their client, and can be read again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import ParamSpec
from urllib.parse import quote

import httpx
import pytest

from minka.errors import NativeError, RequestError
from minka.params import ServerParams
from minka.server import streams as module
from minka.server.streams import Key, Stream, Streams
from tests.fakes import WAIT, FakeBackend, Gate, eos_after, hashed
from tests.server.site import CHAT, MESSAGES, Live, fake_runtime

P = ParamSpec("P")

KEY = Key("", "conversation", "a")
MESSAGE = {"model": "m", "max_tokens": 20, "messages": MESSAGES, "stream": True}


@pytest.fixture
def backend() -> FakeBackend:
    """Writes some twenty tokens, and can be held."""
    return FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=256)


@pytest.fixture
def gate(backend: FakeBackend) -> Gate:
    return backend.gate


@pytest.fixture
def live(backend: FakeBackend) -> Iterator[Live]:
    with backend, Live(fake_runtime(backend)) as made:
        yield made
        backend.gate.open()


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WAIT) as made:
        yield made


def start(live: Live, name: str) -> bytes:
    """Begin a stream, read what comes first and go away."""
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 20}
    with httpx.stream("POST", live.url + CHAT, json=body, headers={"x-conversation-id": name}, timeout=WAIT) as answer:
        assert answer.status_code == 200, answer.read()
        return next(answer.iter_raw())


def looked_up(client: httpx.Client, *names: str) -> list[dict[str, object]]:
    found = client.post("/v1/streams/lookup", json={"conversation_ids": names}).json()
    assert isinstance(found, list)
    return found


def replay(client: httpx.Client, name: str, start: int = 0) -> httpx.Response:
    return client.get(f"/v1/stream?conv_id={quote(name, safe='')}&from={start}")


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        (CHAT, {"messages": MESSAGES, "stream": True}, b"data: [DONE]\n\n"),
        ("/v1/completions", {"prompt": "go", "stream": True}, b"data: [DONE]\n\n"),
        ("/completion", {"prompt": "go", "stream": True}, b"\n\n"),
        ("/v1/messages", MESSAGE, b'data: {"type":"message_stop"}\n\n'),
        ("/v1/responses", {"input": "hi", "stream": True}, b"\n\n"),
    ],
)
def test_every_streaming_api_can_be_read_again(
    client: httpx.Client, path: str, body: dict[str, object], end: bytes
) -> None:
    name = f"conv::org/model:Q8 {path}"
    first = client.post(path, json=body, headers={"x-conversation-id": name}).content
    assert first.endswith(end)
    again = replay(client, name)
    assert again.content == first
    assert again.headers["content-type"].startswith("text/event-stream")
    assert replay(client, name, 10).content == first[10:]
    assert replay(client, name, len(first)).content == b""


def test_the_generation_goes_on_without_its_client(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    first = start(live, "a")
    gate.open()
    whole = replay(client, "a").content
    assert whole.startswith(first)
    assert whole.endswith(b"data: [DONE]\n\n")
    assert live.view().counters.predicted_tokens > 3


def test_two_readers_follow_one_stream_live(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    start(live, "a")
    bodies: list[bytes] = []

    def follow() -> None:
        with httpx.Client(base_url=live.url, timeout=WAIT) as own:
            bodies.append(replay(own, "a").content)

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    gate.open()
    for reader in readers:
        reader.join()
    assert bodies[0] == bodies[1] == replay(client, "a").content


def test_what_is_known_of_streams(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    start(live, "a::model/x")
    (told,) = looked_up(client, "a", "b")
    assert told["conversation_id"] == "a::model/x"
    assert told["is_done"] is False
    assert told["completed_at"] == 0
    gate.open()
    n = len(replay(client, "a::model/x").content)
    (told,) = looked_up(client, "a::model/x")
    assert told["is_done"] is True
    assert told["total_bytes"] == n
    assert told["completed_at"] >= told["started_at"] > 0  # type: ignore[operator]


def test_stopping_ends_the_generation(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    start(live, "a")
    gate.let(1)  # so that the engine sees the end of the job behind it
    stopping = threading.Thread(target=lambda: client.delete("/v1/stream?conv_id=a"))
    stopping.start()
    gate.open()
    stopping.join()
    assert replay(client, "a").status_code == 404
    assert not any(slot.busy for slot in live.view().slots)
    assert client.delete("/v1/stream?conv_id=a").status_code == 204


def test_a_request_that_is_stopped_before_it_begins_says_so(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    answers: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(base_url=live.url, timeout=WAIT) as own:
            body = {"messages": MESSAGES, "stream": True}
            answers.append(own.post(CHAT, json=body, headers={"x-conversation-id": "a"}))

    asking = threading.Thread(target=ask)
    asking.start()
    gate.wait_held()
    assert client.delete("/v1/stream?conv_id=a").status_code == 204
    asking.join()
    gate.open()
    assert answers[0].status_code == 400
    assert "cancelled" in answers[0].text


def test_a_new_stream_takes_the_name_of_the_old_one(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    start(live, "a")
    gate.open()
    second = client.post(
        CHAT, json={"messages": MESSAGES, "stream": True, "max_tokens": 1}, headers={"x-conversation-id": "a"}
    ).content
    assert replay(client, "a").content == second
    assert len(looked_up(client, "a")) == 1


def test_a_request_that_fails_at_once_leaves_no_stream(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 500}], "stream": True}
    answer = client.post(CHAT, json=body, headers={"x-conversation-id": "a"})
    assert answer.status_code == 400
    assert replay(client, "a").status_code == 404


def test_without_a_stream_the_name_means_nothing(client: httpx.Client) -> None:
    assert client.post(CHAT, json={"messages": MESSAGES}, headers={"x-conversation-id": "a"}).status_code == 200
    assert replay(client, "a").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "param"),
    [
        ("GET", "/v1/stream", "conv_id"),
        ("DELETE", "/v1/stream", "conv_id"),
        ("GET", "/v1/stream?conv_id=a&from=-1", "from"),
        ("GET", "/v1/stream?conv_id=a&from=x", "from"),
        ("POST", "/v1/streams/lookup", "conversation_ids"),
    ],
)
def test_wrong_requests(client: httpx.Client, method: str, path: str, param: str) -> None:
    answer = client.request(method, path, json={"conversation_ids": "a"} if method == "POST" else None)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_offset_beyond_the_end(client: httpx.Client) -> None:
    client.post(CHAT, json={"messages": MESSAGES, "stream": True}, headers={"x-conversation-id": "a"})
    assert replay(client, "a", 10**9).status_code == 400


def test_a_name_that_is_too_long(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={"messages": MESSAGES, "stream": True}, headers={"x-conversation-id": "a" * 600})
    assert answer.status_code == 400


def test_a_key_reads_its_own_streams_only() -> None:
    backend = FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=256)
    with backend, Live(fake_runtime(backend), ServerParams(api_key=("one", "two"))) as live:
        with httpx.Client(base_url=live.url, timeout=WAIT, headers={"x-api-key": "one"}) as one:
            one.post(CHAT, json={"messages": MESSAGES, "stream": True}, headers={"x-conversation-id": "a"})
            assert replay(one, "a").status_code == 200
        with httpx.Client(base_url=live.url, timeout=WAIT, headers={"x-api-key": "two"}) as two:
            assert replay(two, "a").status_code == 404
            assert looked_up(two, "a") == []


# -- the buffer --------------------------------------------------------------------------------------------------------


def asynchronous(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Runs a test in a loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def read(stream: Stream, start: int = 0) -> bytes:
    return b"".join([chunk async for chunk in stream.read(start)])


async def ended(stream: Stream) -> None:
    """A stream whose work is over."""

    async def work(_stream: Stream) -> None:
        pass

    stream.run(work, lambda _error: None)
    while not stream.done:
        await asyncio.sleep(0)


@asynchronous
async def test_only_the_end_of_a_long_stream_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 10)
    stream = Stream(KEY)
    for _ in range(5):
        stream.write(b"abcd")
    await ended(stream)
    assert (stream.total, stream.lost, stream.size) == (20, 10, 10)
    assert await read(stream, 10) == b"cdabcdabcd"
    with pytest.raises(RequestError, match="before 10"):
        stream.check(9)
    assert await read(stream, 9) == b"", "rather nothing than a gap"


@asynchronous
async def test_a_reader_that_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 10)
    stream = Stream(KEY)
    stream.write(b"abcd")
    reader = stream.read(0)
    assert await anext(reader) == b"abcd"
    stream.write(b"x" * 20)
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


@asynchronous
async def test_a_reader_that_has_gone_ends() -> None:
    stream, gone = Stream(KEY), asyncio.Event()
    stream.write(b"a")
    reader = stream.read(0, gone)
    assert await anext(reader) == b"a"
    waiting = asyncio.ensure_future(anext(reader, b"over"))
    await asyncio.sleep(0)
    gone.set()
    stream.nudge()
    assert await waiting == b"over"


@asynchronous
async def test_work_that_is_stopped_before_it_began_has_ended_all_the_same() -> None:
    told: list[object] = []
    stream = Stream(KEY)

    async def work(_stream: Stream) -> None:
        raise AssertionError("it never began")

    stream.run(work, told.append)
    await stream.stop()
    with pytest.raises(RequestError, match="cancelled"):
        await stream.opened
    assert stream.done
    assert told == [None]
    assert await read(stream) == b""


@asynchronous
async def test_of_several_that_take_a_name_at_once_the_last_one_has_it_alone() -> None:
    streams, running = Streams(), set[int]()

    async def begin(number: int) -> None:
        async def work(_stream: Stream) -> None:
            running.add(number)
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(number):  # ending takes its time
                    await asyncio.sleep(0)
                running.remove(number)

        streams.start(await streams.open(KEY), work, lambda _error: None)
        await asyncio.sleep(0)

    await begin(5)
    await asyncio.gather(*(begin(number) for number in (3, 4, 2, 1)))
    assert len(running) == 1
    await streams.close()
    assert not running


@pytest.mark.parametrize("error", [NativeError("broken"), ZeroDivisionError("a secret")])
@asynchronous
async def test_work_that_fails_is_told_and_the_stream_ends(error: Exception) -> None:
    told: list[object] = []
    stream = Stream(KEY)

    async def work(_stream: Stream) -> None:
        raise error

    stream.run(work, told.append)
    with pytest.raises(Exception, match="broken" if isinstance(error, NativeError) else "internal error"):
        await stream.opened
    assert stream.done
    assert len(told) == 1


@asynchronous
async def test_an_end_that_cannot_be_kept_is_an_end(caplog: pytest.LogCaptureFixture) -> None:
    streams = Streams()
    stream = await streams.open(KEY)

    async def work(stream: Stream) -> None:
        stream.write(b"a")
        raise NativeError("no")

    def broken(_error: object) -> None:
        raise OSError("No space left on device")

    streams.start(stream, work, broken)
    assert [chunk async for chunk in stream.read(0)] == [b"a"]
    assert stream.done
    assert "cannot be kept" in caplog.text


@asynchronous
async def test_finished_streams_go_after_a_time_and_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIFETIME", 0.0)
    streams = Streams()
    stream = await streams.open(KEY)

    async def work(stream: Stream) -> None:
        stream.write(b"a")

    streams.start(stream, work, lambda _error: None)
    await stream.opened
    while streams.get(KEY) is not None:
        await asyncio.sleep(0)

    monkeypatch.setattr(module, "LIFETIME", 1000.0)
    monkeypatch.setattr(module, "TOTAL", 2 * (1 + module.OVERHEAD))
    keys = [Key("", "conversation", name) for name in "abcd"]
    for key in keys:
        made = await streams.open(key)
        streams.start(made, work, lambda _error: None)
        await made.opened
        while not made.done:
            await asyncio.sleep(0)
    assert [streams.get(key) is not None for key in keys] == [False, False, True, True]
    await streams.close()
    assert streams.get(keys[3]) is None
