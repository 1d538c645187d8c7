"""Whatever a client sends, it gets the right status and one JSON error, and nothing is computed for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from urllib.parse import unquote

import pytest

from tests.fakes import FakeBackend
from tests.server.conftest import ENDS_AT
from tests.server.site import CHAT, MESSAGES, Site, error_of, fake_runtime

COMPLETIONS = ("/completion", "/v1/completions", CHAT)
POSTS = (*COMPLETIONS, "/tokenize", "/detokenize", "/apply-template", CHAT + "/input_tokens")
N_CTX = 256


@pytest.fixture(autouse=True)
def _nothing_is_computed(site: Site, backend: FakeBackend) -> Iterator[None]:
    before = len(backend.decodes)
    yield
    assert len(backend.decodes) == before, "a bad request was computed"


def good(path: str) -> dict[str, object]:
    """A body that the route would take."""
    if "chat" in path or "template" in path:
        return {"messages": MESSAGES}
    return {"prompt": "hi", "content": "hi", "tokens": [1]}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   ",
        b"[]",
        b'"x"',
        b"null",
        b"12",
        b'{"prompt": "hi"',
        b'{"prompt": "hi"}}',
        b"\xff\xfe{",
        b'{"prompt": "\xff"}',
        b'{"prompt": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e400}',
        b'{"unknown": [[-1e999]]}',
        b'{"seed": ' + b"1" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"messages":' * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"prompt=hi&n=2",
        b"<xml/>",
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_a_body_that_is_no_json_object(site: Site, path: str, raw: bytes) -> None:
    error = error_of(site.post(path, raw), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", COMPLETIONS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", [1]),
        ("temperature", True),
        ("top_k", "40"),
        ("top_k", 1.5),
        ("top_p", {}),
        ("seed", -2),
        ("seed", 2**64),
        ("seed", 10**300),
        ("max_tokens", -2),
        ("max_tokens", 2**40),
        ("n_predict", "many"),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1e30),
        ("frequency_penalty", 1e30),
        ("dynatemp_exponent", -1),
        ("mirostat_tau", 1e300),
        ("min_keep", -1),
        ("min_keep", 2**40),
        ("repeat_last_n", 2**31 - 1),
        ("dry_penalty_last_n", 2**31 - 1),
        ("dry_sequence_breakers", []),
        ("samplers", ["no-such-sampler"]),
        ("samplers", "?"),
        ("stop", [1]),
        ("stop", {"a": "b"}),
        ("stop", "x" * 10_000),
        ("stream", "true"),
        ("n", 0),
        ("n", 1000),
        ("n", -1),
        ("id_slot", 4),
        ("id_slot", -7),
        ("priority", 9),
        ("logit_bias", [[10**6, 1]]),
        ("logit_bias", {"-3": 1}),
        ("logit_bias", {"1": "much"}),
        ("logit_bias", 5),
        ("stream_options", "usage"),
        ("t_max_predict_ms", -5),
        ("sse_ping_interval", 2**40),
        ("grammar", 'root ::= "a'),
    ],
)
def test_a_field_that_is_wrong_is_named(site: Site, path: str, field: str, value: object) -> None:
    error = error_of(site.post(path, {**good(path), field: value}), 400)
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (7, "prompt"),
        ([], "prompt"),
        ([[], []], "prompt"),
        ([1, 2, -1], "prompt[2]"),
        ([1, 2**31], "prompt[1]"),
        ([1, 2**80], "prompt[1]"),
        (["a", [259]], "prompt[1][0]"),
        ([[[1]]], "prompt[0][0]"),
        ({"text": "hi"}, "prompt.prompt_string"),
    ],
)
def test_a_prompt_that_is_none_is_named(site: Site, path: str, prompt: object, param: str, stream: bool) -> None:
    error = error_of(site.post(path, {"prompt": prompt, "stream": stream}), 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"content": [1, 10**6]}, "content[1]"),
        ("/tokenize", {"content": {"a": 1}}, "content"),
        ("/tokenize", {"content": "a", "add_special": "x"}, "add_special"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [259]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_ids_and_texts_that_are_none_are_named(site: Site, path: str, body: dict[str, object], param: str) -> None:
    assert error_of(site.post(path, body), 400)["param"] == param


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/apply-template", CHAT + "/input_tokens"])
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("hi", "messages"),
        ([7], "messages[0]"),
        ([{"role": "wizard", "content": "hi"}], "messages[0].role"),
        ([{"role": 7, "content": "hi"}], "messages[0].role"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "hi"}}], "messages[0].content"),
        ([*MESSAGES, {"role": "user", "content": [{"type": "text"}]}], "messages[1].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
    ],
)
def test_messages_that_are_none_are_named(site: Site, path: str, messages: object, param: str) -> None:
    assert error_of(site.post(path, {"messages": messages}), 400)["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", COMPLETIONS)
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(site: Site, path: str, stream: bool) -> None:
    long = "x" * 300
    body = {"messages": [{"role": "user", "content": long}]} if path == CHAT else {"prompt": long}
    error = error_of(site.post(path, {**body, "stream": stream}), 400)
    assert error["type"] == "exceed_context_size_error"
    n_prompt = error["n_prompt_tokens"]
    assert isinstance(n_prompt, int)
    assert n_prompt > 300
    assert error["n_ctx"] == N_CTX
    assert str(n_prompt) in str(error["message"])
    assert str(N_CTX) in str(error["message"])


def test_a_prompt_that_fills_the_context_exactly_is_too_long(site: Site) -> None:
    assert error_of(site.post("/completion", {"prompt": [1] * N_CTX}), 400)["n_prompt_tokens"] == N_CTX


def test_one_prompt_of_several_that_is_too_long_ends_all() -> None:
    with FakeBackend(n_ctx=N_CTX) as backend, Site(runtime=fake_runtime(backend)) as site:
        error = error_of(site.post("/completion", {"prompt": ["fine", [1] * N_CTX], "n_predict": -1}), 400)
        assert error["type"] == "exceed_context_size_error"
        assert not any(slot.busy for slot in site.view().slots)


def test_an_empty_text_is_no_prompt_for_a_model_that_puts_nothing_in_front() -> None:
    with FakeBackend() as backend, Site(runtime=fake_runtime(backend)) as site:
        assert error_of(site.post("/completion", {"prompt": ""}), 400)["param"] == "prompt"
        assert backend.decodes == []


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(site: Site) -> Iterator[int]:
    before, site.app.state.body_limit = site.app.state.body_limit, 1 << 20
    yield 1 << 20
    site.app.state.body_limit = before


@pytest.mark.parametrize("path", POSTS)
def test_a_body_over_the_limit_is_refused_before_it_is_read(site: Site, small_limit: int, path: str) -> None:
    error = error_of(site.post(path, b" " * (small_limit + 1)), 413)
    assert error["type"] == "invalid_request_error"
    assert "1 MiB" in str(error["message"])


def test_a_body_of_unknown_length_is_refused_as_soon_as_it_is_too_long(site: Site, small_limit: int) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1 << 16
            yield b" " * (1 << 16)

    error_of(site.post("/completion", endless), 413)
    assert sent < 2 * small_limit


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999999999999999"])
def test_a_length_that_is_a_lie_does_no_harm(site: Site, small_limit: int, length: str) -> None:
    response = site.post("/tokenize", b"{}", content_length=length)
    if length.isdecimal():
        error_of(response, 413)
    else:
        assert response.json() == {"tokens": []}


def test_a_body_at_the_limit_is_read(site: Site, small_limit: int) -> None:
    body = json.dumps({"content": "a"}).encode()
    assert site.post("/tokenize", body + b" " * (small_limit - len(body))).json() == {"tokens": [97]}


# -- paths and methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/chat", "/v1/completions/", "/%2e%2e/etc/passwd", "/ü"])
def test_an_unknown_path(site: Site, path: str, method: str) -> None:
    error = error_of(site.request(method, path), 404)
    assert error["type"] == "not_found_error"
    assert str(error["message"]).startswith(f"there is no {unquote(path)}; ")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", CHAT),
        (CHAT + "/", CHAT),
        ("//v1/chat/completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/embedding", "/v1/embeddings"),
    ],
)
def test_an_unknown_path_that_is_almost_one(site: Site, path: str, meant: str) -> None:
    error = error_of(site.post("http://test" + path, {"messages": MESSAGES}), 404)
    assert error["message"] == f"there is no {path}; did you mean {meant}?"


def test_a_long_unknown_path_is_not_quoted_in_full(site: Site) -> None:
    error = error_of(site.get("/" + "a" * 5_000), 404)
    assert error["message"] == f"there is no /{'a' * 99}; /docs lists what there is"


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_a_known_path_with_another_method(site: Site, path: str, method: str) -> None:
    response = site.request(method, path)
    error = error_of(response, 405)
    assert (error["type"], error["message"]) == ("invalid_request_error", f"{path} does not take {method}; use POST")
    assert response.headers["allow"] == "POST"


def test_a_model_that_is_not_served(site: Site) -> None:
    assert error_of(site.get("/v1/models/gpt-4o"), 404)["type"] == "not_found_error"


# -- the template ------------------------------------------------------------------------------------------------------


def test_a_template_that_refuses_a_conversation_is_quoted(backend: FakeBackend) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with Site(runtime=fake_runtime(FakeBackend(), template=template)) as site:
        error = error_of(site.post(CHAT, {"messages": MESSAGES}), 400)
        assert "roles must alternate" in str(error["message"])
        assert error_of(site.post(CHAT, {"messages": MESSAGES, "stream": True}), 400) == error


def test_the_good_requests_of_this_file_are_good(site: Site, backend: FakeBackend) -> None:
    before = len(backend.decodes)
    for path in POSTS:
        assert site.post(path, good(path)).status_code == 200
    assert len(backend.decodes) > before
    assert site.post("/completion", {"prompt": "hi"}).json()["tokens_cached"] == ENDS_AT
    del backend.decodes[before:]
