"""A server with llama-server's routes that answers nonsense at once, in pieces cut as a test likes.

Run as a file it listens until it is ended: `python instant_server.py --port N` (other flags are ignored).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress

Cut = Callable[[bytes], Iterable[bytes]]


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat_frames(n_tokens: int) -> list[bytes]:
    def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
        return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    usage = {"prompt_tokens": 7, "completion_tokens": n_tokens, "prompt_tokens_details": {"cached_tokens": 3}}
    first = [chunk({"role": "assistant", "content": None})]
    last = [chunk({}, "length"), data({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
    return [*first, *(chunk({"content": f"ñ{i} "}) for i in range(n_tokens)), *last]


def completion_frames(n_tokens: int) -> list[bytes]:
    last = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": n_tokens, "tokens_evaluated": 7}
    parts = [data({"content": f"{i} ", "stop": False}) for i in range(n_tokens)]
    return [*parts, data({**last, "timings": {"cache_n": 3}})]


def chunked(payload: bytes) -> bytes:
    return b"%x;name=value\r\n%s\r\n" % (len(payload), payload)


class Answers:
    """The server: knows llama-server's routes by name only. `cut` says in which pieces its bytes are written."""

    def __init__(self, cut: Cut = lambda block: [block]) -> None:
        self.cut = cut
        self.n_connections = 0
        self.routes: dict[str, Callable[[dict[str, int]], list[bytes]]] = {
            "/v1/chat/completions": lambda body: chat_frames(body["max_tokens"]),
            "/completion": lambda body: completion_frames(body["n_predict"]),
        }

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.exchange(reader, writer)
        writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
        body = await reader.readexactly(int(length or 0))
        path = head.split(" ")[1]
        if path in self.routes and b'"response_format"' not in body:
            await self.write(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for frame in self.routes[path](json.loads(body)):
                await self.write(writer, chunked(frame))
                await asyncio.sleep(0.0005)
            await self.write(writer, b"0\r\nTrailer: x\r\n\r\n")
        elif path == "/breaks-off":
            await self.write(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:")
            writer.close()
        elif path == "/until-close":
            await self.write(writer, b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(completion_frames(2)))
            writer.close()
        else:
            asked = json.loads(body or b"{}")
            tokens = {"tokens": [0] * (2 * len(asked.get("content", "").split()))}
            vectors = {"data": [{"embedding": [1.0, 0.0]} for _ in asked.get("input", [])]}
            idle = [{"is_processing": False}] * 4
            text = json.dumps(dict.fromkeys(("name", "class", "weight_kg", "foods"), 1))
            said = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 20}}
            answers = {
                "/v1/chat/completions": (200, said),
                "/health": (200, {"status": "ok"}),
                "/slots": (200, idle),
                "/tokenize": (200, tokens),
                "/v1/embeddings": (200, vectors),
            }
            status, value = answers.get(path, (404, {"error": {"message": "no such path"}}))
            block = json.dumps(value).encode()
            await self.write(writer, b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(block), block))

    async def write(self, writer: asyncio.StreamWriter, block: bytes) -> None:
        for piece in self.cut(block):
            writer.write(piece)
            await writer.drain()
            if len(piece) < len(block):
                await asyncio.sleep(0)


async def serve_forever(port: int) -> None:
    server = await asyncio.start_server(Answers().handle, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--port", type=int)
    asyncio.run(serve_forever(flags.parse_known_args()[0].port))
