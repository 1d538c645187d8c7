from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from minka.errors import UsageError
from minka.protocols import responses_store
from minka.protocols.responses_store import Kept, ResponseStore


def kept(id: str, *, previous: str = "", tenant: str = "", text: str = "x", status: str = "completed") -> Kept:
    output = [{"id": f"msg_{id}", "type": "message", "text": text}]
    return Kept(id, {"id": id, "status": status, "output": output}, [{"id": f"in_{id}"}], previous, tenant)


def test_what_is_kept_comes_back() -> None:
    store = ResponseStore()
    store.save(kept("a", text="ñ"))
    assert store.get("a", "") == kept("a", text="ñ")
    assert store.get("b", "") is None


def test_keeping_again_replaces() -> None:
    store = ResponseStore()
    store.save(kept("a", status="in_progress"))
    store.save(kept("a"))
    found = store.get("a", "")
    assert found is not None
    assert found.body["status"] == "completed"
    assert store.delete("a", "")
    assert store.get("a", "") is None


def test_a_tenant_sees_its_own_only() -> None:
    store = ResponseStore()
    one, two = store.of("1"), store.of("2")
    one.save(kept("a"))
    assert two.get("a") is None
    assert two.item("msg_a") is None
    assert two.chain("a") is None
    assert not two.delete("a")
    assert one.get("a") == kept("a", tenant="1")
    assert one.item("in_a") == {"id": "in_a"}


def test_a_chain_has_the_first_one_first_and_no_gap() -> None:
    store = ResponseStore()
    for id, previous in (("a", ""), ("b", "a"), ("c", "b")):
        store.save(kept(id, previous=previous))
    chain = store.chain("c", "")
    assert chain is not None
    assert [one.id for one in chain] == ["a", "b", "c"]
    store.delete("b", "")
    assert store.chain("c", "") is None


def test_a_file_survives_and_what_was_under_way_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite3"
    store = ResponseStore(path)
    store.save(kept("a"))
    store.save(kept("b", status="in_progress"))
    store.save(kept("c", text='"status":"in_progress"'))
    store.close()
    again = ResponseStore(path)
    statuses = {id: again.get(id, "").body["status"] for id in "abc"}  # type: ignore[union-attr]
    assert statuses == {"a": "completed", "b": "failed", "c": "completed"}
    again.close()


def test_the_oldest_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_ANSWERS_IN_MEMORY", 3)
    store = ResponseStore()
    for id in "abcde":
        store.save(kept(id))
    assert [id for id in "abcde" if store.get(id, "")] == ["c", "d", "e"]
    assert store.item("msg_a", "") is None


def test_the_oldest_go_when_they_are_too_large_but_never_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_BYTES_IN_MEMORY", 1000)
    store = ResponseStore()
    for id in "abc":
        store.save(kept(id, text="x" * 400))
    assert [id for id in "abc" if store.get(id, "")] == ["b", "c"]
    store.save(kept("d", text="x" * 5000))
    assert [id for id in "abcd" if store.get(id, "")] == ["d"]


def test_the_old_go(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore()
    store.save(kept("a"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + responses_store.MAX_AGE + 1)
    assert store.get("a", "") is None
    store.save(kept("b"))
    monkeypatch.undo()
    assert store.get("a", "") is None, "dropped, not only hidden"


def test_limits_hold_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_ANSWERS", 2)
    path = tmp_path / "r.sqlite3"
    store = ResponseStore(path)
    store.save(kept("a"))
    store.save(kept("b"))
    store.close()
    again = ResponseStore(path)
    again.save(kept("c"))
    assert [id for id in "abc" if again.get(id, "")] == ["b", "c"]
    again.close()


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(UsageError, match="cannot keep responses"):
        ResponseStore(path)
    with pytest.raises(UsageError):
        ResponseStore(tmp_path)


def test_closed() -> None:
    store = ResponseStore()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.get("a", "")
