from __future__ import annotations

import pytest

from minka.errors import (
    AuthenticationError,
    ContextSizeError,
    MinkaError,
    NotFoundError,
    QueueFullError,
    RequestError,
    TooLargeError,
    UnavailableError,
)
from minka.protocols.anthropic import ANTHROPIC, count_tokens, decode
from minka.protocols.route import discover
from minka.types import Event, FinishReason, Progress, Started
from tests.protocols.test_chat_tools import SERVED as HERMES
from tests.protocols.values import Play, at, made_served
from tests.protocols.vendor import anthropic_events, anthropic_message, stream_of, whole_of

SERVED = made_served()
BODY = {"model": "claude-any", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
MARKED = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]


def whole(play: Play | None = None, **fields: object) -> dict[str, object]:
    body = whole_of(decode({**BODY, **fields}, SERVED), play or Play())
    anthropic_message(body)
    assert isinstance(body, dict)
    return body


def events(play: Play | None = None, **fields: object) -> list[dict[str, object]]:
    return anthropic_events(stream_of(decode({**BODY, "stream": True, **fields}, SERVED), play or Play()))


def test_a_whole_message() -> None:
    body = whole()
    n_prompt = len(decode(BODY, SERVED).jobs[0].prompt)
    assert str(body["id"]).startswith("msg_")
    assert body["content"] == [{"type": "text", "text": "Hello"}]
    assert body["model"] == SERVED.model.name
    assert body["stop_reason"] == "end_turn"
    assert body["stop_sequence"] is None
    assert body["usage"] == {
        "input_tokens": n_prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 2,
    }


def test_a_stream() -> None:
    told = events(Play(cache_n=3, rest="!"))
    assert [event["type"] for event in told] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    n_prompt = len(decode(BODY, SERVED).jobs[0].prompt)
    start, end = told[0]["message"], told[-2]
    assert isinstance(start, dict)
    assert start["content"] == []
    assert start["stop_reason"] is None
    assert start["usage"] == {
        "input_tokens": n_prompt - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 0,
    }
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"] == {**start["usage"], "output_tokens": 2}


def test_a_run_that_is_started_again_and_its_progress_are_not_told_twice() -> None:
    exchange = decode({**BODY, "stream": True}, SERVED)
    id = exchange.jobs[0].id
    before: list[Event] = [Started(id, 0, 9, 0), Progress(id, 0, 9, 0, 4, 1.0)]
    told = stream_of(exchange, [*before, *Play().events(exchange.jobs[0])])
    assert [event["type"] for event in told].count("message_start") == 1


@pytest.mark.parametrize(
    ("play", "fields", "reason", "sequence"),
    [
        (Play(), {}, "end_turn", None),
        (Play(reason=FinishReason.LIMIT), {}, "max_tokens", None),
        (Play(reason=FinishReason.LIMIT), {"max_tokens": 100}, "model_context_window_exceeded", None),
        (Play(reason=FinishReason.WORD, stop_word="END"), {"stop_sequences": ["END"]}, "stop_sequence", "END"),
        (Play(reason=FinishReason.WORD, stop_word="<x>"), {"stop_sequences": ["END"]}, "end_turn", None),
    ],
)
def test_why_it_stopped(play: Play, fields: dict[str, object], reason: str, sequence: str | None) -> None:
    body = whole(play, **fields)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    assert events(play, **fields)[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_client_that_marks_its_cache_is_told_what_was_written() -> None:
    fields = {"messages": [{"role": "user", "content": MARKED}]}
    n_prompt = len(decode({**BODY, **fields}, SERVED).jobs[0].prompt)
    usage = whole(Play(cache_n=10), **fields)["usage"]
    assert isinstance(usage, dict)
    assert usage["cache_read_input_tokens"] == 10
    assert usage["input_tokens"] == 1
    assert usage["cache_creation_input_tokens"] == n_prompt - 11
    uncached = whole(Play(cache_n=0), cache_prompt=False, **fields)["usage"]
    assert isinstance(uncached, dict)
    assert uncached["cache_creation_input_tokens"] == 0


def test_counting_counts_what_a_request_would_read() -> None:
    n = len(decode(BODY, SERVED).jobs[0].prompt)
    assert count_tokens({"messages": BODY["messages"]}, SERVED) == {"input_tokens": n}
    assert count_tokens({"messages": BODY["messages"], "system": "Be brief."}, SERVED) != {"input_tokens": n}


def test_the_job() -> None:
    job = decode({**BODY, "stop_sequences": ["a"], "top_k": 3, "temperature": 0}, SERVED).jobs[0]
    assert job.n_predict == 2
    assert job.stop == ("a",)
    assert job.sampling.top_k == 3
    assert job.sampling.temperature == 0


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("x"), 400, "invalid_request_error"),
        (ContextSizeError(9, 8), 400, "invalid_request_error"),
        (AuthenticationError("x"), 401, "authentication_error"),
        (NotFoundError("x"), 404, "not_found_error"),
        (TooLargeError("x"), 413, "request_too_large"),
        (QueueFullError("x"), 429, "rate_limit_error"),
        (MinkaError("x"), 500, "api_error"),
        (UnavailableError("x"), 529, "overloaded_error"),
    ],
)
def test_errors(error: MinkaError, status: int, kind: str) -> None:
    body = ANTHROPIC.error(error, "req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": "req_1"}
    assert ANTHROPIC.status(error) == status
    assert ANTHROPIC.error_frame(body).startswith(b'event: error\ndata: {"type":"error"')


def test_both_routes_speak_so() -> None:
    found = {path: route for route in discover() for path in route.paths if path.startswith("/v1/messages")}
    assert sorted(found) == ["/v1/messages", "/v1/messages/count_tokens"]
    assert all(getattr(route, "wire", None) is ANTHROPIC for route in found.values())


@pytest.mark.parametrize(
    ("call", "reason"),
    [('{"name": "f", "arguments": {"a": 1}}', "tool_use"), ('{"name": "f", "arguments": {"a": nonsense}}', "end_turn")],
)
def test_a_call_that_turns_out_to_be_none_is_no_reason_in_a_stream_either(call: str, reason: str) -> None:
    body = {**BODY, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    play = Play(["<tool_call>\n", *call, "\n</tool_call>"])
    assert at(whole_of(decode(body, HERMES), play), "stop_reason") == reason
    told = anthropic_events(stream_of(decode({**body, "stream": True}, HERMES), play))
    assert at(told[-2], "delta", "stop_reason") == reason
