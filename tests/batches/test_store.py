from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from minka.batches.lines import Result
from minka.batches.store import Store
from minka.errors import NotFoundError, RequestError, UsageError
from minka.protocols.batches import Page, Wanted
from tests.batches.values import URL, add_batch, request


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "data")
    yield made
    made.close()


def writing(data: bytes) -> Callable[[BinaryIO], None]:
    def write(out: BinaryIO) -> None:
        out.write(data)

    return write


def test_a_file_is_kept_found_and_deleted(store: Store) -> None:
    facts = store.add_file("a/../b.jsonl", "batch", writing(b"abc"))
    assert (facts.filename, facts.n_bytes, facts.purpose) == ("a/../b.jsonl", 3, "batch")
    assert store.file(facts.id) == facts
    assert store.path(facts.id).read_bytes() == b"abc"
    store.delete_file(facts.id)
    for look in (store.file, store.path, store.delete_file):
        with pytest.raises(NotFoundError):
            look(facts.id)
    assert list((store.path(store.add_file("c", "batch", writing(b"")).id)).parent.iterdir()) != []


def test_a_file_that_cannot_be_written_is_not_there(store: Store, tmp_path: Path) -> None:
    def fail(out: BinaryIO) -> None:
        out.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.add_file("a", "batch", fail)
    assert store.files(Page(10)) == ([], False)
    assert list((tmp_path / "data" / "files").iterdir()) == []


@pytest.mark.parametrize("id", ["../lock", "file-x", "", "/etc/passwd"])
def test_a_name_never_leads_out_of_the_directory(store: Store, id: str) -> None:
    with pytest.raises(NotFoundError):
        store.path(id)


def test_lists_have_pages(store: Store) -> None:
    ids = [store.add_file(str(n), "batch" if n % 2 else "batch_output", writing(b"")).id for n in range(5)]
    assert [facts.id for facts in store.files(Page(10))[0]] == ids[::-1]
    first, more = store.files(Page(2, descending=False))
    assert ([facts.id for facts in first], more) == (ids[:2], True)
    rest, more = store.files(Page(3, after=ids[1], descending=False))
    assert ([facts.id for facts in rest], more) == (ids[2:], False)
    assert [facts.id for facts in store.files(Page(10, after=ids[4]), "batch")[0]] == [ids[3], ids[1]]
    with pytest.raises(NotFoundError):
        store.files(Page(1, after="nothing"))


def test_a_batch_counts_its_results_and_ends_with_two_files(store: Store) -> None:
    batch = add_batch(store, request("a"), request("b"), request("c"))
    assert (batch.status, batch.metadata, batch.expires_at - batch.created_at) == ("validating", {"of": "tests"}, 3600)
    store.save(batch.id, [Result(3, ok=True, data=b"three"), Result(2, ok=False, data=b"two")])
    store.save(batch.id, [Result(1, ok=True, data=b"one"), Result(3, ok=True, data=b"again")])
    assert store.done(batch.id) == {1, 2, 3}
    assert (store.batch(batch.id).completed, store.batch(batch.id).failed) == (2, 1)
    done = store.finish(batch, "completed")
    assert store.batch(batch.id) == done
    assert (done.status, done.completed, done.failed) == ("completed", 2, 1)
    assert done.completed_at is not None
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    assert store.path(done.output_file_id).read_bytes() == b"one\nthree\n"
    assert store.path(done.error_file_id).read_bytes() == b"two\n"
    assert store.file(done.output_file_id).purpose == "batch_output"
    assert store.done(batch.id) == frozenset()
    assert store.unfinished() == []


def test_a_batch_without_results_has_no_files(store: Store) -> None:
    done = store.finish(add_batch(store, request("a")), "cancelled")
    assert done.output_file_id is done.error_file_id is None


def test_a_file_in_use_stays(store: Store) -> None:
    batch = add_batch(store, request("a"))
    with pytest.raises(RequestError, match=f"in use by {batch.id}"):
        store.delete_file(batch.input_file_id)
    store.finish(batch, "cancelled")
    store.delete_file(batch.input_file_id)


def test_a_batch_needs_an_input_file(store: Store) -> None:
    output = store.add_file("out", "batch_output", writing(b""))
    with pytest.raises(RequestError, match="purpose"):
        store.add_batch(Wanted(URL, output.id, "1h", 3600, {}))
    with pytest.raises(NotFoundError):
        store.add_batch(Wanted(URL, "file-x", "1h", 3600, {}))
    with pytest.raises(NotFoundError):
        store.batch("batch_x")


def test_all_is_there_again_but_what_was_half_done(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = add_batch(store, request("a"), request("b"))
    store.save(batch.id, [Result(1, ok=True, data=b"one")])
    orphan = tmp_path / "files" / "file-orphan"
    orphan.write_bytes(b"of a process that was killed")
    store.close()
    store.close()
    again = Store(tmp_path)
    assert not orphan.exists()
    assert again.done(batch.id) == {1}
    assert [facts.id for facts in again.unfinished()] == [batch.id]
    assert again.path(batch.input_file_id).exists()
    again.close()


def test_two_servers_cannot_share_a_directory(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in use by another server"):
        Store(tmp_path / "data")


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="--data-dir"):
        Store(tmp_path / "file")
    Store(tmp_path / "newer").close()
    with sqlite3.connect(tmp_path / "newer" / "batches.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UsageError, match="version 99"):
        Store(tmp_path / "newer")


def test_each_tenant_sees_its_own_files_and_batches(store: Store) -> None:
    mine = add_batch(store, request("a"), tenant="me")
    store.save(mine.id, [Result(1, ok=True, data=b"{}")])
    assert store.batch(mine.id, "me").completed == 1
    assert [facts.id for facts in store.batches(Page(10), tenant="me")[0]] == [mine.id]
    assert [facts.id for facts in store.files(Page(10), tenant="me")[0]] == [mine.input_file_id]
    for other in ("", "you"):
        assert store.batches(Page(10), tenant=other) == ([], False)
        assert store.files(Page(10), tenant=other) == ([], False)
        for look in (store.file, store.path, store.delete_file):
            with pytest.raises(NotFoundError):
                look(mine.input_file_id, other)
        with pytest.raises(NotFoundError):
            store.batch(mine.id, other)
        with pytest.raises(NotFoundError):
            store.add_batch(Wanted(URL, mine.input_file_id, "1h", 3600, {}), other)
        with pytest.raises(NotFoundError):
            store.batches(Page(10, after=mine.id), tenant=other)
    done = store.finish(mine, "completed")
    assert store.path(done.output_file_id or "", "me").read_bytes() == b"{}\n"
    with pytest.raises(NotFoundError):
        store.path(done.output_file_id or "")


def test_what_an_older_version_kept_is_of_the_tenant_without_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = Store(folder)
    batch = add_batch(made, request("a"))
    made.close()
    with closing(sqlite3.connect(folder / "batches.sqlite3")) as db:
        for table in ("files", "batches"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN tenant")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    for _ in range(2):
        again = Store(folder)
        assert again.unfinished() == [batch]
        assert again.path(batch.input_file_id).is_file()
        assert again.files(Page(10))[0][0].id == batch.input_file_id
        again.close()


@pytest.mark.parametrize("statement", ["COMMIT", "INSERT"])
def test_a_change_that_fails_leaves_the_store_usable(store: Store, statement: str) -> None:
    """As on a full disk: SQLite takes some of these back itself, others not."""

    class Failing:
        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def execute(self, query: str, *values: object) -> object:
            if query.startswith(statement):
                raise sqlite3.OperationalError("database or disk is full")
            return self.real.execute(query, *values)  # type: ignore[arg-type]

    real = store._db
    store._db = Failing(real)  # type: ignore[assignment]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.add_file("a", "batch", writing(b"abc"))
    store._db = real
    kept = store.add_file("b", "batch", writing(b"abc"))
    assert [facts.id for facts in store.files(Page(10))[0]] == [kept.id]


def test_a_directory_among_the_files_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "files" / "strange").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be used"):
        Store(tmp_path)
