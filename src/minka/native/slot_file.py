"""Files of one sequence, as llama-server writes and reads them: a head, the tokens, and the state from libllama.

The frame is that of llama_state_seq_save_file (llama.cpp, src/llama-context.cpp); its list of tokens is packed as
server_tokens::serialize does (tools/server/server-common.cpp), or plain, as older servers wrote it. All words are of 32
bits in this machine's byte order. Knows no context: whether the state fits one is found out where it is restored.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from minka.errors import NativeError

MAGIC: Final = 0x67677371
"""LLAMA_STATE_SEQ_MAGIC, "ggsq"."""
VERSION: Final = 3
"""LLAMA_STATE_SEQ_VERSION."""
PACKED: Final = -1
"""LLAMA_TOKEN_NULL: the first word of a packed list; no plain one begins with it."""
PACKED_VERSION: Final = 1

STATE_MAGIC: Final = 0xAF143CD8
"""What a state in memory begins with, before the sequence's number; a file has neither."""

_STATE_HEAD: Final = struct.Struct("=Ii")
_HEAD: Final = struct.Struct("=III")
"""Magic, version, number of words that follow."""
_WORD: Final = 4
_INVALID = "No available space in KV cache or invalid slot save file"
"""llama-server's words for a file that is none."""


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a file holds: `tokens`, which nobody has checked against a vocabulary yet, and their `state`, as
    `Backend.restore` takes it. `n_bytes` is the size of the file.
    """

    tokens: tuple[int, ...]
    state: bytes
    n_bytes: int


def write(path: Path, tokens: tuple[int, ...], state: bytes) -> int:
    """Write a file and return its size. An older one of that name is replaced at once, when the new one is complete.

    `state` is what `Backend.save` gave for exactly these tokens. Only the user can read the file: it holds what people
    wrote. Raises OSError, and NativeError if libllama has changed how a state begins.
    """
    if len(state) < _STATE_HEAD.size or _STATE_HEAD.unpack_from(state)[0] != STATE_MAGIC:
        raise NativeError("states of this libllama begin in a way that is not known, so they cannot be put into files")
    words = array("i", (PACKED, PACKED_VERSION, len(tokens), *tokens, 0))  # 0: no images or sounds follow
    handle, beside = tempfile.mkstemp(".tmp", ".slot-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_HEAD.pack(MAGIC, VERSION, len(words)))
            file.write(words.tobytes())
            file.write(memoryview(state)[_STATE_HEAD.size :])
            size = file.tell()
        Path(beside).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(beside).unlink()
        raise
    return size


def read(path: Path, n_max: int) -> SlotFile:
    """Read a file of at most `n_max` tokens. Raises NativeError with llama-server's reason if it is none or too long.

    A link is not followed, since it could lead out of the directory.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            tokens = _tokens(_words(file, n_bytes))
            if len(tokens) > n_max:
                raise NativeError("Restored prompt does not fit in the slot context")
            state = b"".join((_STATE_HEAD.pack(STATE_MAGIC, 0), file.read()))
            return SlotFile(tokens, state, n_bytes)
    except OSError:
        raise NativeError(_INVALID) from None


def _words(file: BinaryIO, size: int) -> memoryview:
    """The words after the head, as signed integers; their number is checked before they are read.

    A pipe or a directory has no size, so no words either.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise NativeError(_INVALID)
    magic, version, n_words = _HEAD.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or n_words > (size - _HEAD.size) // _WORD:
        raise NativeError(_INVALID)
    raw = file.read(n_words * _WORD)
    if len(raw) < n_words * _WORD:  # somebody is writing to it
        raise NativeError(_INVALID)
    return memoryview(raw).cast("i")


def _tokens(words: memoryview) -> tuple[int, ...]:
    """The tokens of a packed list, or of a plain one. Reasons are those of server_tokens::deserialize."""
    if not len(words) or words[0] != PACKED:
        return tuple(words)
    if len(words) < 2 or words[1] != PACKED_VERSION:
        raise NativeError("Unsupported server tokens state version")
    rest, n_tokens = words[3:], words[2] if len(words) > 2 else -1
    if not 0 <= n_tokens < len(rest):
        raise NativeError("Unexpected end of server tokens state")
    if rest[n_tokens]:
        raise NativeError("Cannot restore media tokens without an mmproj")
    if len(rest) > n_tokens + 1:
        raise NativeError("Trailing data in server tokens state")
    return tuple(rest[:n_tokens])
