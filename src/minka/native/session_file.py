"""Prompt cache files of llama-completion: a text's tokens with the state of a whole context that holds it.

The file is that of llama_state_save_file (llama.cpp, src/llama-context.cpp). As llama-completion writes it, it has one
token more than the state has positions: the last one is computed again, to have its logits. Files are read and written
through a small context of their own, so that the state is what any model's memory makes of it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from minka.errors import MinkaError, NativeError, UsageError
from minka.native.library import library
from minka.native.model import Model
from minka.native.raw import RawContext
from minka.params import ContextParams

MAGIC: Final = 0x6767736E
"""LLAMA_SESSION_MAGIC, "ggsn"."""
VERSION: Final = 10
"""LLAMA_SESSION_VERSION."""
_HEAD: Final = struct.Struct("=III")
"""Magic, version, number of tokens."""
_CELLS: Final = 256
_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class Session:
    """A text's `tokens`, and the `state` of a sequence that holds `n_state` of them, as `Backend.save` gives it."""

    tokens: tuple[int, ...]
    state: bytes
    n_state: int


class SessionFiles:
    """Reads and writes the prompt caches of one model, for contexts of these parameters."""

    def __init__(self, model: Model, params: ContextParams) -> None:
        self._model, self._params, self._slow = model, params, library().slow

    def _context(self, n_tokens: int) -> RawContext:
        """A context that holds so many tokens, and computes nothing."""
        n_ctx = -(-(n_tokens + 1) // _CELLS) * _CELLS
        # Whatever windows the other context had, all cells find room here.
        params = replace(
            self._params, n_ctx=n_ctx, n_batch=_BATCH, n_ubatch=_BATCH, swa_full=True, kv_unified=False,
            control_vectors=(),
        )  # fmt: skip
        return RawContext(self._model, params)

    def read(self, path: Path) -> Session:
        """Read a file; one that is not there or empty is a session of no tokens.

        Raises UsageError if it is no prompt cache, or not one of this model with these types of keys and values.
        """
        n = _n_tokens(path)
        if not n:
            return Session((), b"", 0)
        tokens, count = (ctypes.c_int32 * n)(), ctypes.c_size_t(0)
        lib = library()
        with closing(self._context(n)) as context, lib.errors() as errors:
            if not self._slow.llama_state_load_file(context.pointer, os.fsencode(path), tokens, n, ctypes.byref(count)):
                reason = next(iter(errors), "libllama gave no reason")
                raise UsageError(f"the prompt cache {path} does not fit this model and these flags: {reason}")
            n_state = context.length(0)
            if not 0 < n_state <= n or not all(0 <= token < self._model.vocab.n_tokens for token in tokens):
                raise UsageError(f"the prompt cache {path} is damaged, or of another model")
            return Session(tuple(tokens), context.save(0).tobytes(), n_state)

    def write(self, path: Path, session: Session) -> None:
        """Write a file, in place only once it is whole; only the user can read it.

        If the state holds all tokens and can be cut, the last one is taken out of it. Raises MinkaError.
        """
        tokens = array("i", session.tokens)
        pointer = (ctypes.c_int32 * len(tokens)).from_buffer(tokens)
        with closing(self._context(len(tokens))) as context:
            if not context.restore(0, np.frombuffer(session.state, np.uint8)):
                raise NativeError("libllama could not take the state that it gave for the prompt cache")
            if context.length(0) == len(tokens) and not self._model.has_state:
                context.cut(0, len(tokens) - 1)
            with _replacing(path) as part, library().errors() as errors:
                if not self._slow.llama_state_save_file(context.pointer, os.fsencode(part), pointer, len(tokens)):
                    reason = next(iter(errors), "libllama gave no reason")
                    raise NativeError(f"cannot write the prompt cache {path}: {reason}")


@contextmanager
def _replacing(path: Path) -> Iterator[str]:
    """A file beside `path` that takes its place when the block is left without an error."""
    try:
        handle, part = tempfile.mkstemp(".tmp", ".prompt-", path.parent)
        os.close(handle)
        try:
            yield part
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise MinkaError(f"cannot write the prompt cache {path}: {error.strerror or error}") from error


def _n_tokens(path: Path) -> int:
    """How many tokens a file says that it has, 0 if there is no file or nothing in it. Raises UsageError."""
    try:
        with path.open("rb") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD.size)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UsageError(f"cannot read the prompt cache {path}: {error.strerror or error}") from error
    if not head:
        return 0
    if len(head) < _HEAD.size or _HEAD.unpack(head)[:2] != (MAGIC, VERSION):
        raise UsageError(f"{path} is no prompt cache, or one of another version; give another name or delete it")
    n = int(_HEAD.unpack(head)[2])
    if n > (size - _HEAD.size) // 4:
        raise UsageError(f"the prompt cache {path} is cut short; delete it")
    return n
