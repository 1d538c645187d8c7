"""From a Tape to numbers: decodes the frames of one finished stream and checks them strictly.

A status, frame or count other than the one asked for is a LoadError, so that a wrong answer is never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from minka.tools.load_client import LoadError, Tape

Item = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stream:
    """One decoded stream. Times are seconds of the monotonic clock; `arrivals` has one per chunk that carries text.

    `n_prompt`, `n_cached` and `n_generated` are the server's own counts (0 for a stream that was cut off).
    """

    sent: float
    arrivals: tuple[float, ...]
    ended: float
    text: str
    n_prompt: int
    n_cached: int
    n_generated: int

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first chunk with text."""
        return self.arrivals[0] - self.sent

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one; needs at least two chunks that arrived at different times."""
        return (self.n_generated - 1) / (self.arrivals[-1] - self.arrivals[0])


def longest_gap(arrivals: Sequence[float], start: float, stop: float) -> float:
    """The longest silence of a stream between two moments, in seconds.

    A gap that was open at `start` counts whole; one still open at `stop` counts as far as `stop`.
    """
    before = [moment for moment in arrivals if moment <= start][-1:] or [start]
    points = [*before, *(moment for moment in arrivals if start < moment < stop), stop]
    return max(later - earlier for earlier, later in pairwise(points))


def items(tape: Tape) -> list[tuple[float, Item | None]]:
    """The JSON object of every data frame with its time; None stands for `[DONE]`.

    Raises LoadError for an error frame and for anything that is neither data nor a comment.
    """
    found: list[tuple[float, Item | None]] = []
    for now, frame in zip(tape.times, tape.frames, strict=True):
        if frame.startswith(b":"):
            continue
        if not frame.startswith(b"data: "):
            raise LoadError(f"not a data frame: {frame[:80]!r}")
        found.append((now, None if frame == b"data: [DONE]" else _object(frame[6:])))
    return found


def _object(data: bytes) -> Item:
    try:
        value = json.loads(data)
    except ValueError:
        raise LoadError(f"not JSON: {data[:80]!r}") from None
    if not isinstance(value, dict) or "error" in value:
        raise LoadError(f"error frame: {data[:300].decode(errors='replace')}")
    return value


def want(item: Item, key: str, kind: type[T]) -> T:
    """The member `key` of `item`. Raises LoadError when it is missing or of another type."""
    value = item.get(key)
    if not isinstance(value, kind):
        raise LoadError(f"{key!r} is {value!r}, not a {kind.__name__}")
    return value


def read_chat(tape: Tape, n_tokens: int) -> Stream:
    """Decode a whole stream of /v1/chat/completions that asked for usage.

    Raises LoadError unless it has exactly `n_tokens`, was ended by that limit, has usage and the final `[DONE]`.
    """
    found = items(tape)
    if not found or found[-1][1] is not None:
        raise LoadError("the stream has no final [DONE]")
    stream, finish, usage = _chat(tape, found)
    n_generated = want(usage, "completion_tokens", int)
    _check(n_generated, n_tokens, finish, "length")
    if not stream.arrivals:
        raise LoadError(f"{n_tokens} tokens without a single chunk of text")
    return stream


def read_cut_chat(tape: Tape) -> Stream:
    """Decode what came of a chat stream that the client cut off; its server counts are 0."""
    return _chat(tape, items(tape))[0]


def _chat(tape: Tape, found: Sequence[tuple[float, Item | None]]) -> tuple[Stream, object, Item]:
    arrivals: list[float] = []
    text: list[str] = []
    finish: object = None
    usage: Item = {}
    for now, item in found:
        if item is None:
            continue
        usage = want(item, "usage", dict) if item.get("usage") else usage
        for choice in want(item, "choices", list):
            delta = want(choice, "delta", dict)
            finish = choice.get("finish_reason") or finish
            if piece := delta.get("content") or delta.get("reasoning_content"):
                arrivals.append(now)
                text.append(str(piece))
    n_prompt, n_generated = (want(usage, f"{kind}_tokens", int) if usage else 0 for kind in ("prompt", "completion"))
    details = usage.get("prompt_tokens_details")
    n_cached = want(details, "cached_tokens", int) if isinstance(details, dict) else 0
    stream = Stream(tape.sent, tuple(arrivals), tape.ended, "".join(text), n_prompt, n_cached, n_generated)
    return stream, finish, usage


def read_completion(tape: Tape, n_tokens: int) -> Stream:
    """Decode a whole stream of llama-server's own /completion. Raises LoadError unless it has exactly `n_tokens`."""
    *parts, final = [(now, item) for now, item in items(tape) if item is not None] or [(0.0, Item())]
    last = final[1]
    if not want(last, "stop", bool) or any(want(item, "stop", bool) for _, item in parts):
        raise LoadError("the last frame, and only the last, should say stop")
    n_generated = want(last, "tokens_predicted", int)
    _check(n_generated, n_tokens, last.get("stop_type"), "limit")
    arrivals = tuple(now for now, _ in parts)
    if not arrivals:
        raise LoadError(f"{n_tokens} tokens without a single chunk")
    text = "".join(want(item, "content", str) for _, item in parts)
    n_cached = want(want(last, "timings", dict), "cache_n", int)
    return Stream(tape.sent, arrivals, tape.ended, text, want(last, "tokens_evaluated", int), n_cached, n_generated)


def _check(n_generated: int, n_tokens: int, finish: object, limit: str) -> None:
    if n_generated != n_tokens or finish != limit:
        raise LoadError(f"asked for {n_tokens} tokens up to {limit!r}, got {n_generated} and {finish!r}")
