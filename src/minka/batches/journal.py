"""What an offline batch has done so far: a file beside its output, which a second run goes on from.

Each line is the number of a request, whether it went well, and its result. A line without an end was cut off when the
process was killed; neither it nor a damaged one counts, nor what comes behind it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from minka.batches.lines import Result
from minka.errors import UsageError

_FORMAT = 1
_LINE = re.compile(rb"([0-9]{1,9}) ([01]) .*\n", re.DOTALL)


class Journal:
    """The results of one run, or of several that were interrupted. Keep it open while working, then `close` it."""

    def __init__(self, path: Path, source: Path, model: str) -> None:
        """Open the journal of the batch `source` with a model; goes on with the one that is there.

        Raises UsageError if that one is of another batch or model or in use, or the file cannot be written.
        """
        head = json.dumps({"format": _FORMAT, "input": _digest(source), "model": model}).encode() + b"\n"
        self._path = path
        self._places: dict[int, tuple[int, int, bool]] = {}
        """Of each result: where its data begins, its length, and whether it went well."""
        try:
            self._file: BinaryIO = path.open("r+b" if path.exists() else "x+b")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"{path} is in use: another run works on this batch") from None
        end = self._read(head)
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._file.write(head)

    def _read(self, head: bytes) -> int:
        """Read what is there; returns where its last complete line ends."""
        end = 0
        for raw in self._file:
            if not raw.endswith(b"\n"):
                break
            if not end and raw != head:
                self._file.close()
                raise UsageError(
                    f"{self._path} is of another input or model: go on with those, or remove the file to begin anew"
                )
            if end:
                line = _LINE.fullmatch(raw)
                if line is None:
                    break
                at = line.end(2) + 1
                self._places[int(line[1])] = (end + at, len(raw) - at, line[2] == b"1")
            end += len(raw)
        return end

    @property
    def done(self) -> frozenset[int]:
        """The lines that have a result."""
        return frozenset(self._places)

    @property
    def n_failed(self) -> int:
        """Results that did not go well."""
        return sum(not ok for _, _, ok in self._places.values())

    def save(self, results: Sequence[Result]) -> None:
        """Keep results. They are on the disk when this returns."""
        for result in results:
            head = b"%d %d " % (result.number, result.ok)
            at = self._file.tell() + len(head)
            self._file.write(head + result.data + b"\n")
            self._places[result.number] = (at, len(result.data) + 1, result.ok)
        self._file.flush()
        os.fsync(self._file.fileno())

    def results(self) -> Iterator[bytes]:
        """All results in the order of their lines, each with its line end."""
        for _, (at, length, _) in sorted(self._places.items()):
            self._file.seek(at)
            yield self._file.read(length)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def remove(self) -> None:
        """The output is written: the journal is not needed any more."""
        self.close()
        self._path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
