"""One load against one server: what a scenario's function is given to do its work with.

An Order says what to load, an Outcome or a Failure what came of it. Knows neither processes nor pipes nor reports.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks import proc
from benchmarks.prompts import prose
from benchmarks.streams import Stream, items, read_chat, read_completion, read_cut_chat, want
from minka.tools.load_client import Client, LoadError, Reply, Tape

T = TypeVar("T")
History = list[dict[str, str]]
CHAT = "/v1/chat/completions"
GREEDY: dict[str, object] = {"temperature": 0, "ignore_eos": True, "stream": True}
"""Exact lengths, and no sampler between the two servers."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a load process is to do: which case, against which server process, started when (monotonic clock).

    `seed` is the same for both servers in a round, so that they get the same prompts. `start` counts the starts of the
    server in this run.
    """

    scenario: str
    case: str
    seed: str
    port: int
    pid: int
    spawned: float
    host: str = "127.0.0.1"
    start: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load measured, with the raw numbers of every stream.

    CPU seconds are those of the load process, of the server, and of everything else on the machine meanwhile.
    """

    measures: dict[str, float]
    streams: list[dict[str, float]]
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    others_cpu_s: float
    server_rss_mib: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a load has no numbers, in one sentence."""

    message: str


@dataclass(slots=True)
class Running:
    """A chat stream that was begun and is not waited for."""

    tape: Tape
    n_tokens: int
    task: asyncio.Task[None]

    async def reached(self, n_frames: int) -> None:
        """Wait until `n_frames` frames are here. Raises LoadError when the stream ends before."""
        if not await self.tape.reached(n_frames):
            await self.task
            raise LoadError(f"the stream ended after {len(self.tape.frames)} frames, {n_frames} were awaited")

    async def whole(self) -> Stream:
        """Wait for the end and decode."""
        await self.task
        return read_chat(self.tape, self.n_tokens)

    async def cut(self) -> Stream:
        """Drop the connection and decode what came. Raises LoadError when the stream had ended by itself."""
        if self.task.done():
            await self.task
            raise LoadError("the running stream ended before the load that it was to outlive")
        await self.abandon()
        return read_cut_chat(self.tape)

    async def abandon(self) -> None:
        """Drop the connection, whatever came. Raises the error of a stream that had failed before."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled() and (error := self.task.exception()) is not None:
            raise error
        items(self.tape)


@dataclass(slots=True)
class Load:
    """The means of a scenario: requests to the server, prompts from the round's seed, a look at its memory.

    `histories` are conversations that outlive a restart of the server.
    """

    order: Order
    client: Client
    rng: random.Random
    histories: list[History] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    tokens_per_word: float = 1.0

    async def calibrate(self) -> None:
        """Ask the server how many tokens its model makes of a word, 1.0 with the vocabulary of a chat model."""
        n_words = 240
        reply = await self.client.request("POST", "/tokenize", {"content": prose(random.Random(0), n_words)})
        if reply.status != 200:
            raise LoadError(f"POST /tokenize got {reply.status}: {reply.body[:200]!r}")
        self.tokens_per_word = len(json.loads(reply.body)["tokens"]) / n_words

    def prose(self, n_tokens: int) -> str:
        """Fresh text of about `n_tokens` tokens."""
        return prose(self.rng, max(1, round(n_tokens / self.tokens_per_word)))

    def begin(self, content: str | Sequence[dict[str, str]], n_tokens: int) -> Running:
        """Send a chat request, a user's text or a whole history, and go on while it streams."""
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        usage = {"stream_options": {"include_usage": True}}
        payload = {"messages": messages, "max_tokens": n_tokens, **usage, **GREEDY}
        tape = Tape()
        task = asyncio.create_task(self.client.stream(CHAT, payload, tape))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # asked for, if nobody else does
        return Running(tape, n_tokens, task)

    async def chat(self, content: str | Sequence[dict[str, str]], n_tokens: int) -> Stream:
        """A chat request of exactly `n_tokens`, from sending to the last byte."""
        stream = await self.begin(content, n_tokens).whole()
        self.streams.append(stream)
        return stream

    async def structured(self, content: str, schema: Mapping[str, object], most: int) -> int:
        """Tokens of a chat answer, sent as a whole, that matches a schema. Raises LoadError if it does not."""
        named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        messages = [{"role": "user", "content": content}]
        payload = {"messages": messages, "max_tokens": most, "temperature": 0, "response_format": named}
        reply = await self.client.request("POST", CHAT, payload)
        if reply.status != 200:
            raise LoadError(f"POST {CHAT} got {reply.status}: {reply.body[:200]!r}")
        body = json.loads(reply.body)
        text = body["choices"][0]["message"]["content"]
        try:
            value = json.loads(text)
        except ValueError:
            raise LoadError(f"an answer that is not JSON: {text[:200]!r}") from None
        if not isinstance(value, dict) or set(value) != set(want(dict(schema), "required", list)):
            raise LoadError(f"an answer with other members than the schema's: {text[:200]!r}")
        return want(body["usage"], "completion_tokens", int)

    async def complete(self, prompt: str, n_tokens: int) -> Stream:
        """A request to /completion of exactly `n_tokens`, from sending to the last byte."""
        tape = Tape()
        await self.client.stream("/completion", {"prompt": prompt, "n_predict": n_tokens, **GREEDY}, tape)
        stream = read_completion(tape, n_tokens)
        self.streams.append(stream)
        return stream

    async def embed(self, texts: Sequence[str]) -> float:
        """Embed texts in one request; returns the seconds from sending to the last byte."""
        began = time.monotonic()
        reply = await self.client.request("POST", "/v1/embeddings", {"input": list(texts), "encoding_format": "float"})
        seconds = time.monotonic() - began
        data = json.loads(reply.body).get("data", []) if reply.status == 200 else []
        widths = {len(entry["embedding"]) for entry in data}
        if len(data) != len(texts) or len(widths) != 1 or not min(widths):
            raise LoadError(f"{len(texts)} texts got {reply.status} and vectors {len(data)} x {sorted(widths)}")
        return seconds

    async def get(self, path: str) -> Reply:
        """A GET request."""
        return await self.client.request("GET", path)

    def rss_mib(self) -> float:
        """Resident memory of the server now."""
        return proc.rss_mib(self.order.pid)


async def gather(work: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """Run all at once; the first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
