"""What every request passes: ids, keys, readiness, cross-origin headers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.errors import UsageError
from minka.params import ServerParams
from minka.server.app import build_app
from minka.server.auth import load_keys
from tests.fakes import FakeBackend
from tests.server.site import CHAT, MESSAGES, Live, Site, error_of, fake_runtime

PATHS = ("/v1/models", "/props", "/slots", "/nowhere", "/v1/models/x")


# -- request ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc-123", "x" * 128, "a/b:c?d=e", "00-4bf92f-00f0-01"])
def test_a_clients_request_id_comes_back(site: Site, given: str) -> None:
    assert site.get("/health", x_request_id=given).headers["x-request-id"] == given
    assert site.get("/nowhere", x_request_id=given).headers["x-request-id"] == given
    assert site.post("/completion", b"", x_request_id=given).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "tab\there", "umlaut-ü", "bell-\x07"])
def test_a_request_id_that_could_forge_a_log_line_is_replaced(site: Site, given: str) -> None:
    made = site.get("/health", x_request_id=given).headers["x-request-id"]
    assert made != given
    assert len(made) == 32
    assert made.isalnum()


def test_requests_without_an_id_get_different_ones(site: Site) -> None:
    assert site.get("/health").headers["x-request-id"] != site.get("/health").headers["x-request-id"]


def test_a_request_is_logged_with_its_id_and_health_only_in_detail(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "minka.server")
    site.get("/v1/models", x_request_id="one")
    site.get("/health", x_request_id="two")
    lines = {record.getMessage().split()[-1]: record for record in caplog.records if record.name == "minka.server"}
    assert lines["one"].levelno == logging.INFO
    assert lines["one"].getMessage().startswith("GET /v1/models 200 ")
    assert lines["two"].levelno == logging.DEBUG


def test_a_bug_is_a_json_error_that_tells_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object) -> object:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("minka.server.about.models_object", broken)
    response = site.get("/v1/models", x_request_id="seven")
    error = error_of(response, 500)
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    assert "request seven failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    """A site with two keys."""
    with FakeBackend() as backend, Site(ServerParams(api_key=("first", "schlüssel")), fake_runtime(backend)) as made:
        yield made


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first "[:-1] + "x"},
        {"authorization": "Bearer firs"},
        {"authorization": "Bearer FIRST"},
        {"authorization": "Basic Zmlyc3Q6"},
        {"x_api_key": ""},
        {"x_api_key": "wrong"},
        {"x_api_key": "Bearer first"},
        {"authorization": "Bearer wrong", "x_api_key": "wrong"},
        {"cookie": "key=first"},
    ],
)
def test_without_a_key_nothing_is_told(locked: Site, headers: dict[str, str]) -> None:
    for path in PATHS:
        error = error_of(locked.get(path, **headers), 401)
        assert (error["type"], error["message"]) == ("authentication_error", "Invalid API Key")
    error_of(locked.post(CHAT, {"messages": MESSAGES}, **headers), 401)
    error_of(locked.post(CHAT, b"broken", **headers), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "Bearer schlüssel"},
        {"authorization": "first"},
        {"x_api_key": "first"},
        {"x_api_key": "schlüssel"},
    ],
)
def test_each_key_opens_in_each_header(locked: Site, headers: dict[str, str]) -> None:
    assert locked.get("/v1/models", **headers).status_code == 200
    assert locked.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}, **headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/", "/docs", "/openapi.json"])
def test_health_and_pages_need_no_key(locked: Site, path: str) -> None:
    assert locked.get(path).status_code == 200


def test_a_question_of_a_browser_needs_no_key(locked: Site) -> None:
    assert locked.request("OPTIONS", CHAT).status_code == 200


def test_every_key_is_compared_in_constant_time_whichever_is_right(
    locked: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[object, object]] = []
    real = hmac.compare_digest

    def spy(one: bytes, two: bytes) -> bool:
        compared.append((one, two))
        return real(one, two)

    monkeypatch.setattr("minka.server.auth.hmac.compare_digest", spy)
    for given in ("first", "schlüssel", "neither"):
        compared.clear()
        locked.get("/v1/models", x_api_key=given)
        assert compared == [(given.encode(), b"first"), (given.encode(), "schlüssel".encode())]


def test_keys_come_from_the_flag_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team\n\n  two  \nthree\n")
    assert load_keys(ServerParams(api_key=("one",), api_key_file=str(file))) == (b"one", b"two", b"three")
    assert load_keys(ServerParams()) == ()


@pytest.mark.parametrize("content", [b"", b"\n# nothing\n", b"\xff\xfe"])
def test_a_key_file_without_a_key_does_not_open_the_server_to_everyone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="--api-key-file"):
        build_app(ServerParams(api_key_file=str(file)))


def test_a_key_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read --api-key-file"):
        build_app(ServerParams(api_key_file=str(tmp_path / "nothing")))


# -- readiness ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loading() -> Iterator[Site]:
    """A site whose model is not there yet."""
    with Site(ServerParams(api_key=("k",))) as made:
        yield made


@pytest.mark.parametrize("path", ["/health", "/v1/health", *PATHS])
def test_while_the_model_loads_every_answer_is_503(loading: Site, path: str) -> None:
    error = error_of(loading.get(path), 503)
    assert (error["type"], error["message"]) == ("unavailable_error", "Loading model")


def test_while_the_model_loads_no_body_is_read(loading: Site) -> None:
    error_of(loading.post(CHAT, b"broken"), 503)


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
def test_pages_are_there_while_the_model_loads(loading: Site, path: str) -> None:
    assert loading.get(path).status_code == 200


def test_after_loading_it_is_served() -> None:
    with FakeBackend() as backend, Site() as made:
        error_of(made.get("/health"), 503)
        made.app.state.minka.runtime = fake_runtime(backend)
        assert made.get("/health").json() == {"status": "ok"}


# -- cross-origin ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cors(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site with the parameters that the test names."""
    with FakeBackend() as backend, Site(ServerParams(**request.param), fake_runtime(backend)) as made:
        yield made


def allowed(site: Site, origin: str, path: str = "/health") -> str | None:
    header: str | None = site.get(path, origin=origin).headers.get("access-control-allow-origin")
    return header


def test_any_page_may_use_the_api_if_not_said_otherwise(site: Site) -> None:
    response = site.get("/health", origin="https://example.com")
    assert response.headers["access-control-allow-origin"] == "https://example.com"
    assert response.headers["access-control-allow-credentials"] == "true"
    assert "origin" in response.headers["vary"].lower()
    assert site.get("/health").headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("cors", [{"cors_credentials": False}], indirect=True)
def test_without_credentials_the_wildcard_stays(cors: Site) -> None:
    response = cors.get("/health", origin="https://example.com")
    assert response.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("cors", [{"cors_origins": ("https://a.com", "localhost")}], indirect=True)
def test_only_listed_origins_and_real_local_ones_are_let_in(cors: Site) -> None:
    for origin in ("https://a.com", "http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"):
        assert allowed(cors, origin) == origin
    for origin in (
        "https://b.com",
        "https://a.com.evil.com",
        "http://localhost.evil.com",
        "http://127.0.0.1.evil.com",
        "http://evil.com/http://localhost",
        "null",
        "",
    ):
        assert allowed(cors, origin) is None


def test_a_preflight_is_answered_with_what_is_allowed(site: Site) -> None:
    response = site.request("OPTIONS", CHAT, None, origin="https://a.com", access_control_request_method="POST")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["access-control-allow-origin"] == "https://a.com"
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert response.headers["access-control-allow-headers"] == "*"


def test_names_are_spelled_as_llama_server_spells_them() -> None:
    """For clients that compare them as they are, although HTTP says that case means nothing."""
    with FakeBackend() as backend, Live(fake_runtime(backend)) as live, live.connect() as connection:
        connection.options(CHAT, origin="https://a.com")
        names = {name for name, _ in connection.answer().getheaders() if name.lower().startswith("access-control")}
        assert names == {
            "Access-Control-Allow-Origin",
            "Access-Control-Allow-Credentials",
            "Access-Control-Allow-Methods",
            "Access-Control-Allow-Headers",
        }


def test_a_page_can_read_errors_of_every_kind(site: Site, locked: Site, loading: Site) -> None:
    origin = "https://a.com"
    for made, status in (
        (site.post(CHAT, b"", origin=origin), 400),
        (site.get("/nowhere", origin=origin), 404),
        (site.get(CHAT, origin=origin), 405),
        (locked.get("/props", origin=origin), 401),
        (loading.get("/props", origin=origin), 503),
    ):
        error_of(made, status)
        assert made.headers["access-control-allow-origin"] == origin
