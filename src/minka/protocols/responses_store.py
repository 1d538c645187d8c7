"""Answers that are kept so that a later request can go on from them: SQLite, in a file or in memory.

Rows are JSON as it went over the wire. Old answers go when there are too many or they are too large together. One
connection behind a lock; any thread may use it. It knows no request and no model.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from minka.errors import UsageError

JsonObject = Mapping[str, object]

MAX_AGE = 30 * 24 * 3600
"""Seconds that an answer is kept."""
MAX_ANSWERS, MAX_BYTES = 100_000, 4 << 30
"""Limits of a store in a file."""
MAX_ANSWERS_IN_MEMORY, MAX_BYTES_IN_MEMORY = 1_000, 64 << 20
"""Limits of a store in memory."""
MAX_CHAIN = 10_000
"""Answers that one conversation goes back over."""

FILE = "responses.sqlite3"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS response (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, created REAL NOT NULL,
    previous TEXT NOT NULL, body TEXT NOT NULL, input TEXT NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS item (id TEXT NOT NULL, response TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (id, response)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_response ON item (response);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer: the response object, the items of its request, and the id of the answer before it, often empty."""

    id: str
    body: JsonObject
    input: Sequence[JsonObject]
    previous: str = ""
    tenant: str = ""


class ResponseStore:
    """All kept answers. Answers of one tenant are none to another.

    `path` None keeps them in memory. Raises UsageError for a file that cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._max_answers = MAX_ANSWERS if path else MAX_ANSWERS_IN_MEMORY
        self._max_bytes = MAX_BYTES if path else MAX_BYTES_IN_MEMORY
        self._lock = Lock()
        try:
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
            self._end_interrupted()
            self._n, self._size = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM response").fetchone()
        except sqlite3.Error as error:
            raise UsageError(f"cannot keep responses in {path}: {error}") from None

    def save(self, kept: Kept) -> None:
        """Keep an answer, in place of one with its id."""
        body, given = _text(kept.body), _text(kept.input)
        size = len(body) + len(given)
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._delete("id = ?", kept.id)
            self._db.execute(
                "INSERT INTO response (id, tenant, created, previous, body, input, size) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (kept.id, kept.tenant, time.time(), kept.previous, body, given, size),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO item (id, response, body) VALUES (?, ?, ?)",
                [(str(item["id"]), kept.id, _text(item)) for item in items_of(kept) if item.get("id")],
            )
            self._n, self._size = self._n + 1, self._size + size
            self._prune()

    def get(self, id: str, tenant: str) -> Kept | None:
        """The answer of that id."""
        with self._lock:
            row = self._db.execute(
                "SELECT id, body, input, previous, tenant FROM response WHERE id = ? AND tenant = ? AND created > ?",
                (id, tenant, time.time() - MAX_AGE),
            ).fetchone()
        return Kept(row[0], json.loads(row[1]), json.loads(row[2]), row[3], row[4]) if row else None

    def delete(self, id: str, tenant: str) -> bool:
        """Forget an answer; False if there is none."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            return self._delete("id = ? AND tenant = ?", id, tenant)

    def item(self, id: str, tenant: str) -> JsonObject | None:
        """An item of any kept answer or of what it was made from."""
        with self._lock:
            row = self._db.execute(
                "SELECT item.body FROM item JOIN response ON response.id = item.response "
                "WHERE item.id = ? AND tenant = ? ORDER BY seq DESC LIMIT 1",
                (id, tenant),
            ).fetchone()
        found: JsonObject | None = json.loads(row[0]) if row else None
        return found

    def chain(self, id: str, tenant: str) -> list[Kept] | None:
        """An answer with those before it, the first one first; None if one of them is not kept any more."""
        found: list[Kept] = []
        while id and len(found) < MAX_CHAIN:
            kept = self.get(id, tenant)
            if kept is None:
                return None
            found.append(kept)
            id = kept.previous
        return found[::-1]

    def of(self, tenant: str) -> Shelf:
        """What one tenant sees."""
        return Shelf(self, tenant)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _delete(self, where: str, *values: str) -> bool:
        row = self._db.execute(f"SELECT id, size FROM response WHERE {where}", values).fetchone()
        if row is None:
            return False
        self._db.execute("DELETE FROM response WHERE id = ?", (row[0],))
        self._db.execute("DELETE FROM item WHERE response = ?", (row[0],))
        self._n, self._size = self._n - 1, self._size - int(row[1])
        return True

    def _prune(self) -> None:
        """Drop the oldest answers until the limits hold; the newest one stays whatever its size."""
        limit = time.time() - MAX_AGE
        while self._n > 1:
            id, created = self._db.execute("SELECT id, created FROM response ORDER BY seq LIMIT 1").fetchone()
            if self._n <= self._max_answers and self._size <= self._max_bytes and created > limit:
                return
            self._delete("id = ?", id)

    def _end_interrupted(self) -> None:
        """What was under way when the last server ended will never be complete."""
        rows = self._db.execute('SELECT id, body FROM response WHERE body LIKE \'%"status":"in_progress"%\'').fetchall()
        for id, text in rows:
            body = json.loads(text)
            if body.get("status") == "in_progress":
                error = {"code": "server_error", "message": "the server was stopped"}
                ended = _text({**body, "status": "failed", "error": error})
                self._db.execute("UPDATE response SET body = ? WHERE id = ?", (ended, id))


def items_of(kept: Kept) -> list[JsonObject]:
    """The items of an answer's request, and then its own."""
    output = kept.body.get("output")
    return [*kept.input, *(output if isinstance(output, list) else [])]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Shelf:
    """The answers of one tenant; see ResponseStore for the methods."""

    store: ResponseStore
    tenant: str

    def save(self, kept: Kept) -> None:
        """Keep an answer."""
        self.store.save(replace(kept, tenant=self.tenant))

    def get(self, id: str) -> Kept | None:
        """The answer of that id."""
        return self.store.get(id, self.tenant)

    def delete(self, id: str) -> bool:
        """Forget an answer; False if there is none."""
        return self.store.delete(id, self.tenant)

    def item(self, id: str) -> JsonObject | None:
        """An item by its id."""
        return self.store.item(id, self.tenant)

    def chain(self, id: str) -> list[Kept] | None:
        """An answer with those before it."""
        return self.store.chain(id, self.tenant)
