"""The disk tier: what was written comes back after a restart, and nothing else ever does.

Files are torn, flipped, forged and deleted here, disks are full, processes are killed. In all of it a text that is
found and read must be the one that was stored.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from minka.engine import archive as module
from minka.engine.archive import DiskArchive
from minka.engine.store import Store
from tests.engine.test_store import keep, recall
from tests.fakes import WAIT, FakeBackend, FakeBlock

SIZE = 4
"""Tokens in a full block."""
PLENTY = 1 << 30
TEXTS = [[7, 7, 7, 7, i, i, i, i, i, i] for i in range(4)]
"""Texts of three blocks that share the first one."""
ROOT = Path(__file__).resolve().parents[2]


class Tiers:
    """A store over an archive in a directory."""

    def __init__(self, directory: Path, *, ram: int = 0, limit: int = PLENTY, size: int = SIZE) -> None:
        self.directory = directory
        self.archive = DiskArchive(directory, limit, FakeBackend().block)
        self.store = Store(ram, self.archive, size=size)
        self.n_adopted = self.archive.load_into(self.store)

    def flush(self) -> None:
        """Wait until everything is written."""
        done = Event()
        self.archive._work.put(done.set)
        assert done.wait(WAIT), "the writer is stuck"

    def hold(self) -> Event:
        """Stop the writer until the event is set."""
        release = Event()
        self.archive._work.put(lambda: assert_(release.wait(WAIT)))
        return release

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.kv"))

    def path(self, tokens: Sequence[int]) -> Path:
        """The file of the last block of a text."""
        return self.directory / f"{self.store.find(tokens).nodes[-1].key.hex()}.kv"


def assert_(holds: bool) -> None:
    assert holds


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Callable[..., Tiers]]:
    """Makes tiers in one directory, each as a process of its own would; the writers are stopped at the end."""
    with ExitStack() as open_ones:

        def make(**options: int) -> Tiers:
            made = Tiers(tmp_path / "model", **options)
            open_ones.callback(made.archive.close)
            return made

        yield make


def written(tiers: Callable[..., Tiers], texts: Sequence[Sequence[int]] = TEXTS) -> Tiers:
    """Tiers whose process has stored texts and ended."""
    first = tiers()
    for text in texts:
        keep(first.store, text)
    first.archive.close()
    return first


def age(directory: Path, seconds: float = 10_000.0) -> None:
    """Make all files in a directory old."""
    for path in directory.iterdir():
        os.utime(path, (time.time() - seconds,) * 2, follow_symlinks=False)


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_everything_survives_a_restart(tiers: Callable[..., Tiers]) -> None:
    first = written(tiers)
    again = tiers()
    assert again.n_adopted == len(again.files()) == 1 + 4 * 2
    assert {node.key for node in again.store} == {node.key for node in first.store}
    for text in TEXTS:
        assert recall(again.store, [*text, 99]) == tuple(text)
        assert keep(again.store, text) == 0
    assert again.archive.n_bytes == sum(path.stat().st_size for path in again.files())
    assert first.archive.n_bytes == again.archive.n_bytes
    assert again.archive.n_read == 1 * 4 * 4 + 4 * 6  # a store without memory reads the stem each time


def test_a_text_goes_on_after_a_restart(tiers: Callable[..., Tiers]) -> None:
    written(tiers)
    again = tiers()
    longer = [*TEXTS[0], 1, 2, 3, 4, 5]
    assert keep(again.store, longer) == len(longer) - 8
    again.flush()
    assert len(again.files()) == 9 + 1  # two new blocks, and the short one that they replace is gone
    assert recall(tiers().store, longer) == tuple(longer)


def test_what_is_not_written_yet_can_be_read(tiers: Callable[..., Tiers]) -> None:
    one = tiers()
    release = one.hold()
    keep(one.store, TEXTS[0])
    assert one.store.n_blocks == 0
    assert one.files() == []
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0])
    release.set()
    one.flush()
    assert len(one.files()) == 3
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0])
    assert one.archive._pending == {}


def test_reads_while_the_writer_writes(tiers: Callable[..., Tiers]) -> None:
    one = tiers()
    for i in range(150):
        keep(one.store, [i, i, i, i, i])
        for j in (i, i // 2):
            assert recall(one.store, [j] * 5) == (j,) * 5
    one.archive.close()
    assert len(one.files()) == 300


def test_close_writes_what_waits_and_may_be_called_twice(tiers: Callable[..., Tiers]) -> None:
    one = tiers()
    release = one.hold()
    keep(one.store, TEXTS[0])
    release.set()
    one.archive.close()
    one.archive.close()
    assert tiers().n_adopted == 3


def test_what_is_forgotten_is_deleted_and_may_come_again(tiers: Callable[..., Tiers]) -> None:
    one, deleted = tiers(), Event()
    release = one.hold()
    keep(one.store, TEXTS[0])
    assert one.store.clear() == 3
    one.archive._work.put(deleted.set)
    release_again = one.hold()
    keep(one.store, TEXTS[0])
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0])
    release.set()
    assert deleted.wait(WAIT)
    assert one.files() == []
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0]), "it is still to be written"
    release_again.set()
    one.flush()
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0])
    assert len(one.files()) == 3
    assert one.store.clear() == 3
    one.flush()
    assert one.files() == []
    assert one.archive.n_bytes == 0
    assert tiers().n_adopted == 0


def test_salted_text_never_reaches_the_disk(tiers: Callable[..., Tiers]) -> None:
    one = tiers(ram=PLENTY)
    keep(one.store, TEXTS[0], "salt")
    keep(one.store, TEXTS[1])
    one.flush()
    assert len(one.files()) == 3
    assert not any(node.archived for node in one.store if node.salt)
    assert recall(tiers().store, TEXTS[0]) == (7, 7, 7, 7)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        one = Tiers(tmp_path / "a" / "model")
        release = one.hold()
        keep(one.store, TEXTS[0])
        release.set()
        one.archive.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(one.directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in one.directory.iterdir()] == [0o600] * 3


# -- the limit -------------------------------------------------------------------------------------------------------


def size_of(directory: Path, *texts: Sequence[int]) -> int:
    """Bytes that the files of some texts take, and a little more: checksums have more or fewer digits."""
    one = Tiers(directory)
    for text in texts:
        keep(one.store, text)
    one.archive.close()
    return one.archive.n_bytes + 40


def test_the_directory_stays_within_its_limit(tiers: Callable[..., Tiers], tmp_path: Path) -> None:
    limit = size_of(tmp_path / "other", *([i] * 7 for i in (17, 18, 19)))
    one = tiers(limit=limit)
    for i in range(20):
        keep(one.store, [i] * 7)
        one.flush()
        assert one.archive.n_bytes == sum(path.stat().st_size for path in one.directory.iterdir()) <= limit
    assert [i for i in range(20) if one.store.find([i] * 7).n == 7] == [17, 18, 19], "the newest stay"
    assert all(node.archived for node in one.store), "nothing that was deleted is believed to be there"


def test_what_is_read_stays_longer_and_what_others_need_stays_longest(
    tiers: Callable[..., Tiers], tmp_path: Path
) -> None:
    stem, *ends = ([i] * 4 for i in range(7))
    one = tiers(limit=size_of(tmp_path / "other", *(stem + end for end in ends[:4]), stem + ends[3] + ends[4]))
    for end in ends[:3]:
        keep(one.store, stem + end)
    one.flush()
    recall(one.store, stem + ends[0])
    keep(one.store, stem + ends[3] + ends[4])
    keep(one.store, stem + ends[5])
    one.flush()
    found = [one.store.find(stem + end + ends[4]).n for end in ends]
    assert found == [8, 4, 8, 12, 4, 8], "the second was used least; the stem is older, but the others need it"


def test_a_text_larger_than_the_limit_keeps_its_beginning(tiers: Callable[..., Tiers], tmp_path: Path) -> None:
    one = tiers(limit=size_of(tmp_path / "other", range(20)))
    keep(one.store, range(40))
    one.flush()
    assert one.store.find(range(40)).n == 20
    assert len(one.files()) == 5
    assert recall(one.store, range(40)) == tuple(range(20))


def test_the_order_of_use_survives_a_restart(tiers: Callable[..., Tiers]) -> None:
    first = written(tiers, [[i] * 8 for i in range(6)])
    for i, age_ in enumerate((30, 60, 10, 50, 20, 40)):
        for node in first.store.find([i] * 8).nodes:
            os.utime(first.directory / f"{node.key.hex()}.kv", (time.time() - age_,) * 2)
    reader = tiers()
    assert recall(reader.store, [1] * 8) == (1,) * 8, "the oldest is the newest now"
    smaller = tiers(limit=reader.archive.n_bytes // 2)
    assert [i for i in range(6) if smaller.store.find([i] * 8).n == 8] == [1, 2, 4]
    assert smaller.n_adopted == len(smaller.files()) == 6


def test_a_stem_that_is_older_than_its_texts_is_not_deleted_before_them(tiers: Callable[..., Tiers]) -> None:
    first = written(tiers)
    stem = first.path([7] * 4)
    os.utime(stem, (1, 1))
    smaller = tiers(limit=first.archive.n_bytes // 2)
    assert stem.exists()
    assert smaller.store.find([7] * 4).n == 4


# -- damage ----------------------------------------------------------------------------------------------------------


def places(raw: bytes) -> dict[str, int]:
    """One offset of each kind in a file."""
    head_end = raw.index(b"\n", len(module._MAGIC))
    return {
        "nothing": 0,
        "in the magic": 4,
        "after the magic": len(module._MAGIC),
        "in the head": len(module._MAGIC) + 9,
        "before the end of the head": head_end,
        "before the body": head_end + 1,
        "in the body": head_end + 10,
        "before the last byte": len(raw) - 1,
    }


KINDS = list(places(module._MAGIC + b"{}\n"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_torn_file_is_not_used_after_a_restart(tiers: Callable[..., Tiers], kind: str, block: int) -> None:
    first = written(tiers)
    torn = first.path(TEXTS[0][: 4 * block])
    raw = torn.read_bytes()
    torn.write_bytes(raw[: places(raw)[kind]])
    again = tiers()
    assert again.store.find(TEXTS[0]).n == 4 * (block - 1)
    assert recall(again.store, TEXTS[0]) == tuple(TEXTS[0][: 4 * (block - 1)])
    assert keep(again.store, TEXTS[0]) == 10 - 4 * (block - 1)
    again.archive.close()
    assert recall(tiers().store, TEXTS[0]) == tuple(TEXTS[0]), "it was written again"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_torn_while_it_is_in_use(
    tiers: Callable[..., Tiers], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    written(tiers)
    again = tiers()
    torn = again.path(TEXTS[0][:8])
    raw = torn.read_bytes()
    torn.write_bytes(raw[: places(raw)[kind]])
    assert recall(again.store, TEXTS[0]) == tuple(TEXTS[0][:4])
    assert "is damaged and was deleted" in caplog.text
    assert not torn.exists()
    assert again.store.find(TEXTS[0]).n == 4
    assert recall(again.store, TEXTS[1]) == tuple(TEXTS[1])


def test_a_whole_file_in_the_place_of_another_is_not_used(tiers: Callable[..., Tiers]) -> None:
    first = written(tiers)
    again = tiers()
    shutil.copy(first.path(TEXTS[0]), first.path(TEXTS[1]))
    assert recall(again.store, TEXTS[1]) == tuple(TEXTS[1][:8])
    assert recall(again.store, TEXTS[0]) == tuple(TEXTS[0])


def test_no_flipped_bit_gives_another_text(tiers: Callable[..., Tiers], caplog: pytest.LogCaptureFixture) -> None:
    first = written(tiers, [[1, 2, 3]])
    (path,) = first.files()
    raw = path.read_bytes()
    outcomes = set()
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        again = tiers()
        text = recall(again.store, [1, 2, 3])
        outcomes.add((again.n_adopted, text))
        again.archive.close()
    # A flipped digit of `start` does no harm: where a block lies follows from those before it.
    assert outcomes == {(0, ()), (1, ()), (1, (1, 2, 3))}


def test_every_file_of_a_text_may_be_missing(tiers: Callable[..., Tiers]) -> None:
    text = list(range(20))
    for lost in range(5):
        first = written(tiers, [text])
        first.path(text[: 4 * lost + 4]).unlink()
        again = tiers()
        assert again.n_adopted == lost
        assert recall(again.store, text) == tuple(range(4 * lost))


def test_useless_files_go_when_they_are_old(tiers: Callable[..., Tiers]) -> None:
    """A new one may be half of what another process is writing."""
    first = written(tiers, [list(range(12))])
    first.path(range(8)).unlink()
    orphan = first.path(range(12))
    torn = first.directory / ("0" * 40 + ".kv")
    torn.write_bytes(b"MINK")
    unfinished = first.directory / "abc.tmp"
    unfinished.write_bytes(b"MINKA")
    assert tiers().n_adopted == 1
    assert all(path.exists() for path in (orphan, torn, unfinished))
    age(first.directory)
    again = tiers()
    assert again.n_adopted == 1
    assert list(first.directory.iterdir()) == [again.path(range(4))]


def test_what_is_not_ours_stays_and_does_no_harm(tiers: Callable[..., Tiers], tmp_path: Path) -> None:
    first = written(tiers)
    outside = tmp_path / "precious"
    outside.write_text("precious")
    (first.directory / "README").write_text("mine")
    (first.directory / "folder.kv").mkdir()
    (first.directory / "folder.kv" / "inside").write_text("mine")
    (first.directory / "folder.tmp").mkdir()
    (first.directory / "link.kv").symlink_to(outside)
    (first.directory / "loop.kv").symlink_to("loop.kv")
    os.mkfifo(first.directory / "pipe.kv")
    (first.directory / "strange \udcff name.kv").write_bytes(module._MAGIC)
    age(first.directory)
    again = tiers()
    assert again.n_adopted == 9
    assert recall(again.store, TEXTS[0]) == tuple(TEXTS[0])
    names = {"README", "folder.kv", "folder.tmp", "link.kv", "loop.kv", "pipe.kv"}
    assert {path.name for path in first.directory.iterdir()} == names | {path.name for path in first.files()} - {
        "strange \udcff name.kv"
    }
    assert outside.read_text() == "precious"


# -- forgery ---------------------------------------------------------------------------------------------------------

Head = dict[str, object]


def forge(path: Path, change: Callable[[Head], Head], *, name: str = "", body: bytes | None = None) -> Path:
    """Write a file again with another head, and the checksum that fits."""
    raw = path.read_bytes()
    magic, head, old = raw.split(b"\n", 2)
    new = old if body is None else body
    changed = {**json.loads(head), "crc": zlib.crc32(new), "size": len(new)}
    forged = path.with_stem(name) if name else path
    forged.write_bytes(magic + b"\n" + json.dumps(change(changed)).encode() + b"\n" + new)
    return forged


LIES: dict[str, Callable[[Head], Head]] = {
    "fewer bytes": lambda head: {**head, "size": 3},
    "more bytes": lambda head: {**head, "size": 300},
    "negative bytes": lambda head: {**head, "size": -3},
    "size as text": lambda head: {**head, "size": "40"},
    "other tokens": lambda head: {**head, "tokens": [9, 9, 9, 9]},
    "fewer tokens": lambda head: {**head, "tokens": [7, 7, 7]},
    "more tokens": lambda head: {**head, "tokens": [7] * 8},
    "no tokens": lambda head: {**head, "tokens": []},
    "negative tokens": lambda head: {**head, "tokens": [-1, 7, 7, 7]},
    "huge tokens": lambda head: {**head, "tokens": [2**40, 7, 7, 7]},
    "a parent that is not there": lambda head: {**head, "parent": "ab" * 20},
    "itself as its parent": lambda head: {**head, "parent": "self"},
    "a number as its parent": lambda head: {**head, "parent": 7},
    "a field less": lambda head: {key: value for key, value in head.items() if key != "crc"},
    "a list": lambda head: [*head],  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize("lie", LIES)
def test_a_head_that_lies_is_not_believed(tiers: Callable[..., Tiers], lie: str) -> None:
    first = written(tiers, [[7] * 4, [8] * 4])
    path = first.path([7] * 4)
    forge(path, lambda head: {**LIES[lie](head)} if lie != "a list" else LIES[lie](head))
    if lie == "itself as its parent":
        forge(path, lambda head: {**head, "parent": path.stem})
    again = tiers()
    assert again.n_adopted == 1
    assert again.store.find([9] * 4).n == 0
    assert recall(again.store, [7] * 8) == ()
    assert recall(again.store, [8] * 4) == (8,) * 4
    assert len(list(again.store)) == 1


@pytest.mark.parametrize("magic", [b"MINKA-KV 2\n", b"MINKA-KV 1", b"minka-kv 1\n", b"\n", b""])
def test_another_format_is_not_read(tiers: Callable[..., Tiers], magic: bytes) -> None:
    first = written(tiers, [[7] * 4])
    (path,) = first.files()
    path.write_bytes(magic + path.read_bytes().removeprefix(module._MAGIC))
    assert tiers().n_adopted == 0


@pytest.mark.parametrize("head", [b"[" * 60_000, b'{"x":' * 10_000, b"\xff\xfe", b"", b"null", b'{"parent":"\xff"}'])
def test_a_head_that_is_no_json_does_no_harm(tiers: Callable[..., Tiers], head: bytes) -> None:
    first = written(tiers, [[7] * 4])
    (path,) = first.files()
    path.write_bytes(module._MAGIC + head + b"\n")
    assert tiers().n_adopted == 0


def test_a_copy_under_another_name_is_not_taken_for_a_block(tiers: Callable[..., Tiers]) -> None:
    first = written(tiers, [[7] * 4])
    (path,) = first.files()
    for name in ("0" * 40, path.stem.upper(), "copy of it"):
        shutil.copy(path, path.with_stem(name))
    assert tiers().n_adopted == 1
    age(first.directory)
    path.unlink()
    again = tiers()
    assert again.n_adopted == 0
    assert list(again.store) == [], "a file that is not used leaves nothing behind"
    assert list(first.directory.iterdir()) == []


@pytest.mark.parametrize(
    "block", [FakeBlock(4, 0, (7, 7, 7, 7)), FakeBlock(0, 0, (7, 7)), FakeBlock(0, 0, (7, 7, 7, 7, 7))]
)
def test_a_body_with_other_positions_than_its_head_is_not_used(tiers: Callable[..., Tiers], block: FakeBlock) -> None:
    first = written(tiers, [[7] * 4])
    forge(first.path([7] * 4), lambda head: head, body=block.to_bytes())
    again = tiers()
    assert again.n_adopted == 1
    assert recall(again.store, [7] * 4) == ()
    assert again.files() == []


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_blocks_of_another_size_are_never_joined(tiers: Callable[..., Tiers], size: int) -> None:
    texts = [[7, 7, 7, 7, i, i, i, i, 1, 2, 3, 4, 5] for i in range(4)]
    written(tiers, texts)
    other = tiers(size=size)
    for text in texts:
        n = len(recall(other.store, text))
        assert n == other.store.find(text).n <= 4
        keep(other.store, text)
        assert recall(other.store, text) == tuple(text)


# -- a disk that fails -----------------------------------------------------------------------------------------------


def test_a_disk_that_takes_nothing_is_said_once_and_believed(
    tiers: Callable[..., Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    one = tiers()
    shutil.rmtree(one.directory)
    one.directory.write_text("a file where the directory was")
    for text in TEXTS:
        keep(one.store, text)
    one.flush()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot write" in caplog.text
    assert [one.store.find(text).n for text in TEXTS] == [0] * 4
    assert list(one.store) == []
    assert one.archive.n_bytes == 0
    one.directory.unlink()
    one.directory.mkdir()
    keep(one.store, TEXTS[0])
    one.flush()
    assert recall(one.store, TEXTS[0]) == tuple(TEXTS[0]), "it goes on when the disk does"


def test_a_block_that_there_is_no_memory_to_write_is_lost_and_the_next_one_is_written(
    tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_block: FakeBlock) -> bytes:
        raise MemoryError

    one = tiers(ram=PLENTY)
    with monkeypatch.context() as patch:
        patch.setattr(FakeBlock, "to_bytes", refuse)
        keep(one.store, TEXTS[0])
        one.flush()
    assert list(one.directory.iterdir()) == []
    keep(one.store, TEXTS[1])
    one.flush()
    assert one.files()


def test_a_full_disk_leaves_no_halves(
    tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, full = os.fdopen, True

    class FullDisk:
        def __init__(self, number: int) -> None:
            self.file = real(number, "wb")

        def __enter__(self) -> FullDisk:
            return self

        def __exit__(self, *_exc: object) -> None:
            self.file.close()

        def writelines(self, parts: Sequence[bytes]) -> None:
            if full:
                self.file.write(b"".join(parts)[:20])
                raise OSError(errno.ENOSPC, "No space left on device")
            self.file.writelines(parts)

    monkeypatch.setattr(os, "fdopen", lambda number, _mode: FullDisk(number))
    one = tiers(ram=PLENTY)
    keep(one.store, TEXTS[0])
    one.flush()
    assert list(one.directory.iterdir()) == []
    assert "No space left on device" in caplog.text
    assert one.store.find(TEXTS[0]).n == 10, "it is in memory"
    assert not any(node.archived for node in one.store)
    full = False
    keep(one.store, [*TEXTS[0], 1, 2, 3])
    one.flush()
    assert recall(tiers().store, [*TEXTS[0], 1, 2, 3]) == (*TEXTS[0], 1, 2, 3), "the stem is written after all"


def test_a_directory_that_cannot_be_written_is_still_read(
    tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tiers)
    (first.directory / "old.tmp").write_bytes(b"")
    age(first.directory)

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(module, "mkstemp", refuse)
    again = tiers(limit=first.archive.n_bytes // 2)
    for text in TEXTS:
        n = again.store.find(text).n
        assert recall(again.store, text) == tuple(text[:n])
        keep(again.store, text)
    again.store.clear()
    again.flush()
    assert again.archive.n_bytes == 0


def test_a_directory_that_vanishes_is_an_empty_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = DiskArchive(tmp_path / "model", PLENTY, FakeBackend().block)
    (tmp_path / "model").rmdir()
    assert archive.load_into(Store(0, archive)) == 0
    assert "cannot be read" in caplog.text
    archive.close()


def test_a_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        DiskArchive(tmp_path / "file" / "model", PLENTY, FakeBackend().block)


def test_a_slow_disk_does_not_fill_the_memory(tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKLOG", 5 * 4 * SIZE + 4)
    one = tiers(ram=PLENTY)
    release = one.hold()
    text = list(range(41))
    keep(one.store, text)
    assert len(one.archive._pending) == 5
    # There is room for the last one, which is short, but it would be of no use without the others.
    assert [node.archived for node in one.store.find(text).nodes] == [True] * 5 + [False] * 6
    release.set()
    one.flush()
    keep(one.store, [*text, 1])
    one.flush()
    assert recall(tiers().store, text) == tuple(text[: 4 * 10]), "five more come with what is stored next"
    assert one.archive._backlog == 0


# -- more than one process -------------------------------------------------------------------------------------------


def test_a_second_process_leaves_unfinished_files_alone(
    tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts, and cleans up, while the first one is in the middle of each of its writes."""
    first, unfinished = tiers(), list[Path]()

    def fdopen(number: int, mode: str) -> object:
        unfinished.extend(first.directory.glob("*.tmp"))
        Tiers(first.directory).archive.close()
        return real(number, mode)

    real = os.fdopen
    monkeypatch.setattr(os, "fdopen", fdopen)
    keep(first.store, TEXTS[0])
    first.flush()
    assert len(unfinished) == 3
    assert recall(tiers().store, TEXTS[0]) == tuple(TEXTS[0])


def test_two_processes_write_the_same_texts_at_once(tiers: Callable[..., Tiers]) -> None:
    both = tiers(), tiers()

    def work(one: Tiers, texts: Sequence[Sequence[int]]) -> None:
        for text in texts:
            keep(one.store, text)
            if text[-1] % 3 == 0:
                one.store.clear()

    texts = [[7, 7, 7, 7, i, i, i, i, i, i] for i in range(60)]
    threads = [Thread(target=work, args=(one, order)) for one, order in zip(both, (texts, texts[::-1]), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in both:
        for text in texts:
            recall(one.store, text)
        keep(one.store, TEXTS[0])
        one.archive.close()
    again = tiers()
    assert recall(again.store, TEXTS[0]) == tuple(TEXTS[0])
    for text in texts:
        recall(again.store, text)
    assert list(again.directory.glob("*.tmp")) == []


def test_what_another_process_deleted_is_computed_again(
    tiers: Callable[..., Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    first = tiers()
    keep(first.store, TEXTS[0])
    first.flush()
    second = tiers()
    second.store.clear()
    second.flush()
    assert recall(first.store, TEXTS[0]) == ()
    assert keep(first.store, TEXTS[0]) == 10
    assert recall(first.store, TEXTS[0]) == tuple(TEXTS[0])
    first.flush()
    assert first.archive.n_bytes == sum(path.stat().st_size for path in first.files())
    assert caplog.records == [], "that is nothing to complain about"


CHILD = """
import sys
from itertools import count
from pathlib import Path
from tests.engine.test_archive import Tiers, text_number
from tests.engine.test_store import keep
one = Tiers(Path(sys.argv[1]))
for i in count():
    keep(one.store, text_number(i))
    if i % 10 == 0:
        one.flush()
        print(i, flush=True)
"""


def text_number(i: int) -> list[int]:
    """A text of five blocks, of which others share some."""
    return [7, 7, 7, 7, i // 50, 0, 0, 0, i // 10, i, i, i, i, i, i, i, i, i]


def test_a_killed_process_loses_only_what_it_was_writing(tiers: Callable[..., Tiers], tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "model")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(5)]
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT)
        rest = [int(line) for line in child.stdout.read().split()]
    n_sure = max(said + rest) + 1
    again = tiers()
    for i in range(n_sure):
        assert recall(again.store, text_number(i)) == tuple(text_number(i))
    for i in range(n_sure, n_sure + 200):
        recall(again.store, text_number(i))
    assert len(list(again.directory.glob("*.tmp"))) <= 1
    age(again.directory)
    cleaned = tiers()
    assert cleaned.n_adopted == again.n_adopted == len(list(cleaned.directory.iterdir()))
