"""The cache, slots and metrics over HTTP, on a fake backend."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.engine.memory import MemoryConfig
from minka.errors import UsageError
from minka.params import ServerParams
from minka.server.app import build_app
from tests.fakes import FakeBackend
from tests.server.site import Connection, Live, Site, error_of, events, fake_runtime

KEPT = MemoryConfig(limit=1_000_000, block=16, clear_idle=False)
STORY = "A story of a village by the sea, told by an old man in winter. "
SYSTEM = [{"role": "system", "content": "You answer in one sentence."}]


@pytest.fixture
def slots(tmp_path: Path) -> Path:
    """The directory of saved slots."""
    made = tmp_path / "slots"
    made.mkdir()
    return made


@pytest.fixture
def kept(slots: Path) -> Iterator[Site]:
    """A site that keeps text, saves slots and tells its metrics."""
    with FakeBackend(n_seq_max=2, n_ctx=1024) as backend:
        params = ServerParams(slot_save_path=str(slots), metrics=True)
        with Site(params, fake_runtime(backend, memory=KEPT)) as made:
            yield made


def complete(site: Site, prompt: str, n_predict: int = 4, **fields: object) -> dict[str, int]:
    """The token counts of a completion."""
    answer = site.post("/completion", {"prompt": prompt, "n_predict": n_predict, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    timings: dict[str, int] = answer.json()["timings"]
    return timings


# -- cache -------------------------------------------------------------------------------------------------------------


def test_a_pin_is_made_listed_used_and_let_go(kept: Site) -> None:
    answer = kept.post("/cache/pin", {"name": "story", "prompt": STORY})
    assert answer.json() == {"name": "story", "n_tokens": len(STORY), "n_cached": 0}
    (pinned,) = kept.get("/cache").json()["pins"]
    assert pinned["name"] == "story"
    assert pinned["n_tokens"] == len(STORY)
    assert complete(kept, STORY + "And then?")["cache_n"] == len(STORY)
    assert kept.request("DELETE", "/cache/pins/story").json() == {"success": True}
    assert kept.get("/cache").json()["pins"] == []
    error_of(kept.request("DELETE", "/cache/pins/story"), 404)


def test_a_pin_of_messages_serves_the_conversations_that_begin_so(kept: Site) -> None:
    pinned = kept.post("/cache/pin", {"name": "assistant", "messages": SYSTEM}).json()
    assert kept.request("DELETE", "/cache").json()["n_dropped"] > 0
    body = {"messages": [*SYSTEM, {"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = kept.post("/v1/chat/completions", body).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == pinned["n_tokens"]


def test_an_older_pin_of_the_name_goes(kept: Site) -> None:
    kept.post("/cache/pin", {"name": "a", "prompt": STORY})
    again = kept.post("/cache/pin", {"name": "a", "prompt": STORY + STORY}).json()
    assert again["n_cached"] == len(STORY)
    assert [pin["n_tokens"] for pin in kept.get("/cache").json()["pins"]] == [2 * len(STORY)]


def test_the_tiers_are_told(kept: Site) -> None:
    complete(kept, STORY, id_slot=0)
    complete(kept, STORY[::-1], id_slot=0)
    complete(kept, STORY + "?", id_slot=1)
    body = kept.get("/cache").json()
    assert body["kind"] == "blocks"
    assert list(body["tiers"]) == ["device", "ram"]
    ram = body["tiers"]["ram"]
    assert (ram["hits"], ram["tokens_served"], ram["limit_bytes"]) == (1, len(STORY), 1_000_000)
    assert body["tiers"]["device"]["limit_tokens"] == 1024
    dropped = kept.request("DELETE", "/cache").json()["n_dropped"]
    assert dropped == body["tiers"]["device"]["entries"] + ram["entries"]
    assert kept.request("DELETE", "/cache").json() == {"n_dropped": 0}


def test_what_is_no_pin_is_a_bad_request(kept: Site) -> None:
    assert error_of(kept.post("/cache/pin", {"prompt": STORY}), 400)["param"] == "name"
    assert error_of(kept.post("/cache/pin", {"name": "a", "prompt": "short"}), 400)["param"] == "prompt"
    assert error_of(kept.post("/cache/pin", {"name": "a", "prompt": STORY * 20}), 400)["type"] == (
        "exceed_context_size_error"
    )
    error_of(kept.post("/cache/pin", b"{"), 400)
    error_of(kept.get("/cache/pin"), 405)
    error_of(kept.post("/cache", {}), 405)


def test_without_a_cache_there_is_nothing_to_see(site: Site) -> None:
    for method, path, body in (
        ("GET", "/cache", None),
        ("DELETE", "/cache", None),
        ("DELETE", "/cache/pins/a", None),
        ("POST", "/cache/pin", {"name": "a", "prompt": STORY}),
    ):
        assert "--cache-ram" in str(error_of(site.request(method, path, body), 501)["message"])


# -- slots -------------------------------------------------------------------------------------------------------------


def test_a_slot_goes_through_a_file_into_another_slot(kept: Site, slots: Path) -> None:
    complete(kept, STORY, 8, id_slot=1)
    n = len(STORY) + 7
    saved = kept.post("/slots/1?action=save", {"filename": "story.bin"}).json()
    assert list(saved) == ["id_slot", "filename", "n_saved", "n_written", "timings"]
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "story.bin", n)
    assert saved["n_written"] == (slots / "story.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    assert kept.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": n}
    restored = kept.post("/slots/0?action=restore", {"filename": "story.bin"}).json()
    assert list(restored) == ["id_slot", "filename", "n_restored", "n_read", "timings"]
    assert (restored["n_restored"], restored["n_read"]) == (n, saved["n_written"])
    assert restored["timings"]["restore_ms"] > 0
    assert complete(kept, STORY + "And then?", id_slot=0)["cache_n"] == len(STORY)


def test_a_restored_slot_may_have_a_salt(kept: Site) -> None:
    complete(kept, STORY, id_slot=1)
    kept.post("/slots/1?action=save", {"filename": "a"})
    kept.request("DELETE", "/cache")
    kept.post("/slots/1?action=restore", {"filename": "a", "cache_salt": "me"})
    assert complete(kept, STORY, id_slot=0)["cache_n"] == 0
    assert complete(kept, STORY, cache_salt="me")["cache_n"] == len(STORY) - 1


def test_a_file_of_llama_server_that_is_older_is_restored(kept: Site, slots: Path) -> None:
    complete(kept, STORY, id_slot=0)
    n = kept.post("/slots/0?action=save", {"filename": "new"}).json()["n_saved"]
    raw = (slots / "new").read_bytes()
    tokens, state = raw[24 : 24 + 4 * n], raw[24 + 4 * n + 4 :]
    (slots / "old").write_bytes(raw[:8] + struct.pack("=I", n) + tokens + state)
    assert kept.post("/slots/1?action=restore", {"filename": "old"}).json()["n_restored"] == n


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/7?action=erase", None, "Invalid slot ID"),
        ("/slots/2?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/-1?action=erase", None, "Invalid slot ID"),
        ("/slots/x?action=erase", None, "Invalid slot ID"),
        ("/slots/0", None, "Invalid action"),
        ("/slots/0?action=copy", None, "Invalid action"),
        ("/slots/0?action=save", {"filename": "../up"}, "Invalid filename"),
        ("/slots/0?action=restore", {"filename": "/etc/passwd"}, "Invalid filename"),
        ("/slots/0?action=save", {}, '"filename" is required and must be a string'),
        ("/slots/0?action=restore", {"filename": 3}, '"filename" is required and must be a string'),
        (
            "/slots/0?action=restore",
            {"filename": "missing"},
            "Unable to restore slot: No available space in KV cache or invalid slot save file",
        ),
    ],
)
def test_a_bad_request_has_llama_servers_words(
    kept: Site, path: str, body: dict[str, object] | None, message: str
) -> None:
    assert error_of(kept.post(path, body), 400)["message"] == message


def test_a_body_has_to_be_json(kept: Site) -> None:
    error_of(kept.post("/slots/0?action=save", b"filename=a"), 400)
    error_of(kept.post("/slots/0?action=save"), 400)


def test_a_file_of_another_vocabulary_is_refused(kept: Site, slots: Path) -> None:
    complete(kept, STORY, id_slot=0)
    kept.post("/slots/0?action=save", {"filename": "a"})
    raw = bytearray((slots / "a").read_bytes())
    raw[24:28] = struct.pack("=i", 259)
    (slots / "a").write_bytes(raw)
    error = error_of(kept.post("/slots/0?action=restore", {"filename": "a"}), 400)
    assert error["message"] == "Unable to restore slot: Invalid tokens in slot save file"


def test_a_slot_that_cannot_be_written_is_an_error_of_the_server(kept: Site, slots: Path) -> None:
    (slots / "taken").mkdir()
    error = error_of(kept.post("/slots/0?action=save", {"filename": "taken"}), 500)
    assert str(error["message"]).startswith("Unable to save slot: ")
    assert [path.name for path in slots.iterdir()] == ["taken"]


def test_slots_have_no_actions_without_a_directory(site: Site) -> None:
    assert "--slot-save-path" in str(error_of(site.post("/slots/0?action=erase"), 501)["message"])


def test_the_directory_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--slot-save-path .*missing is no directory"):
        build_app(ServerParams(slot_save_path=str(tmp_path / "missing")))


def test_an_action_waits_for_its_slot_while_others_are_served(slots: Path) -> None:
    with FakeBackend(n_seq_max=2, n_ctx=1024) as backend:
        runtime = fake_runtime(backend, memory=KEPT)
        with Live(runtime, ServerParams(slot_save_path=str(slots))) as live, live.connect() as talk:
            body = {"prompt": STORY, "n_predict": 300, "stream": True, "id_slot": 0, "ignore_eos": True}
            backend.gate.let(1)
            next(events(talk.post("/completion", **body)))
            backend.gate.let(20)
            with live.connect() as waiting, live.connect() as other:
                waiting.send("/slots/0?action=save", filename="a")
                backend.gate.wait_held()
                other.send("/completion", prompt="Quick.", n_predict=3, id_slot=1)
                _until_open(live, 2)
                backend.gate.let(40)
                assert other.answer().status == 200
                backend.gate.wait_held()
                assert not (slots / "a").exists()
                backend.gate.open()
                talk.leave()
                assert waiting.answer().status == 200
            assert (slots / "a").exists()


def test_a_client_that_goes_takes_its_order_back(slots: Path) -> None:
    with FakeBackend(n_seq_max=1, n_ctx=1024) as backend:
        runtime = fake_runtime(backend, memory=KEPT)
        with Live(runtime, ServerParams(slot_save_path=str(slots))) as live, live.connect() as talk:
            backend.gate.let(1)
            stream = events(talk.post("/completion", prompt=STORY, n_predict=100, stream=True, ignore_eos=True))
            next(stream)
            waiting = live.connect()
            waiting.send("/slots/0?action=erase")
            _until_waits(live, backend, waits=True)
            waiting.leave()
            _until_waits(live, backend, waits=False)
            backend.gate.open()
            assert '"stop":true' in list(stream)[-1]
            assert live.view().slots[0].n_past == len(STORY) + 99, "nothing was erased"


def _until_waits(live: Live, backend: FakeBackend, *, waits: bool) -> None:
    """Let the engine make single steps until a command waits, or none does."""
    for _ in range(90):
        if live.runtime.engine._loop.control.waits == waits:
            return
        backend.gate.let(1)
        backend.gate.wait_held()
        with live.connect() as connection:
            _ask_health(connection)
    raise AssertionError("the command neither came nor went")


def _until_open(live: Live, n: int) -> None:
    """Until the engine has been given so many jobs."""
    for _ in range(1000):
        if live.runtime.engine.n_open == n:
            return
        with live.connect() as connection:
            _ask_health(connection)
    raise AssertionError(f"the engine has {live.runtime.engine.n_open} jobs, not {n}")


def _ask_health(connection: Connection) -> None:
    """A round trip through the server's event loop, so that what happened on other connections is known there."""
    assert connection.post("/tokenize", content="a").status == 200


# -- metrics -----------------------------------------------------------------------------------------------------------


def samples(site: Site) -> dict[str, float]:
    answer = site.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    started = next(value for name, value in answer.headers.raw if name == b"process-start-time-unix")
    assert int(started) > 1_600_000_000
    lines = [line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_add_up_to_what_the_answers_said(kept: Site) -> None:
    done = [complete(kept, STORY, 4, id_slot=0), complete(kept, STORY + "!", 8, id_slot=0)]
    kept.post("/cache/pin", {"name": "a", "prompt": STORY})
    found = samples(kept)
    assert found["llamacpp:prompt_tokens_total"] == sum(one["prompt_n"] for one in done) + 1
    assert found["llamacpp:prompt_tokens_cached_total"] == sum(one["cache_n"] for one in done) + len(STORY) - 1
    assert found["llamacpp:tokens_predicted_total"] == 12
    assert found["llamacpp:n_tokens_max"] == len(STORY) + 1 + 7
    assert found["minka:kv_cells"] == 1024
    assert found["minka:cache_pins"] == 1
    assert found['minka:cache_tokens_served_total{tier="device"}'] == done[1]["cache_n"] + len(STORY) - 1
    assert found["llamacpp:predicted_tokens_seconds"] > 0
    again = samples(kept)
    assert again["llamacpp:predicted_tokens_seconds"] == again["llamacpp:prompt_tokens_seconds"] == 0
    assert again["llamacpp:tokens_predicted_total"] == 12


def test_a_header_is_spelled_as_llama_server_spells_it() -> None:
    params = ServerParams(metrics=True)
    with FakeBackend() as backend, Live(fake_runtime(backend), params) as live, live.connect() as connection:
        connection._http.request("GET", "/metrics")
        assert "Process-Start-Time-Unix" in dict(connection.answer().getheaders())


def test_metrics_are_told_without_a_cache_too() -> None:
    with FakeBackend() as backend, Site(ServerParams(metrics=True), fake_runtime(backend)) as made:
        assert samples(made)['minka:cache_limit_bytes{tier="ram"}'] == 0


def test_metrics_have_to_be_asked_for(site: Site) -> None:
    assert "--metrics" in str(error_of(site.get("/metrics"), 501)["message"])


def test_everything_here_needs_a_key(slots: Path) -> None:
    params = ServerParams(api_key=("secret",), slot_save_path=str(slots), metrics=True)
    with FakeBackend() as backend, Site(params, fake_runtime(backend, memory=KEPT)) as made:
        for method, path in (
            ("GET", "/cache"),
            ("DELETE", "/cache"),
            ("POST", "/cache/pin"),
            ("DELETE", "/cache/pins/a"),
            ("POST", "/slots/0?action=erase"),
            ("GET", "/metrics"),
        ):
            error_of(made.request(method, path), 401)
