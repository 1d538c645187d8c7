"""What the server tells of itself, and the pages and the description it serves."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from starlette.routing import Route

from minka.errors import UsageError
from minka.params import ServerParams
from minka.protocols.openapi import openapi_object
from minka.server.app import build_app
from tests.fakes import WAIT, FakeBackend
from tests.server.site import CHAT, MESSAGES, Site, error_of, fake_runtime

PAGES = ("/", "/docs")


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site with the parameters that the test names."""
    with FakeBackend() as backend, Site(ServerParams(**request.param), fake_runtime(backend)) as built:
        yield built


def with_params(**params: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", [params], indirect=True)


# -- routes that tell --------------------------------------------------------------------------------------------------


def test_health_is_ok(site: Site) -> None:
    assert site.get("/health").json() == site.get("/v1/health").json() == {"status": "ok"}
    assert site.request("HEAD", "/health").status_code == 200


def test_health_tells_when_the_engine_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches the server starts it again, and whoever asks for something is not left waiting."""

    def refuse(*_: object) -> None:
        raise RuntimeError("the device is gone")

    with FakeBackend() as backend, Site(runtime=fake_runtime(backend)) as site:
        for name in ("decode", "discard"):
            monkeypatch.setattr(backend, name, refuse)
        assert site.post("/completion", {"prompt": "hi"}).status_code >= 500
        site.app.state.minka.loaded.engine._thread.join(WAIT)
        for path in ("/completion", "/slots", "/health"):
            response = site.get(path) if path != "/completion" else site.post(path, {"prompt": "hi"})
            assert "start it again" in str(error_of(response, 503)["message"])


def test_the_model_is_listed_and_found(site: Site) -> None:
    listed = site.get("/v1/models").json()
    assert listed == site.get("/models").json()
    assert listed["data"] == [site.get("/v1/models/fake.gguf").json()]
    assert site.get("/v1/models/other-name").json() == listed["data"][0]
    error_of(site.get("/v1/models/a/b"), 404)


def test_props_and_slots(site: Site) -> None:
    assert site.get("/props").json()["total_slots"] == 4
    slots = site.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert site.get("/slots?fail_on_no_slot=1").status_code == 200


def test_a_slot_shows_what_it_served_without_the_text(site: Site) -> None:
    site.post("/completion", {"prompt": "a secret", "n_predict": 3, "stop": ["hush"]})
    slots = site.get("/slots")
    assert any(slot.get("n_prompt_tokens") == 9 for slot in slots.json())
    assert "secret" not in slots.text
    assert "hush" not in slots.text


@with_params(slots=False)
def test_slots_can_be_switched_off(made: Site) -> None:
    assert error_of(made.get("/slots"), 501)["type"] == "not_supported_error"


def test_properties_cannot_be_changed_unless_allowed(site: Site) -> None:
    assert "--props" in str(error_of(site.post("/props", {"a": 1}), 501)["message"])


@with_params(props=True)
def test_properties_that_may_be_changed_stay_as_they_are(made: Site) -> None:
    before = made.get("/props").json()
    assert made.post("/props", {"total_slots": 9}).json() == {"success": True}
    assert made.get("/props").json() == before


# -- the description ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_all_that_is_served_is_described_and_the_reverse(prefix: str) -> None:
    app = build_app(ServerParams(api_prefix=prefix))
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    document = openapi_object(prefix)
    paths = cast("dict[str, dict[str, object]]", document["paths"])
    described = {(prefix + path, method) for path, item in paths.items() for method in item}
    assert served == described


def test_the_description_has_the_defaults_of_this_server(site: Site) -> None:
    document = site.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/"}]
    assert document["components"]["schemas"]["Sampling"]["properties"]["top_k"]["default"] == 40


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_nothing_from_elsewhere(site: Site, path: str) -> None:
    response = site.get(path)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = response.text
    assert re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}""", page) == []
    assert re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["'](?!data:)""", page) == []
    assert re.findall(r"""(?:href|src)=["']/""", page) == [], "an absolute address would miss a prefix"


@pytest.mark.parametrize("path", PAGES)
def test_a_pages_policy_allows_its_own_script_and_style_and_no_more(site: Site, path: str) -> None:
    response = site.get(path)
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert re.findall(r"\bon\w+\s*=\s*\"|\bstyle=\"", response.text) == [], "the policy forbids these"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_never_makes_markup_of_text(site: Site, path: str) -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in site.get(path).text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_for_light_and_dark_and_small_screens(site: Site, path: str) -> None:
    page = site.get(path).text
    assert "prefers-color-scheme: dark" in page
    assert '<meta name="viewport"' in page
    assert page.count("\n") < 320


@with_params(ui=False)
def test_the_page_can_be_switched_off(made: Site) -> None:
    error_of(made.get("/"), 404)
    assert made.get("/docs").status_code == 200


def test_a_directory_can_take_the_pages_place(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>mine</p>")
    (tmp_path / "app.js").write_text("go()")
    with FakeBackend() as backend, Site(ServerParams(path=str(tmp_path)), fake_runtime(backend)) as made:
        assert made.get("/").text == "<p>mine</p>"
        assert made.get("/app.js").text == "go()"
        error_of(made.get("/no-such-file"), 404)
        error_of(made.get("/../../etc/passwd"), 404)
        error_of(made.get("/%2e%2e/%2e%2e/etc/passwd"), 404)
        assert made.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}).status_code == 200


def test_a_directory_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no directory"):
        build_app(ServerParams(path=str(tmp_path / "nothing")))


# -- prefix ------------------------------------------------------------------------------------------------------------


@with_params(api_prefix="/llm/", api_key=("k",))
def test_a_prefix_is_in_front_of_everything(made: Site) -> None:
    assert made.get("/llm/health").json() == {"status": "ok"}
    assert made.get("/llm/").status_code == made.get("/llm/docs").status_code == 200
    assert made.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
    error_of(made.get("/llm/v1/models"), 401)
    assert made.get("/llm/v1/models", x_api_key="k").status_code == 200
    for path in ("/health", "/v1/models", "/docs", "/"):
        error_of(made.get(path, x_api_key="k"), 404)


def test_a_prefix_has_to_be_a_path() -> None:
    with pytest.raises(UsageError, match="--api-prefix must start with a slash, but is 'llm'"):
        build_app(ServerParams(api_prefix="llm"))
