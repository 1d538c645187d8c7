"""Files and batches on disk: facts and results in SQLite, contents as files beside it. Survives being killed anywhere.

Each belongs to a tenant, and is not there for any other one; without keys there is one without a name. A content is
complete and synced before its file is known; a result is there once it is committed, and there is one a line. What a
killed process left half done is unknown to the database, and goes when it is opened the next time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeVar

import msgspec

from minka.batches.lines import Result
from minka.errors import NotFoundError, RequestError, UsageError
from minka.protocols.batches import OPEN, BatchFacts, FileFacts, Page, Wanted

T = TypeVar("T", FileFacts, BatchFacts)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, kind TEXT, facts BLOB, tenant TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, kind TEXT, facts BLOB, tenant TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT, line INTEGER, ok INTEGER, data BLOB, PRIMARY KEY (batch, line)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS results_by_kind ON results (batch, ok);
PRAGMA user_version = 2;
"""
_FROM_1 = """
BEGIN;
ALTER TABLE files ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 2;
COMMIT;
"""
"""From version 1, which knew no tenants: all that it has is of the one without a name."""
_VERSION = 2
_MAX_NAME = 255


def _now() -> int:
    return int(time.time())


class Store:
    """A directory with files and batches. One process has it at a time; its threads may share this."""

    def __init__(self, directory: Path) -> None:
        """Raises UsageError if the directory cannot be used, or another process does."""
        self._files = directory / "files"
        self._lock = Lock()
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            self._held = (directory / "lock").open("wb")
        except OSError as error:
            raise UsageError(f"--data-dir {directory} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._held.close()
            raise UsageError(f"--data-dir {directory} is in use by another server; give another one") from None
        try:
            self._db = self._open(directory / "batches.sqlite3")
            self._remove_unknown()
        except (sqlite3.Error, OSError) as error:
            self._held.close()
            raise UsageError(f"--data-dir {directory} has a database that cannot be used: {error}") from None

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, 1, _VERSION):
            raise sqlite3.DatabaseError(f"it is of version {version}, and this is one for {_VERSION}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_FROM_1 if version == 1 else _SCHEMA)
        return db

    def _remove_unknown(self) -> None:
        known = {id for (id,) in self._db.execute("SELECT id FROM files")}
        for path in self._files.iterdir():
            if path.name not in known:
                path.unlink()

    def close(self) -> None:
        """Let go of the directory. Idempotent."""
        with self._lock:
            self._db.close()
            self._held.close()

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing, and on the disk when it is left."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has taken it back itself if the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: object) -> list[tuple[bytes, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _page(self, table: str, page: Page, of: type[T], tenant: str, kind: str | None) -> tuple[list[T], bool]:
        """Entries of a tenant's list, and whether there are more."""
        compare, order = ("<", "DESC") if page.descending else (">", "ASC")
        where: list[str] = ["tenant = ?"]
        values: list[object] = [tenant]
        if page.after is not None:
            known = self._rows(f"SELECT seq FROM {table} WHERE id = ? AND tenant = ?", page.after, tenant)
            if not known:
                raise NotFoundError(f"there is no {page.after!r} to list from", param="after")
            where.append(f"seq {compare} ?")
            values.append(known[0][0])
        if kind is not None:
            where.append("kind = ?")
            values.append(kind)
        query = f"SELECT facts FROM {table} WHERE {' AND '.join(where)} ORDER BY seq {order} LIMIT ?"
        found = [msgspec.json.decode(row[0], type=of) for row in self._rows(query, *values, page.limit + 1)]
        return found[: page.limit], len(found) > page.limit

    # -- files ---------------------------------------------------------------------------------------------------------

    def add_file(
        self, filename: str, purpose: str, write: Callable[[BinaryIO], None], *, tenant: str = ""
    ) -> FileFacts:
        """A new file, whose content `write` writes. Raises OSError if the disk is full, and what `write` raises."""
        facts = self._write(filename, purpose, write, tenant)
        with self._changing() as db:
            _insert_file(db, facts)
        return facts

    def _write(self, filename: str, purpose: str, write: Callable[[BinaryIO], None], tenant: str) -> FileFacts:
        id = f"file-{secrets.token_hex(12)}"
        path = self._files / id
        try:
            with path.open("xb") as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        _sync(self._files)
        return FileFacts(id, filename[:_MAX_NAME], purpose, path.stat().st_size, _now(), tenant)

    def file(self, id: str, tenant: str = "") -> FileFacts:
        """A file's facts. Raises NotFoundError."""
        with self._lock:
            return _find_file(self._db, id, tenant)

    def path(self, id: str, tenant: str = "") -> Path:
        """Where a file's content is. Raises NotFoundError."""
        return self._files / self.file(id, tenant).id

    def files(self, page: Page, purpose: str | None = None, *, tenant: str = "") -> tuple[list[FileFacts], bool]:
        """A page of the files, and whether there are more."""
        return self._page("files", page, FileFacts, tenant, purpose)

    def delete_file(self, id: str, tenant: str = "") -> None:
        """Delete a file. Raises NotFoundError, and RequestError while a batch needs it."""
        path = self.path(id, tenant)
        with self._changing() as db:
            for facts in _unfinished(db):
                if facts.input_file_id == id:
                    raise RequestError(f"the file is in use by {facts.id}; cancel that first", param="file_id")
            db.execute("DELETE FROM files WHERE id = ?", (id,))
        path.unlink(missing_ok=True)

    # -- batches -------------------------------------------------------------------------------------------------------

    def add_batch(self, wanted: Wanted, tenant: str = "") -> BatchFacts:
        """A new batch. Raises NotFoundError if there is no such file, RequestError if it is for something else."""
        now = _now()
        facts = BatchFacts(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=wanted.endpoint,
            input_file_id=wanted.input_file_id,
            completion_window=wanted.completion_window,
            created_at=now,
            expires_at=now + wanted.seconds,
            metadata=dict(wanted.metadata),
            tenant=tenant,
        )
        with self._changing() as db:
            if _find_file(db, wanted.input_file_id, tenant).purpose != "batch":
                raise RequestError('the input file must have the purpose "batch"', param="input_file_id")
            values = (facts.id, facts.status, msgspec.json.encode(facts), tenant)
            db.execute("INSERT INTO batches (id, kind, facts, tenant) VALUES (?, ?, ?, ?)", values)
        return facts

    def batch(self, id: str, tenant: str = "") -> BatchFacts:
        """A batch as it is now. Raises NotFoundError."""
        rows = self._rows("SELECT facts FROM batches WHERE id = ? AND tenant = ?", id, tenant)
        if not rows:
            raise NotFoundError(f"there is no batch {id[:80]!r}", param="batch_id")
        return self._counted(msgspec.json.decode(rows[0][0], type=BatchFacts))

    def batches(self, page: Page, *, tenant: str = "") -> tuple[list[BatchFacts], bool]:
        """A page of the batches, and whether there are more."""
        found, more = self._page("batches", page, BatchFacts, tenant, None)
        return [self._counted(facts) for facts in found], more

    def _counted(self, facts: BatchFacts) -> BatchFacts:
        """With the results so far; a batch that is closed knows its own."""
        if facts.status not in OPEN:
            return facts
        rows = self._rows("SELECT ok, COUNT(*) FROM results WHERE batch = ? GROUP BY ok", facts.id)
        counts = {int(ok): int(n) for ok, n in rows}
        return replace(facts, completed=counts.get(1, 0), failed=counts.get(0, 0))

    def unfinished(self) -> list[BatchFacts]:
        """Batches of all tenants with something left to do, the oldest first."""
        with self._lock:
            return _unfinished(self._db)

    def change(self, batch: BatchFacts, of: Callable[[BatchFacts], BatchFacts]) -> BatchFacts:
        """Change a batch: `of` gets it as it is now and says what it becomes. Raises what it raises."""
        with self._changing() as db:
            (raw,) = db.execute("SELECT facts FROM batches WHERE id = ?", (batch.id,)).fetchone()
            facts = of(msgspec.json.decode(raw, type=BatchFacts))
            _update(db, facts)
        return self._counted(facts)

    # -- results -------------------------------------------------------------------------------------------------------

    def done(self, batch: str) -> frozenset[int]:
        """The lines of a batch that have a result."""
        return frozenset(int(row[0]) for row in self._rows("SELECT line FROM results WHERE batch = ?", batch))

    def save(self, batch: str, results: Sequence[Result]) -> None:
        """Keep results. They are on the disk when this returns."""
        with self._changing() as db:
            db.executemany(
                "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)",
                [(batch, result.number, int(result.ok), result.data) for result in results],
            )

    def finish(self, batch: BatchFacts, status: str) -> BatchFacts:
        """Write the results of a batch into its output and error files, and give it its last state."""
        facts = self.batch(batch.id, batch.tenant)
        output, error = (self._result_file(facts, ok=ok) for ok in (True, False))
        changed = replace(
            facts,
            status=status,
            output_file_id=output.id if output else None,
            error_file_id=error.id if error else None,
            **{f"{status}_at": _now()},  # type: ignore[arg-type]
        )
        with self._changing() as db:
            for file in (output, error):
                if file is not None:
                    _insert_file(db, file)
            _update(db, changed)
            db.execute("DELETE FROM results WHERE batch = ?", (batch.id,))
        return changed

    def _result_file(self, facts: BatchFacts, *, ok: bool) -> FileFacts | None:
        """A file of all results of a kind in the order of their lines, None if there are none."""
        if not (facts.completed if ok else facts.failed):
            return None
        word = "output" if ok else "error"

        def write(out: BinaryIO) -> None:
            for data in self._results(facts.id, ok=ok):
                out.write(data + b"\n")

        return self._write(f"{facts.id}_{word}.jsonl", "batch_output", write, facts.tenant)

    def _results(self, batch: str, *, ok: bool) -> Iterable[bytes]:
        """Results in the order of their lines; not all of them are in memory at once."""
        line = -1
        query = "SELECT line, data FROM results WHERE batch = ? AND ok = ? AND line > ? ORDER BY line LIMIT 256"
        while rows := self._rows(query, batch, int(ok), line):
            line = int(rows[-1][0])
            yield from (row[1] for row in rows)


def _find_file(db: sqlite3.Connection, id: str, tenant: str) -> FileFacts:
    row = db.execute("SELECT facts FROM files WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no file {id[:80]!r}", param="file_id")
    return msgspec.json.decode(row[0], type=FileFacts)


def _unfinished(db: sqlite3.Connection) -> list[BatchFacts]:
    marks = ", ".join("?" * len(OPEN))
    rows = db.execute(f"SELECT facts FROM batches WHERE kind IN ({marks}) ORDER BY seq", OPEN)
    return [msgspec.json.decode(row[0], type=BatchFacts) for row in rows]


def _insert_file(db: sqlite3.Connection, facts: FileFacts) -> None:
    values = (facts.id, facts.purpose, msgspec.json.encode(facts), facts.tenant)
    db.execute("INSERT INTO files (id, kind, facts, tenant) VALUES (?, ?, ?, ?)", values)


def _update(db: sqlite3.Connection, facts: BatchFacts) -> None:
    db.execute(
        "UPDATE batches SET kind = ?, facts = ? WHERE id = ?", (facts.status, msgspec.json.encode(facts), facts.id)
    )


def _sync(folder: Path) -> None:
    """What was made in a folder is only durable once the folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
