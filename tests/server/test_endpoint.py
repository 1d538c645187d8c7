"""The one path of all completions: whole and streamed answers, a full queue, errors before and after the start."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from minka.params import ServerParams
from minka.server.listen import MAX_HEAD
from tests.fakes import WAIT, FakeBackend, scripted, tokens_of
from tests.server.site import CHAT, MESSAGES, Connection, Live, Site, error_of, events, fake_runtime

HELLO = {"prompt": "say", "temperature": 0}
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def hello_backend(**options: object) -> FakeBackend:
    """A backend that answers "hello" to the prompts above, one letter a token."""
    return FakeBackend(scripted({"say": "hello", PROMPT: "hello"}), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hello() -> Iterator[Site]:
    with hello_backend() as backend, Site(runtime=fake_runtime(backend)) as site:
        yield site


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with hello_backend() as backend, Live(fake_runtime(backend)) as made:
        yield made


def frames_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return [frame.removeprefix("data: ") for frame in text.removesuffix("\n\n").split("\n\n")]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_each_api_gives_the_same_text(hello: Site) -> None:
    assert hello.post("/completion", HELLO).json()["content"] == "hello"
    assert hello.post("/v1/completions", HELLO).json()["choices"][0]["text"] == "hello"
    answer = hello.post(CHAT, {"messages": MESSAGES, "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len("hello") + 1  # the end token is one


def test_a_stream_says_the_same_as_a_whole_answer(hello: Site) -> None:
    response = hello.post(CHAT, {"messages": MESSAGES, "temperature": 0, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    frames = frames_of(response.text)
    assert frames[-1] == "[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "hello"
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [
        "stop"
    ]


def test_several_choices_are_told_apart_in_one_stream(hello: Site) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [json.loads(frame) for frame in frames_of(hello.post(CHAT, body).text)[:-1]]
    texts = {0: "", 1: "", 2: ""}
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content") or ""
    assert texts == dict.fromkeys(range(3), "hello")
    assert chunks[-1]["usage"]["prompt_tokens"] == len(PROMPT)
    assert chunks[-1]["usage"]["completion_tokens"] == 18


def test_the_native_stream_ends_without_done(hello: Site) -> None:
    frames = [json.loads(frame) for frame in frames_of(hello.post("/completion", {**HELLO, "stream": True}).text)]
    assert "".join(frame["content"] for frame in frames) == "hello"
    assert [frame["stop"] for frame in frames] == [False] * 6 + [True]


def test_a_stop_string_never_shows(hello: Site) -> None:
    for stream in (False, True):
        text = hello.post("/completion", {**HELLO, "stop": ["lo"], "stream": stream}).text
        frames = [json.loads(frame) for frame in frames_of(text)] if stream else [json.loads(text)]
        assert "".join(frame["content"] for frame in frames) == "hel"
        assert (frames[-1]["stop_type"], frames[-1]["stopping_word"]) == ("word", "lo")


def test_half_a_character_never_shows() -> None:
    with FakeBackend(scripted({"say": "€€"})) as backend, Site(runtime=fake_runtime(backend)) as site:
        frames = frames_of(site.post("/completion", {**HELLO, "stream": True}).text)
        assert [json.loads(frame)["content"] for frame in frames] == ["", "", "€", "", "", "€", "", ""]


def test_a_second_request_reuses_the_prompt_and_says_so(hello: Site) -> None:
    hello.post("/completion", HELLO)
    timings = hello.post("/completion", HELLO).json()["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (2, 1)
    timings = hello.post("/completion", {**HELLO, "cache_prompt": False}).json()["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (0, 3)


def test_no_tokens_asked_for_none_given(hello: Site) -> None:
    answer = hello.post("/completion", {**HELLO, "n_predict": 0}).json()
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")


# -- errors ------------------------------------------------------------------------------------------------------------


def failing_after(n: int) -> FakeBackend:
    """A backend whose numbers break when the answer to "say" has `n` tokens."""
    return hello_backend(nan=lambda tokens: len(tokens) == 3 + n and tuple(tokens[:3]) == tokens_of("say"))


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_is_plain_json(path: str, stream: bool) -> None:
    with failing_after(0) as backend, Site(runtime=fake_runtime(backend)) as site:
        error = error_of(site.post(path, {**HELLO, "stream": stream}), 500)
        assert error["type"] == "server_error"


def test_an_error_of_a_whole_answer_is_plain_json_however_late() -> None:
    with failing_after(3) as backend, Site(runtime=fake_runtime(backend)) as site:
        error_of(site.post("/completion", HELLO), 500)
        assert not any(slot.busy for slot in site.view().slots)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_an_error_after_the_start_is_the_last_frame_and_there_is_no_done(path: str) -> None:
    with failing_after(3) as backend, Live(fake_runtime(backend)) as live, live.connect() as client:
        backend.gate.let(1)
        answer = client.post(path, **HELLO, stream=True)
        assert answer.status == 200
        backend.gate.let(1)
        frames = [json.loads(frame) for frame in _freed(events(answer), backend)]
        assert 1 < len(frames) <= 4
        assert all("error" not in frame for frame in frames[:-1])
        assert list(frames[-1]) == ["error"]
        assert (frames[-1]["error"]["code"], frames[-1]["error"]["type"]) == (500, "server_error")


def _freed(frames: Iterator[str], backend: FakeBackend) -> Iterator[str]:
    """The frames; the backend is let go once the first of them was seen."""
    yield next(frames)
    backend.gate.open()
    yield from frames


def test_one_choice_that_fails_ends_the_others() -> None:
    with failing_after(2) as backend, Site(runtime=fake_runtime(backend)) as site:
        error_of(site.post("/completion", {"prompt": ["say", "another"], "temperature": 0}), 500)
        assert not any(slot.busy for slot in site.view().slots)


# -- a full queue ------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_told_at_once_and_when_to_come_again() -> None:
    with hello_backend(n_seq_max=1) as backend, Live(fake_runtime(backend, queue_size=1)) as live:
        backend.gate.close()
        with live.connect() as first, live.connect() as second, httpx.Client(base_url=live.url) as client:
            first.send("/completion", **HELLO)
            backend.gate.wait_held()
            second.send("/completion", **HELLO)
            while live.runtime.engine.n_open < 2:
                client.get("/health")
            for stream in (False, True):
                response = client.post("/completion", json={**HELLO, "stream": stream})
                error = error_of(response, 429)
                assert error["type"] == "rate_limit_error"
                assert int(response.headers["retry-after"]) >= 1
            backend.gate.open()
            for waiting in (first, second):
                assert json.loads(waiting.answer().read())["content"] == "hello"
            assert client.post("/completion", json=HELLO).json()["content"] == "hello"


def test_choices_that_find_no_place_take_back_those_that_did() -> None:
    with hello_backend(n_seq_max=2) as backend, Site(runtime=fake_runtime(backend, queue_size=0)) as site:
        backend.gate.close()  # no choice may end before the last one asks for a place
        error_of(site.post("/completion", {"prompt": ["say", "b", "c"]}), 429)
        backend.gate.open()
        assert not any(slot.busy for slot in site.view().slots)
        assert site.post("/completion", HELLO).json()["content"] == "hello"


# -- over a connection -------------------------------------------------------------------------------------------------


def test_frames_come_as_they_are_made() -> None:
    with hello_backend() as backend, Live(fake_runtime(backend)) as live, live.connect() as client:
        backend.gate.close()
        client.send("/completion", **HELLO, stream=True)
        backend.gate.wait_held()
        backend.gate.let(1)
        frames = events(client.answer())
        for letter in "hello":
            assert json.loads(next(frames))["content"] == letter
            backend.gate.let(1)
        backend.gate.open()
        assert [json.loads(frame)["stop"] for frame in frames] == [False, True]


def test_a_connection_is_good_for_more_after_each_kind_of_answer(live: Live) -> None:
    with live.connect() as client:
        port: int | None = None
        for body, status in (
            ({**HELLO, "stream": True}, 200),
            ({"prompt": None}, 400),
            (HELLO, 200),
            ({**HELLO, "stream": True, "n": 2}, 200),
        ):
            answer = client.post("/completion", **body)
            assert answer.status == status
            assert answer.read()
            assert port in (None, client.local_port), "the connection was replaced"
            port = client.local_port


def test_a_connection_is_good_for_more_after_an_error_in_a_stream() -> None:
    with failing_after(2) as backend, Live(fake_runtime(backend)) as live, live.connect() as client:
        assert b'"error"' in client.post("/completion", **HELLO, stream=True).read()
        port = client.local_port
        assert client.post("/v1/completions", prompt="other", max_tokens=1).status == 200
        assert client.local_port == port


def test_silence_is_filled_with_comments() -> None:
    with hello_backend() as backend, Live(fake_runtime(backend)) as live, live.connect() as client:
        backend.gate.close()
        answer = client.post(CHAT, messages=MESSAGES, temperature=0, stream=True, sse_ping_interval=1)
        assert answer.status == 200
        frames = events(answer)
        assert next(frames) == ":"
        backend.gate.open()
        rest = [frame for frame in frames if frame != ":"]
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[0])["choices"][0]["delta"]["role"] == "assistant"


def test_many_streams_at_once_do_not_mix(live: Live) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> str:
        body = {"prompt": f"prompt {number}", "temperature": 0, "n_predict": 40, "stream": number % 2 == 0}
        text = (await client.post("/completion", json=body)).text
        frames = [json.loads(frame) for frame in frames_of(text)] if body["stream"] else [json.loads(text)]
        return "".join(frame["content"] for frame in frames)

    async def all_of(numbers: range) -> list[str]:
        async with httpx.AsyncClient(base_url=live.url, timeout=30) as client:
            return await asyncio.gather(*(one(client, number) for number in numbers))

    together = asyncio.run(all_of(range(12)))
    alone = [asyncio.run(all_of(range(number, number + 1)))[0] for number in range(12)]
    assert together == alone
    assert len(set(together)) > 9


def test_the_body_limit_holds_on_a_connection() -> None:
    backend = hello_backend()
    with backend, Live(fake_runtime(backend), ServerParams(body_limit=1)) as live, httpx.Client() as client:
        url = f"{live.url}/tokenize"
        assert error_of(client.post(url, content=b" " * (1 << 20) + b"{}"), 413)
        assert error_of(client.post(url, content=(b" " * 65536 for _ in range(17))), 413)
        assert client.post(url, json={"content": "a"}).json() == {"tokens": [97]}


@pytest.mark.parametrize("piece", [b"a" * 65_536, b"X-A: a\r\n" * 8192], ids=["one header", "many headers"])
@pytest.mark.parametrize("begin", [b"GET /health", b"GET /health HTTP/1.1\r\nX-B: "], ids=["line", "header"])
def test_a_head_without_end_is_not_kept(live: Live, begin: bytes, piece: bytes) -> None:
    """It comes before any key is looked at."""
    address = urlsplit(live.url)
    with socket.create_connection((address.hostname, address.port), WAIT) as connection:
        connection.sendall(begin)
        with suppress(ConnectionError):
            for _ in range(2 * MAX_HEAD // len(piece)):
                connection.sendall(piece)
            assert connection.recv(12) == b"HTTP/1.1 400"
    with live.connect() as other:
        assert other.post("/completion", prompt="hi", n_predict=1).status == 200


def test_a_head_of_a_usual_size_is_read_in_pieces(live: Live) -> None:
    address = urlsplit(live.url)
    with socket.create_connection((address.hostname, address.port), WAIT) as connection:
        for piece in (b"GET /hea", b"lth HTTP/1.1\r\nX-A: ", *[b"a" * 10_000] * 10, b"\r\n\r\n"):
            connection.sendall(piece)
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_connection_that_says_nothing_sensible_does_no_harm(live: Live) -> None:
    with Connection(live.url) as client:
        client._http.connect()
        client._http.sock.sendall(b"\x00\x01 nonsense\r\n\r\n")
        assert client._http.sock.recv(100).startswith(b"HTTP/1.1 400 ")
    with httpx.Client(base_url=live.url) as other:
        assert other.get("/health").json() == {"status": "ok"}
