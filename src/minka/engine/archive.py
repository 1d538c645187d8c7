"""The disk tier: blocks as files of a directory, one directory a model and kind of KV cache. Survives a restart.

Writes happen on a thread of its own. A file that is torn, stale or foreign is never used: its name is a hash of all
tokens up to its end, and its head has the checksum of its body. Blocks with a salt are never written. Files are for
their owner only, for they hold conversations. Several processes may use one directory; each counts what it knows of.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkstemp
from threading import Lock, Thread
from typing import Annotated

import msgspec

from minka.engine.store import Fill, Node, Store
from minka.errors import NativeError
from minka.native.protocol import Block

log = logging.getLogger("minka.cache")

_MAGIC = b"MINKA-KV 1\n"
_SUFFIX = ".kv"
_UNFINISHED = ".tmp"
_MAX_HEAD = 1 << 16
_BACKLOG = 1 << 30
"""Bytes of blocks that may wait to be written. Where the disk is slower than the model, some are not written."""
_GRACE = 600.0
"""Seconds for which a useless file is left alone: it may be part of what another process is just writing."""


class _Head(msgspec.Struct, frozen=True):
    """The second line of a file, as JSON. `parent` is the key of the block before, None for a first one."""

    parent: str | None
    start: int
    tokens: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...]
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file that is there: the block in it, and its size in bytes."""

    node: Node
    size: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that a scan found, with its times in seconds."""

    path: Path
    head: _Head
    size: int
    mtime: float


class DiskArchive:
    """Implements `store.Archive` in `directory`, which holds at most `limit` bytes; the least used go first."""

    def __init__(self, directory: Path, limit: int, decode: Callable[[bytes], Block]) -> None:
        """`decode` makes a block of the bytes of `Block.to_bytes`. Raises OSError if there can be no such directory."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._limit, self._decode = directory, limit, decode
        self._lock = Lock()
        self._files: OrderedDict[bytes, _File] = OrderedDict()
        """By key, the least recently used first, and every block before those that it continues."""
        self._pending: dict[bytes, Block] = {}
        """Blocks whose file is not written yet."""
        self._lost: list[Node] = []
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._backlog = 0
        self._error: Exception | None = None
        """Why the last write failed."""
        self.n_bytes = 0
        self._n_tokens = 0
        self.n_read = 0
        """Tokens that were read back."""
        self._writer = Thread(target=self._write_all, name="minka-cache-writer", daemon=True)
        self._writer.start()

    # -- Archive -------------------------------------------------------------------------------------------------------

    def write(self, node: Node) -> None:
        """See store.Archive."""
        before = node.parent
        follows = before is not None and (before.parent is None or before.archived)
        if node.salt or node.block is None or node.archived or not follows:
            return
        block = node.block
        with self._lock:
            if self._backlog + block.n_bytes > _BACKLOG:
                return
            self._backlog += block.n_bytes
            self._pending[node.key] = block
        node.archived = True
        self._work.put(lambda: self._write(node, block))

    def read(self, node: Node) -> Block | None:
        """See store.Archive."""
        with self._lock:
            block = self._pending.get(node.key)
            self._touch(node)
        if block is None:
            block = self._read(node)
        if block is not None:
            self.n_read += block.n_tokens
        return block

    def forget(self, node: Node) -> None:
        """See store.Archive."""
        self._work.put(lambda: self._delete(node.key))

    def lost(self) -> Sequence[Node]:
        """See store.Archive."""
        if not self._lost:
            return ()
        with self._lock:
            lost, self._lost = self._lost, []
            return [node for node in lost if node.key not in self._pending and node.key not in self._files]

    def fill(self) -> Fill:
        """See store.Archive."""
        with self._lock:
            return Fill(len(self._files), self._n_tokens, self.n_bytes, self._limit)

    # -- start and end -------------------------------------------------------------------------------------------------

    def load_into(self, store: Store) -> int:
        """Tell the store of all blocks that are there; returns how many. What cannot be used is deleted in time."""
        nodes: dict[str, Node] = {}
        files: list[tuple[float, _File]] = []
        for found in sorted(self._scan(), key=lambda found: (found.head.start, len(found.head.tokens))):
            parent = nodes.get(found.head.parent) if found.head.parent is not None else None
            follows = found.head.parent is None or parent is not None
            node = store.adopt(found.path.stem, parent, found.head.tokens) if follows else None
            if node is None:
                _clean(found.path, found.mtime)
                continue
            nodes[found.path.stem] = node
            files.append((found.mtime, _File(node, found.size)))
        with self._lock:
            for _mtime, file in sorted(files, key=lambda pair: pair[0]):
                if file.node.archived:  # else a longer one has taken its place
                    self._book(file)
        self._shrink()
        return len(self._files)

    def close(self) -> None:
        """Write what is still waiting, and stop. Idempotent."""
        self._work.put(None)
        self._writer.join()

    def _scan(self) -> Iterator[_Found]:
        try:
            paths = list(self._directory.iterdir())
        except OSError as error:
            log.warning("the disk tier of the prefix cache cannot be read: %s", error)
            return
        for path in paths:
            with suppress(OSError):
                status = path.lstat()
                if path.suffix not in (_SUFFIX, _UNFINISHED) or not stat.S_ISREG(status.st_mode):
                    continue  # not ours
                head = _read_head(path, status.st_size) if path.suffix == _SUFFIX else None
                if head is None:
                    _clean(path, status.st_mtime)
                else:
                    yield _Found(path, head, status.st_size, status.st_mtime)

    # -- books (under the lock) ----------------------------------------------------------------------------------------

    def _book(self, file: _File) -> None:
        self._unbook(file.node.key)
        self._files[file.node.key] = file
        self.n_bytes += file.size
        self._n_tokens += len(file.node.tokens)
        self._touch(file.node)

    def _unbook(self, key: bytes) -> _File | None:
        file = self._files.pop(key, None)
        if file is not None:
            self.n_bytes -= file.size
            self._n_tokens -= len(file.node.tokens)
        return file

    def _touch(self, node: Node | None) -> None:
        """Count a block as used, and then all before it: so the least used one is always the end of a branch."""
        while node is not None:
            if node.key in self._files:
                self._files.move_to_end(node.key)
            node = node.parent

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, key: bytes) -> Path:
        return self._directory / (key.hex() + _SUFFIX)

    def _write_all(self) -> None:
        while (task := self._work.get()) is not None:
            task()

    def _write(self, node: Node, block: Block) -> None:
        size, error = 0, None
        try:
            parts = _parts(node, block)
            size = sum(map(len, parts))
            _replace(self._path(node.key), parts)
        except (OSError, MemoryError) as failed:
            error = failed
        if error is not None and self._error is None:
            log.warning("the disk tier of the prefix cache cannot write, what it misses is computed again: %r", error)
        self._error = error
        with self._lock:
            if error is None:
                self._book(_File(node, size))
            else:
                self._lost.append(node)
            self._backlog -= block.n_bytes
            if self._pending.get(node.key) is block:
                del self._pending[node.key]
        self._shrink()

    def _shrink(self) -> None:
        while True:
            with self._lock:
                if self.n_bytes <= self._limit or not self._files:
                    return
                node = next(iter(self._files.values())).node
                self._unbook(node.key)
                self._lost.append(node)
            self._unlink(node.key)

    def _delete(self, key: bytes) -> None:
        with self._lock:
            self._unbook(key)
        self._unlink(key)

    def _unlink(self, key: bytes) -> None:
        with suppress(OSError):
            self._path(key).unlink()

    def _read(self, node: Node) -> Block | None:
        path = self._path(node.key)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:  # deleted for room, here or by another process
            self._delete(node.key)
            return None
        except OSError as error:
            log.warning("the prefix cache file %s cannot be read: %s", path.name, error)
            return None
        try:
            block = self._decode(_body(raw, node.tokens))
            if (block.start, block.n_tokens) != (node.start, len(node.tokens)):
                raise NativeError("it holds other positions than its name says")
        except NativeError as error:
            log.warning("the prefix cache file %s is damaged and was deleted: %s", path.name, error)
            self._delete(node.key)
            return None
        with suppress(OSError):
            os.utime(path)  # so that the order of use survives a restart
        return block


def _parts(node: Node, block: Block) -> tuple[bytes, ...]:
    """What is in the file of a block."""
    parent = node.parent.key.hex() if node.parent is not None and node.parent.parent is not None else None
    body = block.to_bytes()
    head = _Head(parent, node.start, node.tokens, len(body), zlib.crc32(body))
    return _MAGIC, msgspec.json.encode(head), b"\n", body


def _replace(path: Path, parts: Sequence[bytes]) -> None:
    """Write a file that is there as a whole or not at all, even if another process writes it too."""
    number, name = mkstemp(_UNFINISHED, path.stem, path.parent)  # readable for its owner only
    beside = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.writelines(parts)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _clean(path: Path, mtime: float) -> None:
    """Delete a file that is of no use, unless it is so new that another process may not be done with it."""
    if time.time() - mtime > _GRACE:
        with suppress(OSError):
            path.unlink()


def _read_head(path: Path, size: int) -> _Head | None:
    """The head of a file of `size` bytes, None if it has none or that says another size."""
    with path.open("rb") as file:
        parsed = _parse(file.read(_MAX_HEAD))
    if parsed is None or parsed[1] + parsed[0].size != size:
        return None
    return parsed[0]


def _body(raw: bytes, tokens: tuple[int, ...]) -> bytes:
    """The body of a file for these tokens. Raises NativeError if it is not what was written."""
    parsed = _parse(raw)
    if parsed is None or parsed[0].tokens != tokens:
        raise NativeError("it has no head or another one")
    body = raw[parsed[1] :]
    if len(body) != parsed[0].size or zlib.crc32(body) != parsed[0].crc:
        raise NativeError("its checksum is wrong")
    return body


def _parse(raw: bytes) -> tuple[_Head, int] | None:
    """The head, and where the body begins."""
    end = raw.find(b"\n", len(_MAGIC))
    if not raw.startswith(_MAGIC) or end < 0:
        return None
    try:
        return msgspec.json.decode(raw[len(_MAGIC) : end], type=_Head), end + 1
    except (msgspec.DecodeError, RecursionError):
        return None
