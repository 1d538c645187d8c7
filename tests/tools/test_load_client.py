from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable

import pytest

from minka.errors import UsageError
from minka.tools.load_client import ChunkedDecoder, Client, FrameSplitter, LoadError, Reply, Tape
from tests.tools.servers import Answer, Request, Served, chunked, plain, serving


def exchange(answer: bytes | Answer, use: Callable[[Client], Awaitable[object]], **headers: str) -> Served:
    """Let a client use a server that answers every request so."""

    async def respond(request: Request, writer: asyncio.StreamWriter) -> None:
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(request, writer)

    async def main() -> Served:
        async with serving(respond) as served:
            client = Client.of_url(served.url, headers)
            try:
                await use(client)
            finally:
                client.close()
        return served

    return asyncio.run(main())


def stream(answer: bytes | Answer) -> Tape:
    """The tape of a stream that is answered so."""
    tape = Tape()
    exchange(answer, lambda client: client.stream("/x", {"a": 1}, tape))
    return tape


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_chunked_coding_may_be_cut_anywhere(size: int) -> None:
    data = b"5;note=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    decoder = ChunkedDecoder()
    found = b"".join(decoder.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert found == b"hello 0123456789"
    assert decoder.done


@pytest.mark.parametrize("data", [b"zz\r\n", b"2\r\nabc\r\n"])
def test_a_broken_coding_is_an_error(data: bytes) -> None:
    with pytest.raises(LoadError, match="chunk"):
        ChunkedDecoder().feed(data)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_frames_may_be_cut_anywhere(line_end: bytes, size: int) -> None:
    data = line_end.join([b"data: 1", b"", b": comment", b"", b"event: x", b"data: 2", b"", b""])
    splitter = FrameSplitter()
    frames = [frame for at in range(0, len(data), size) for frame in splitter.feed(data[at : at + size])]
    assert frames == [b"data: 1", b": comment", b"event: x\ndata: 2"]
    assert not splitter.rest


def test_a_stream_is_taped_with_its_times() -> None:
    tape = stream(chunked(b"data: 1\n\nda", b"ta: 2\n\n"))
    assert tape.frames == [b"data: 1", b"data: 2"]
    assert 0 < tape.sent <= tape.times[0] <= tape.times[1] <= tape.ended


def test_what_is_sent_is_http() -> None:
    tape = Tape()
    served = exchange(chunked(b""), lambda client: client.stream("/v1/x", {"a": "é"}, tape), Authorization="Bearer k")
    (request,) = served.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/x", {"a": "é"})
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == served.url.removeprefix("http://")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (plain("503 Busy", b"come back later"), "POST /x got 503: come back later"),
        (plain("400 No", b'{"error": {"message": "too\\nlong"}}'), "POST /x got 400: too long"),
        (plain("400 No", b'{"error": "\x1b[2J"}\r\n' + b"x" * 400), re.escape(r'got 400: {"error": "\x1b[2J"} xxx')),
        (plain("400 No", b"[" * 20000), re.escape("got 400: [[[")),
        (b"HTTP/1.1 200 OK\r\n\r", "closed before the headers ended"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", r"no HTTP/1\.1 response"),
        (chunked(b"data: 1\n\n", end=False), "in the middle of a body"),
        (chunked(b"data: 1\n\ndata: 2"), "inside a frame"),
    ],
)
def test_a_stream_that_breaks_is_an_error(answer: bytes, message: str) -> None:
    async def once(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    with pytest.raises(LoadError, match=message):
        stream(once)


def test_a_connection_is_used_again() -> None:
    replies: list[Reply] = []

    async def twice(client: Client) -> None:
        replies.extend([await client.request("GET", "/a"), await client.request("POST", "/b", {"x": 1})])

    peers: set[object] = set()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        writer.write(plain("200 OK", json.dumps(request.body).encode(), "X-Y:  z "))

    exchange(answer, twice)
    assert [reply.body for reply in replies] == [b"{}", b'{"x": 1}']
    assert replies[0].headers["x-y"] == "z"
    assert len(peers) == 1


def test_a_connection_that_is_to_be_closed_is_not() -> None:
    peers: list[object] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        writer.write(plain("200 OK", b"", "Connection: close"))

    async def twice(client: Client) -> None:
        await client.request("GET", "/a")
        await client.request("GET", "/b")

    exchange(answer, twice)
    assert len(set(peers)) == 2


def test_one_can_wait_for_a_frame() -> None:
    async def main() -> None:
        tape = Tape()
        waiting = asyncio.create_task(tape.reached(2))
        await asyncio.sleep(0)
        tape.add([b"1", b"2"], 1.0)
        assert await waiting
        never = asyncio.create_task(tape.reached(5))
        await asyncio.sleep(0)
        tape.end()
        assert not await never

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://a:81/x", "a", 81), ("http://a", "a", 80), ("https://a/v1", "a", 443), ("http://[::1]:8", "::1", 8)],
)
def test_a_url_names_a_server(url: str, host: str, port: int) -> None:
    client = Client.of_url(url)
    assert (client.host, client.port) == (host, port)


@pytest.mark.parametrize("url", ["", "a:80", "ftp://a", "http://", "http://a:b", "http://a:99999"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no URL"):
        Client.of_url(url)


def test_an_address_in_brackets_stays_so() -> None:
    assert b"Host: [::1]:8\r\n" in Client.of_url("http://[::1]:8").encode("GET", "/")
