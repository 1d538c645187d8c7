"""Anthropic's Messages over HTTP: its envelope of errors wherever they come from, its signs of life, its headers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from minka.params import ServerParams
from tests.fakes import WAIT, FakeBackend, eos_after, hashed
from tests.protocols.vendor import anthropic_events, anthropic_message, parsed
from tests.server.site import CHAT, MESSAGES, Live, Site, fake_runtime

MESSAGES_PATH, COUNT_PATH = "/v1/messages", "/v1/messages/count_tokens"
BODY = {"model": "m", "max_tokens": 20, "messages": MESSAGES, "temperature": 0}


@pytest.fixture
def live() -> Iterator[Live]:
    backend = FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=256)
    with backend, Live(fake_runtime(backend)) as made:
        yield made
        backend.gate.open()


def error_of(response: httpx.Response, status: int, kind: str) -> str:
    """The message of an error that must be Anthropic's."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["type", "error", "request_id"]
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    message = body["error"]["message"]
    assert isinstance(message, str)
    return message


def test_a_message_whole_and_streamed(live: Live) -> None:
    with httpx.Client(base_url=live.url, timeout=WAIT, headers={"anthropic-version": "2023-06-01"}) as client:
        whole = client.post(MESSAGES_PATH + "?beta=true", json=BODY)
        anthropic_message(whole.json())
        assert whole.headers["request-id"]
        told = anthropic_events(parsed(client.post(MESSAGES_PATH, json={**BODY, "stream": True}).content))
    pieces = [event["delta"]["text"] for event in told if event["type"] == "content_block_delta"]  # type: ignore[index]
    assert "".join(pieces) == whole.json()["content"][0]["text"]


def test_the_second_request_reads_from_the_cache(live: Live) -> None:
    with httpx.Client(base_url=live.url, timeout=WAIT) as client:
        first = client.post(MESSAGES_PATH, json=BODY).json()["usage"]
        second = client.post(MESSAGES_PATH, json=BODY).json()["usage"]
        n = client.post(COUNT_PATH, json={"messages": MESSAGES}).json()["input_tokens"]
    assert first["input_tokens"] == n
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > 0
    assert second["input_tokens"] + second["cache_read_input_tokens"] == n


@pytest.mark.parametrize("path", [MESSAGES_PATH, COUNT_PATH])
def test_errors_of_requests(site: Site, path: str) -> None:
    assert "messages: Field required" in error_of(site.post(path, {"max_tokens": 1}), 400, "invalid_request_error")
    assert "JSON" in error_of(site.post(path, b"{"), 400, "invalid_request_error")
    assert error_of(site.get(path), 405, "invalid_request_error")
    assert error_of(site.post(path + "/nowhere", BODY), 404, "not_found_error")


def test_images_say_that_there_are_none(site: Site) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    body = {**BODY, "messages": [{"role": "user", "content": [image]}]}
    assert "image input is not supported" in error_of(site.post(MESSAGES_PATH, body), 400, "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(site: Site, stream: bool) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "x" * 500}], "stream": stream}
    assert "context size" in error_of(site.post(MESSAGES_PATH, body), 400, "invalid_request_error")


def test_keys() -> None:
    backend = FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=256)
    with Site(ServerParams(api_key=("k",)), fake_runtime(backend)) as site:
        assert error_of(site.post(MESSAGES_PATH, BODY), 401, "authentication_error")
        assert error_of(site.post(COUNT_PATH, BODY, x_api_key="wrong"), 401, "authentication_error")
        assert site.post(MESSAGES_PATH, BODY, x_api_key="k").status_code == 200
        assert site.post(MESSAGES_PATH, BODY, authorization="Bearer k").status_code == 200
        assert "request_id" not in site.post(CHAT, {}).json(), "other APIs keep their own shape"


def test_a_server_that_loads_is_overloaded() -> None:
    with Site() as site:
        assert error_of(site.post(MESSAGES_PATH, BODY), 529, "overloaded_error")
        assert site.post(CHAT, {}).status_code == 503


def test_a_body_that_is_too_large() -> None:
    backend = FakeBackend(n_ctx=256)
    with Site(ServerParams(body_limit=1), fake_runtime(backend)) as site:
        assert error_of(site.post(MESSAGES_PATH, b" " * (2 << 20)), 413, "request_too_large")


def test_a_full_queue() -> None:
    backend = FakeBackend(n_ctx=256, n_seq_max=1)
    with backend, Live(fake_runtime(backend, queue_size=0)) as live:
        backend.gate.close()
        with live.connect() as first:
            first.send(MESSAGES_PATH, **BODY)
            backend.gate.wait_held()
            refused = httpx.post(live.url + MESSAGES_PATH, json=BODY, timeout=WAIT)
            backend.gate.open()
    error_of(refused, 429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 0


def test_an_error_in_the_midst_of_a_stream() -> None:
    def breaks(chunks: object) -> bool:
        return len(backend.decodes) > 8

    backend = FakeBackend(hashed(b"abcdefgh "), n_ctx=256, fail=breaks)
    with backend, Live(fake_runtime(backend)) as live:
        told = httpx.post(live.url + MESSAGES_PATH, json={**BODY, "stream": True}, timeout=WAIT)
    *before, last = parsed(told.content)
    assert before[0]["type"] == "message_start"
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"  # type: ignore[index]
    assert last["request_id"] == told.headers["request-id"]


def test_silence_is_broken_by_pings() -> None:
    backend = FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=256)
    with backend, Live(fake_runtime(backend)) as live:
        backend.gate.close()
        with live.connect() as client:
            answer = client.post(MESSAGES_PATH, **BODY, stream=True, sse_ping_interval=1)
            head = [answer.readline(), answer.readline()]
            backend.gate.open()
            rest = answer.read()
    assert head == [b"event: ping\n", b'data: {"type":"ping"}\n']
    assert b"message_start" in rest
