from __future__ import annotations

from dataclasses import replace

import pytest

from minka.errors import NativeError, QueueFullError
from minka.protocols.exchange import Lasting
from minka.protocols.responses import count_input_tokens, decode
from minka.protocols.responses_store import ResponseStore
from minka.types import Failed, FinishReason, Started, Token
from tests.protocols.values import Play, made_served, probs, timings
from tests.protocols.vendor import Json, openai_events, openai_response, stream_of, whole_of


@pytest.fixture
def store() -> ResponseStore:
    return ResponseStore()


def whole(store: ResponseStore | None = None, /, play: Play | None = None, **fields: object) -> Json:
    served = replace(made_served(), responses=store.of("") if store else None)
    body = whole_of(decode({"input": "hi", **fields}, served), play or Play())
    openai_response(body)
    assert isinstance(body, dict)
    return body


def events(store: ResponseStore | None = None, /, play: Play | None = None, **fields: object) -> list[Json]:
    served = replace(made_served(), responses=store.of("") if store else None)
    return openai_events(stream_of(decode({"input": "hi", "stream": True, **fields}, served), play or Play()))


def test_a_whole_response() -> None:
    body = whole(play=Play(cache_n=3), metadata={"a": "b"})
    n_prompt = len(decode({"input": "hi"}, made_served()).jobs[0].prompt)
    assert str(body["id"]).startswith("resp_")
    assert body["status"] == "completed"
    assert body["completed_at"]
    assert body["metadata"] == {"a": "b"}
    assert openai_response(body).output_text == "Hello"
    assert body["usage"] == {
        "input_tokens": n_prompt,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": n_prompt + 2,
    }


def test_a_stream() -> None:
    told = events()
    assert [str(event["type"]).removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    last = told[-1]["response"]
    assert isinstance(last, dict)
    assert last["output"] == [told[-2]["item"]]
    assert last["status"] == "completed"
    assert last["usage"]["output_tokens"] == 2
    assert last["id"] == told[0]["response"]["id"]  # type: ignore[index]


def test_a_token_limit_leaves_it_incomplete() -> None:
    play = Play(reason=FinishReason.LIMIT)
    body = whole(play=play)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"  # type: ignore[index]
    assert events(play=play)[-1]["type"] == "response.incomplete"


def test_llama_servers_telemetry() -> None:
    told = events(play=Play(progress=(4, 52)), return_progress=True, timings_per_token=True)
    progress = [event for event in told if "prompt_progress" in event]
    assert [event["type"] for event in progress] == ["response.in_progress"] * 2
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert all("predicted_per_second" in event["timings"] for event in deltas)  # type: ignore[operator]
    assert "timings" in told[-1]


def test_who_asks_for_llama_servers_telemetry_gets_its_one_end() -> None:
    last = events(play=Play(reason=FinishReason.LIMIT), timings_per_token=True)[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["status"] == "incomplete"  # type: ignore[index]


def test_log_probabilities() -> None:
    play = Play(("A", "B"), logprobs=(probs("A", "x", "y"), probs("B", "z")))
    body = whole(play=play, top_logprobs=1)
    entries = body["output"][0]["content"][0]["logprobs"]  # type: ignore[index]
    assert [entry["token"] for entry in entries] == ["A", "B"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [1, 1]
    told = events(play=play, top_logprobs=1)
    streamed = [event["logprobs"] for event in told if event["type"] == "response.output_text.delta"]
    assert [entry for each in streamed for entry in each] == entries  # type: ignore[attr-defined]
    assert whole(play=play)["output"][0]["content"][0]["logprobs"] == []  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_to_be_kept_is_and_the_next_goes_on_from_it(store: ResponseStore, stream: bool) -> None:
    body = events(store)[-1]["response"] if stream else whole(store)
    assert isinstance(body, dict)
    kept = store.get(body["id"], "")
    assert kept is not None
    assert kept.body == body
    assert kept.input[0]["content"] == [{"type": "input_text", "text": "hi"}]
    served = replace(made_served(), responses=store.of(""))
    after = decode({"input": "more", "previous_response_id": body["id"]}, served)
    spelled = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nmore"
    text = served.tokenizer.detokenize(after.jobs[0].prompt, special=True).decode()
    assert spelled in text


def test_what_is_not_to_be_kept_is_not(store: ResponseStore) -> None:
    body = whole(store, store=False)
    assert body["store"] is False
    assert store.get(str(body["id"]), "") is None


def test_a_failure_in_a_stream(store: ResponseStore) -> None:
    served = replace(made_served(), responses=store.of(""))
    exchange = decode({"input": "hi", "stream": True}, served)
    id = exchange.jobs[0].id
    error = NativeError("llama_decode gave up")
    told = openai_events(
        stream_of(exchange, [Started(id, 0, 5, 0), Token(id, 0, 65, "He", timings(1)), Failed(id, error)])
    )
    assert told[-1]["type"] == "response.failed"
    last = told[-1]["response"]
    assert isinstance(last, dict)
    assert last["error"] == {"code": "server_error", "message": "llama_decode gave up"}
    assert store.get(last["id"], "").body["status"] == "failed"  # type: ignore[union-attr]


def test_in_the_background(store: ResponseStore) -> None:
    served = replace(made_served(), responses=store.of(""))
    exchange = decode({"input": "hi", "background": True}, served)
    assert isinstance(exchange, Lasting)
    assert exchange.background

    def status() -> object:
        return store.get(exchange.id, "").body["status"]  # type: ignore[union-attr]

    accepted = exchange.accepted()
    openai_response(accepted)
    assert status() == "queued"
    first, *rest = Play().events(exchange.jobs[0])
    exchange.add(first)
    assert status() == "in_progress"
    for event in rest:
        exchange.add(event)
    exchange.whole()
    assert status() == "completed"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(None, "cancelled", None), (QueueFullError("full"), "failed", "rate_limit_exceeded")],
)
def test_what_breaks_in_the_background(
    store: ResponseStore, error: QueueFullError | None, status: str, code: str | None
) -> None:
    exchange = decode({"input": "hi", "background": True}, replace(made_served(), responses=store.of("")))
    exchange.broken(error)
    kept = store.get(exchange.id, "")
    assert kept is not None
    openai_response(kept.body)
    assert kept.body["status"] == status
    assert (kept.body["error"] or {}).get("code") == code  # type: ignore[attr-defined]


def test_truncation_leaves_the_beginning_out() -> None:
    served = made_served(n_ctx=400)
    turns = [{"role": role, "content": f"{n} " * 20} for n in range(8) for role in ("user", "assistant")]
    body = {"input": [*turns, {"role": "user", "content": "last"}], "instructions": "Be brief."}
    long = decode(body, served).jobs[0].prompt
    assert len(long) > 400
    short = decode({**body, "truncation": "auto"}, served).jobs[0].prompt
    assert len(short) <= 300
    text = served.tokenizer.detokenize(short, special=True).decode()
    assert "Be brief." in text
    assert "last" in text
    assert "0 0" not in text
    longer = decode({**body, "truncation": "auto", "max_output_tokens": 10}, served).jobs[0].prompt
    assert len(short) < len(longer) <= 390


def test_what_cannot_be_cut_short_enough_is_left_to_the_engine_to_refuse() -> None:
    served = made_served(n_ctx=100)
    body = {"input": "x" * 500, "truncation": "auto"}
    assert len(decode(body, served).jobs[0].prompt) > 500


def test_counting() -> None:
    n = len(decode({"input": "hi"}, made_served()).jobs[0].prompt)
    assert count_input_tokens({"input": "hi"}, made_served()) == {
        "input_tokens": n,
        "object": "response.input_tokens",
    }
