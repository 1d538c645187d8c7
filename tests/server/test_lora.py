from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minka.protocols.lora import LoraFiles
from tests.fakes import FakeBackend
from tests.server.site import Live, Site, error_of, events, fake_runtime

PROMPT = "a prompt that is long enough to be shared by everybody"


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    with FakeBackend(n_ctx=2048) as made:
        yield made


@pytest.fixture
def site(backend: FakeBackend, tmp_path: Path) -> Iterator[Site]:
    """A server whose directory of adapters has two good files and a bad one."""
    for name in ("a.gguf", "b.gguf", "bad.gguf"):
        (tmp_path / name).touch()
    runtime = fake_runtime(backend)
    runtime.lora_files = LoraFiles((), tmp_path)
    with Site(runtime=runtime) as made:
        yield made


def load(site: Site, name: str = "a.gguf", **fields: object) -> int:
    response = site.post("/lora-adapters/load", {"path": name, **fields})
    assert response.status_code == 200, response.text
    id = response.json()["id"]
    assert isinstance(id, int)
    return id


def text(site: Site, **fields: object) -> str:
    response = site.post("/completion", {"prompt": PROMPT, "temperature": 0, "n_predict": 20, **fields})
    assert response.status_code == 200, response.text
    content = response.json()["content"]
    assert isinstance(content, str)
    return content


def set_scales(site: Site, *scales: tuple[int, float]) -> None:
    raw = json.dumps([{"id": id, "scale": scale} for id, scale in scales]).encode()
    assert site.post("/lora-adapters", raw).json() == {"success": True}


def test_a_server_without_adapters_has_an_empty_list(site: Site) -> None:
    assert site.get("/lora-adapters").json() == []
    assert site.post("/lora-adapters", b"[]").json() == {"success": True}


def test_an_adapter_is_loaded_used_and_unloaded(site: Site) -> None:
    plain = text(site)
    id = load(site, scale=0.5)
    (listed,) = site.get("/lora-adapters").json()
    assert (listed["id"], listed["scale"], Path(listed["path"]).name) == (id, 0.5, "a.gguf")
    adapted = text(site)
    assert adapted != plain
    assert text(site, lora=[]) == plain
    assert text(site, lora=[{"id": id, "scale": 0.5}]) == adapted
    assert text(site, lora=[{"id": id, "scale": 1.0}]) not in (plain, adapted)
    assert site.post("/lora-adapters/unload", {"id": id}).json() == {"success": True}
    assert site.get("/lora-adapters").json() == []
    assert text(site) == plain
    assert error_of(site.post("/completion", {"prompt": PROMPT, "lora": [{"id": id}]}), 400)["param"] == "lora"


def test_global_factors_are_for_requests_that_say_nothing(site: Site) -> None:
    plain, id, other = text(site), load(site, scale=0), load(site, "b.gguf", scale=0)
    assert text(site) == plain
    set_scales(site, (id, 1.0))
    one = text(site)
    set_scales(site, (other, 1.0))
    two = text(site)
    assert len({plain, one, two}) == 3
    assert [entry["scale"] for entry in site.get("/lora-adapters").json()] == [0.0, 1.0]
    set_scales(site)
    assert text(site) == plain


def test_the_settings_of_an_answer_tell_its_adapters(site: Site) -> None:
    id = load(site)
    body = {"prompt": PROMPT, "n_predict": 1, "lora": [{"id": id, "scale": 0.25}]}
    assert site.post("/completion", body).json()["generation_settings"]["lora"] == [{"id": id, "scale": 0.25}]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion", "/infill"])
def test_every_route_takes_the_field(site: Site, path: str) -> None:
    id = load(site)
    body = {
        "prompt": "hi",
        "messages": [{"role": "user", "content": "hi"}],
        "input_prefix": "a",
        "input_suffix": "b",
        "temperature": 0,
        "max_tokens": 20,
    }
    seen = []
    for lora in ([], [{"id": id}]):
        answer = site.post(path, {**body, "lora": lora})
        assert answer.status_code == 200, answer.text
        made = answer.json()
        seen.append(made.get("content") or made["choices"][0].get("text") or made["choices"][0]["message"]["content"])
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", ["../a.gguf", "nothing.gguf", "/etc/passwd", "bad.gguf"])
def test_what_may_not_be_loaded_or_is_no_adapter_is_refused(site: Site, name: str) -> None:
    error = error_of(site.post("/lora-adapters/load", {"path": name}), 400)
    assert error["param"] == "path"
    assert site.get("/lora-adapters").json() == []


def test_a_server_that_was_not_told_where_loads_nothing(backend: FakeBackend) -> None:
    with Site(runtime=fake_runtime(backend)) as site:
        error_of(site.post("/lora-adapters/load", {"path": "a.gguf"}), 501)


@pytest.mark.parametrize("body", [b"{}", b"", b"null", b'[{"id": 5}]', b'[{"id": 0, "scale": 1e300}]'])
def test_a_bad_body_changes_nothing(site: Site, body: bytes) -> None:
    load(site, scale=0.5)
    error_of(site.post("/lora-adapters", body), 400)
    assert [entry["scale"] for entry in site.get("/lora-adapters").json()] == [0.5]


def test_what_is_not_loaded_cannot_be_unloaded(site: Site) -> None:
    error_of(site.post("/lora-adapters/unload", {"id": 4}), 404)
    error_of(site.post("/lora-adapters/unload", {}), 400)


def test_requests_with_different_adapters_run_at_once(backend: FakeBackend, tmp_path: Path) -> None:
    """Their streams all go on, and unloading one of the adapters waits for its stream only."""
    (tmp_path / "a.gguf").touch()
    runtime = fake_runtime(backend)
    runtime.lora_files = LoraFiles((), tmp_path)
    runtime.served = replace(runtime.served, adapters=(runtime.engine.load_adapter(Path("a.gguf"), 0.0).result(20),))
    body = {"prompt": PROMPT, "temperature": 0, "n_predict": 40, "stream": True}
    with Live(runtime) as live, live.connect() as plain, live.connect() as adapted:
        plain.send("/completion", **body)
        adapted.send("/completion", **body, lora=[{"id": 0, "scale": 1.0}])
        texts = [
            "".join(json.loads(event)["content"] for event in events(connection.answer()) if event != ":")
            for connection in (plain, adapted)
        ]
    assert [len(text) for text in texts] == [40, 40]
    assert texts[0] != texts[1]
