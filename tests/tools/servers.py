"""A server for the load client that answers what a test wants, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast


@dataclass(frozen=True, slots=True)
class Request:
    """What the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, object]

    @property
    def messages(self) -> list[dict[str, str]]:
        """What a chat request says."""
        return cast("list[dict[str, str]]", self.body["messages"])


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Served:
    """A running server: its address, and all requests so far."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Served]:
    """Serve until the block is left; each connection may carry several requests."""
    served, tasks = Served(), set[asyncio.Task[None]]()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while block := await reader.readuntil(b"\r\n\r\n"):
                head, *lines = block.decode().rstrip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                method, path, _ = head.split(" ")
                request = Request(method, path, headers, json.loads(body or b"{}"))
                served.requests.append(request)
                await answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(connection(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def plain(status: str, body: bytes, *headers: str) -> bytes:
    """A response with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """A 200 response in the chunked coding."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    coded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + coded + (b"0\r\n\r\n" if end else b"")


def event(value: object) -> bytes:
    """A data frame."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def completion(request: Request, text: str = "so") -> bytes:
    """A stream of either of OpenAI's APIs: one token a frame, as many as were asked for, and the usage."""
    n = request.body["max_tokens"]
    assert isinstance(n, int)
    words = str(request.body.get("messages") or request.body["prompt"]).split()
    chat = request.path.endswith("/chat/completions")
    first = [event({"choices": [{"delta": {"role": "assistant", "content": None}}]})] if chat else []
    choice = {"delta": {"content": text}} if chat else {"text": text}
    usage = event({"choices": [], "usage": {"prompt_tokens": 2 * len(words), "completion_tokens": n}})
    return chunked(*first, *[event({"choices": [choice]})] * n, usage, b"data: [DONE]\n\n")


async def openai(request: Request, writer: asyncio.StreamWriter) -> None:
    """A server with both APIs and a list of models."""
    if request.path.endswith("/models"):
        writer.write(plain("200 OK", b'{"data": [{"id": "first"}, {"id": "second"}]}'))
    else:
        writer.write(completion(request))
