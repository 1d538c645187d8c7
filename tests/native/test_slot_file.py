"""Files of slots: the layout to the byte, what is refused, and that libllama itself reads and writes the same."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from minka.errors import NativeError
from minka.native import slot_file
from minka.native.context import Context
from minka.native.slot_file import SlotFile

Contexts = Callable[..., Context]
TOKENS = (1, 300, 301, 302)
BODY = b"the state"
STATE = struct.pack("=Ii", slot_file.STATE_MAGIC, 0) + BODY
INVALID = "No available space in KV cache or invalid slot save file"


def words(*values: int) -> bytes:
    return struct.pack(f"={len(values)}i", *values)


def head(n_words: int, magic: int = slot_file.MAGIC, version: int = slot_file.VERSION) -> bytes:
    return struct.pack("=III", magic, version, n_words)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    size = slot_file.write(tmp_path / "a.bin", TOKENS, STATE)
    assert slot_file.read(tmp_path / "a.bin", 100) == SlotFile(TOKENS, STATE, size)
    assert (tmp_path / "a.bin").stat().st_size == size


def test_the_layout_is_llama_servers(tmp_path: Path) -> None:
    slot_file.write(tmp_path / "a.bin", TOKENS, STATE)
    expected = b"qsgg" + words(3, 8) + words(-1, 1, 4, *TOKENS, 0) + BODY
    assert (tmp_path / "a.bin").read_bytes() == expected


def test_an_empty_slot_has_a_file_too(tmp_path: Path) -> None:
    slot_file.write(tmp_path / "a.bin", (), STATE)
    assert slot_file.read(tmp_path / "a.bin", 100).tokens == ()


def test_a_plain_list_of_tokens_is_read(tmp_path: Path) -> None:
    (tmp_path / "old.bin").write_bytes(head(4) + words(*TOKENS) + BODY)
    assert slot_file.read(tmp_path / "old.bin", 4) == SlotFile(TOKENS, STATE, 37)
    (tmp_path / "empty.bin").write_bytes(head(0) + BODY)
    assert slot_file.read(tmp_path / "empty.bin", 4).tokens == ()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", INVALID),
        (b"qsgg\x03\0\0\0\1\0\0", INVALID),
        (head(0, magic=1) + STATE, INVALID),
        (head(0, version=2) + STATE, INVALID),
        (head(3) + words(1, 2), INVALID),
        (head(2**32 - 1) + STATE, INVALID),
        (head(1) + words(-1), "Unsupported server tokens state version"),
        (head(3) + words(-1, 2, 0), "Unsupported server tokens state version"),
        (head(2) + words(-1, 1), "Unexpected end of server tokens state"),
        (head(3) + words(-1, 1, 0), "Unexpected end of server tokens state"),
        (head(5) + words(-1, 1, 2, 7, 8), "Unexpected end of server tokens state"),
        (head(5) + words(-1, 1, -1, 7, 0), "Unexpected end of server tokens state"),
        (head(6) + words(-1, 1, 1, 7, 1, 0), "Cannot restore media tokens without an mmproj"),
        (head(6) + words(-1, 1, 1, 7, 0, 0), "Trailing data in server tokens state"),
        (head(9) + words(-1, 1, 5, 1, 2, 3, 4, 5, 0), "Restored prompt does not fit in the slot context"),
        (head(5) + words(1, 2, 3, 4, 5), "Restored prompt does not fit in the slot context"),
    ],
)
def test_anything_else_is_refused_with_llama_servers_reason(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "bad.bin").write_bytes(raw)
    with pytest.raises(NativeError) as caught:
        slot_file.read(tmp_path / "bad.bin", 4)
    assert str(caught.value) == reason


def test_only_a_regular_file_of_the_directory_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "slots"
    directory.mkdir()
    slot_file.write(tmp_path / "outside.bin", TOKENS, STATE)
    (directory / "link.bin").symlink_to(tmp_path / "outside.bin")
    os.mkfifo(directory / "pipe.bin")
    for name in ("link.bin", "pipe.bin", "missing.bin", ""):
        with pytest.raises(NativeError, match=INVALID):
            slot_file.read(directory / name, 100)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("untouched")
    (tmp_path / "link.bin").symlink_to(tmp_path / "precious")
    slot_file.write(tmp_path / "link.bin", TOKENS, STATE)
    assert (tmp_path / "precious").read_text() == "untouched"
    assert slot_file.read(tmp_path / "link.bin", 100).tokens == TOKENS


def test_a_file_is_for_its_owner_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for tokens in (TOKENS, TOKENS[:2]):
        slot_file.write(path, tokens, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.mkdir()  # no file can take its place
    with pytest.raises(IsADirectoryError):
        slot_file.write(path, TOKENS, STATE)
    with pytest.raises(NativeError, match="begin in a way that is not known"):
        slot_file.write(path, TOKENS, BODY)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        slot_file.write(tmp_path / "no" / "such.bin", TOKENS, STATE)


def compute(context: Context) -> bytes:
    """The state of a sequence that holds TOKENS."""
    context.add(1, TOKENS, 0, logits=0)
    context.decode()
    return context.save(1)


# -- libllama ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
def test_libllama_restores_our_file(context: Contexts, tmp_path: Path, unified: bool, name: str) -> None:
    one, other = context(name, kv_unified=unified), context(name, kv_unified=unified)
    state = compute(one)
    size = slot_file.write(tmp_path / "a.bin", TOKENS, state)
    packed, n = (ctypes.c_int32 * 64)(), ctypes.c_size_t()
    load = other._slow.llama_state_seq_load_file
    assert load(other._open(), bytes(tmp_path / "a.bin"), 1, packed, 64, ctypes.byref(n)) == size
    assert list(packed)[: n.value] == [-1, 1, 4, *TOKENS, 0]
    assert other.length(1) == len(TOKENS)
    assert other.save(1) == state


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
def test_we_restore_a_file_of_libllama(context: Contexts, tmp_path: Path, unified: bool, name: str) -> None:
    one, other = context(name, kv_unified=unified), context(name, kv_unified=unified)
    state = compute(one)
    plain = (ctypes.c_int32 * 4)(*TOKENS)
    save = one._slow.llama_state_seq_save_file
    assert save(one._open(), bytes(tmp_path / "b.bin"), 1, plain, 4)
    file = slot_file.read(tmp_path / "b.bin", 100)
    assert file.tokens == TOKENS
    assert file.state[8:] == state[8:]
    assert other.restore(1, file.state)
    assert other.length(1) == len(TOKENS)
    assert other.save(1) == state
