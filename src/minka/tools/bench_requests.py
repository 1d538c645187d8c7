"""One request of a load test over OpenAI's API, and what its stream says about the server's speed.

Any server with /v1/chat/completions or /v1/completions will do. Knows nothing of clients and levels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal
from urllib.parse import urlsplit

from minka.tools.load_client import Client, LoadError, Tape

Api = Literal["chat", "completions"]
_PATHS: Mapping[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """How one request went. Times are seconds; `gaps` lie between chunks with text, mostly one for each token.

    `began` is when it was sent, on the system's monotonic clock. With an `error` the counts are 0.
    """

    began: float
    latency: float
    ttft: float = 0.0
    gaps: tuple[float, ...] = ()
    n_prompt: int = 0
    n_output: int = 0
    text: str = field(default="", repr=False)
    error: str = ""

    @property
    def ended(self) -> float:
        """When the last byte was there."""
        return self.began + self.latency


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test. `base` is the path before /chat/completions, `model` what it is asked for."""

    url: str
    client: Client
    base: str
    model: str = ""
    api: Api = "chat"
    extra: Mapping[str, object] = field(default_factory=dict)

    def body(self, messages: Sequence[Message], max_tokens: int) -> dict[str, object]:
        """The request for a list of messages."""
        body: dict[str, object] = {"max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        if self.model:
            body["model"] = self.model
        if self.api == "chat":
            body["messages"] = list(messages)
        else:
            body["prompt"] = "\n\n".join(message["content"] for message in messages)
        return body | dict(self.extra)

    async def ask(self, messages: Sequence[Message], max_tokens: int) -> Sample:
        """Send one request and read its stream. An error is a sample too."""
        tape = Tape()
        try:
            await self.client.stream(self.base + _PATHS[self.api], self.body(messages, max_tokens), tape)
            return read_sample(tape)
        except (LoadError, OSError) as error:
            began = tape.sent or tape.ended
            return Sample(began, tape.ended - began, error=str(error) or type(error).__name__)


def base_path(url: str) -> str:
    """The path before /chat/completions: the URL's own if it has one, else /v1."""
    path = urlsplit(url).path.rstrip("/")
    for ending in _PATHS.values():
        path = path.removesuffix(ending)
    return path or "/v1"


def read_sample(tape: Tape) -> Sample:
    """Decode a whole stream. Raises LoadError for an error in it, and for a stream without any text."""
    times: list[float] = []
    texts: list[str] = []
    usage: Mapping[str, object] = {}
    for now, chunk in _chunks(tape):
        if text := _text(chunk):
            times.append(now)
            texts.append(text)
        if isinstance(found := chunk.get("usage"), dict):
            usage = found
    if not times:
        raise LoadError("the stream has no text; with --api completions or chat the server may give the other one")
    return Sample(
        began=tape.sent,
        latency=tape.ended - tape.sent,
        ttft=times[0] - tape.sent,
        gaps=tuple(later - earlier for earlier, later in pairwise(times)),
        n_prompt=_count(usage.get("prompt_tokens")),
        n_output=_count(usage.get("completion_tokens")) or len(times),
        text="".join(texts),
    )


def _chunks(tape: Tape) -> Iterator[tuple[float, Mapping[str, object]]]:
    """The JSON object of every data frame with its time. Comments and other fields are not looked at."""
    for now, frame in zip(tape.times, tape.frames, strict=True):
        for line in frame.split(b"\n"):
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if not data or data == b"[DONE]":
                continue
            try:
                chunk = json.loads(data)
            except ValueError:
                raise LoadError(f"the stream has data that is no JSON: {data[:80]!r}") from None
            if not isinstance(chunk, dict) or chunk.get("error"):
                raise LoadError(f"the stream has an error: {data[:300].decode(errors='replace')}")
            yield now, chunk


def _text(chunk: Mapping[str, object]) -> str:
    """The text of a chunk of either API; reasoning counts as text."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    parts = choice.get("delta") or choice if isinstance(choice, dict) else {}
    found = [parts.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
    return "".join(text for text in found if isinstance(text, str))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
