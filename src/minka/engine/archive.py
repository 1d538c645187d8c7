"""The disk tier: blocks as files of a directory, one directory a model and kind of KV cache. Survives a restart.

Writes happen on a thread of its own. A file that is torn, stale or foreign is deleted, never used: its name is a hash
of all tokens up to its end, and its head has the checksum of its body. Blocks with a salt are never written.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

import msgspec

from minka.engine.store import Node, Store
from minka.errors import NativeError
from minka.native.protocol import Block

log = logging.getLogger("minka.cache")

_MAGIC = b"MINKA-KV 1\n"
_SUFFIX = ".kv"
_MAX_HEAD = 1 << 16


class _Head(msgspec.Struct, frozen=True):
    """The second line of a file, as JSON. `parent` is the key of the block before, None for a first one."""

    parent: str | None
    start: int
    tokens: tuple[int, ...]
    size: int
    crc: int


class DiskArchive:
    """Implements `store.Archive` in `directory`, which holds at most `limit` bytes; the least used go first."""

    def __init__(self, directory: Path, limit: int, decode: Callable[[bytes], Block]) -> None:
        """`decode` makes a block of the bytes of `Block.to_bytes`. Raises OSError if there can be no such directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._limit, self._decode = directory, limit, decode
        self._lock = Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        """Files by key, the least recently used first."""
        self._pending: dict[bytes, Block] = {}
        """Blocks whose file is not written yet."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.n_bytes = 0
        self.n_read = 0
        """Tokens that were read back."""
        self._writer = Thread(target=self._write_all, name="minka-cache-writer", daemon=True)
        self._writer.start()

    # -- Archive -------------------------------------------------------------------------------------------------------

    def write(self, node: Node) -> None:
        """See store.Archive."""
        if node.salt or node.block is None or node.archived:
            return
        node.archived = True
        block = node.block
        with self._lock:
            self._pending[node.key] = block
        parent = node.parent.key.hex() if node.parent is not None and node.parent.parent is not None else None
        self._work.put(lambda: self._write(node.key, parent, node.tokens, block))

    def read(self, node: Node) -> Block | None:
        """See store.Archive."""
        with self._lock:
            pending = self._pending.get(node.key)
            if node.key in self._sizes:
                self._sizes.move_to_end(node.key)
        block = pending or self._read(self._path(node.key), node)
        if block is not None:
            self.n_read += block.n_tokens
        return block

    def forget(self, node: Node) -> None:
        """See store.Archive."""
        self._work.put(lambda: self._delete(node.key))

    # -- start and end -------------------------------------------------------------------------------------------------

    def load_into(self, store: Store) -> int:
        """Tell the store of all blocks that are there; returns how many. What cannot be used is deleted."""
        heads = sorted(self._scan(), key=lambda found: found[1].start)
        nodes: dict[str, Node] = {}
        for path, head in heads:
            parent = nodes.get(head.parent) if head.parent is not None else None
            usable = (head.start == 0) if head.parent is None else (parent is not None and parent.end == head.start)
            node = store.adopt(parent, head.tokens, "") if usable else None
            if node is None or node.key.hex() != path.stem:
                path.unlink(missing_ok=True)
                continue
            nodes[path.stem] = node
            self._sizes[node.key] = size = path.stat().st_size
            self.n_bytes += size
        return len(nodes)

    def close(self) -> None:
        """Write what is still waiting, and stop. Idempotent."""
        self._work.put(None)
        self._writer.join()

    def _scan(self) -> Iterator[tuple[Path, _Head]]:
        for path in self._directory.iterdir():
            head = _read_head(path) if path.suffix == _SUFFIX else None
            if head is None:
                path.unlink(missing_ok=True)
            else:
                yield path, head

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, key: bytes) -> Path:
        return self._directory / (key.hex() + _SUFFIX)

    def _write_all(self) -> None:
        while (task := self._work.get()) is not None:
            try:
                task()
            except OSError as error:
                log.warning("the disk tier of the prefix cache cannot write: %s", error)

    def _write(self, key: bytes, parent: str | None, tokens: tuple[int, ...], block: Block) -> None:
        body = block.to_bytes()
        head = _Head(parent, block.start, tokens, len(body), zlib.crc32(body))
        raw = _MAGIC + msgspec.json.encode(head) + b"\n" + body
        try:
            beside = self._path(key).with_suffix(".tmp")
            beside.write_bytes(raw)
            beside.replace(self._path(key))
        finally:
            with self._lock:
                self._pending.pop(key, None)
        with self._lock:
            self.n_bytes += len(raw) - self._sizes.pop(key, 0)
            self._sizes[key] = len(raw)
        self._shrink()

    def _shrink(self) -> None:
        while True:
            with self._lock:
                if self.n_bytes <= self._limit or not self._sizes:
                    return
                key = next(iter(self._sizes))
            self._delete(key)

    def _delete(self, key: bytes) -> None:
        self._path(key).unlink(missing_ok=True)
        with self._lock:
            self.n_bytes -= self._sizes.pop(key, 0)

    def _read(self, path: Path, node: Node) -> Block | None:
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        head = _parse_head(raw)
        body = raw[len(raw) - head.size :] if head is not None and head.size < len(raw) else b""
        if head is None or head.tokens != node.tokens or zlib.crc32(body) != head.crc:
            log.warning("the prefix cache file %s is damaged and was deleted", path.name)
            self._delete(node.key)
            return None
        try:
            return self._decode(body)
        except NativeError as error:
            log.warning("the prefix cache file %s cannot be used: %s", path.name, error)
            self._delete(node.key)
            return None


def _read_head(path: Path) -> _Head | None:
    """The head of a file, None if it has none or the file is not as long as the head says."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_HEAD)
        head = _parse_head(raw)
        size = path.stat().st_size
    except OSError:
        return None
    if head is None or size != raw.index(b"\n", len(_MAGIC)) + 1 + head.size:
        return None
    return head


def _parse_head(raw: bytes) -> _Head | None:
    end = raw.find(b"\n", len(_MAGIC))
    if not raw.startswith(_MAGIC) or end < 0:
        return None
    try:
        return msgspec.json.decode(raw[len(_MAGIC) : end], type=_Head)
    except msgspec.DecodeError:
        return None
