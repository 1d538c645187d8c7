"""Base files: the log-probabilities of every scored token of a text, by one model, for others to be compared with.

The format is llama-perplexity's (`--kl-divergence-base`), in the machine's byte order: `_logits_`, int32 n_ctx, n_vocab
and n_chunks, int32 tokens[n_chunks * n_ctx], then for each chunk n_ctx - 1 - n_ctx/2 coded rows (see `scoring_math`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import numpy as np

from minka.errors import MinkaError, UsageError
from minka.ggufs.atomic import destination, ended_by_signals, part_of
from minka.ggufs.read import open_regular
from minka.tools.scoring_math import I32, U16, row_width

MAGIC: Final = b"_logits_"
_HEAD: Final = struct.Struct("=8siii")
_PIECE: Final = 1 << 24
"""Bytes that are moved at a time when a file is shortened."""


def scored_rows(n_ctx: int) -> int:
    """Rows of one chunk."""
    return n_ctx - 1 - n_ctx // 2


@dataclass(frozen=True, slots=True)
class BaseHead:
    """What a base file says before its rows. `tokens` has n_chunks * n_ctx."""

    n_ctx: int
    n_vocab: int
    tokens: I32

    @property
    def n_chunks(self) -> int:
        """Windows of the text."""
        return len(self.tokens) // self.n_ctx

    @property
    def size(self) -> int:
        """Bytes before the first row."""
        return _HEAD.size + self.tokens.nbytes

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """Rows of a chunk, and their width in uint16."""
        return scored_rows(self.n_ctx), row_width(self.n_vocab)

    def to_bytes(self) -> bytes:
        """The head as it is in the file."""
        return _HEAD.pack(MAGIC, self.n_ctx, self.n_vocab, self.n_chunks) + self.tokens.astype(np.int32).tobytes()


class BaseWriter:
    """Writes a base file, which appears under its name when the block is left.

    After an interrupt it holds the chunks that were complete. With none of them, or after an error, there is no file.
    """

    def __init__(self, path: Path, n_ctx: int, tokens: I32, n_vocab: int) -> None:
        self._path = destination(path)
        self._part = part_of(self._path)
        self._head = BaseHead(n_ctx, n_vocab, tokens)
        self._file: BinaryIO
        self._undo = ExitStack()
        self.n_written = 0

    def __enter__(self) -> Self:
        with self._undo, self._told():
            self._undo.enter_context(ended_by_signals())
            self._undo.callback(self._part.unlink, missing_ok=True)
            self._file = self._undo.enter_context(self._part.open("xb+"))
            self._file.write(self._head.to_bytes())
            self._undo = self._undo.pop_all()
        return self

    def write(self, rows: U16, *, complete: bool) -> None:
        """Append coded rows; `complete` if they are the last ones of a chunk."""
        with self._told():
            self._file.write(rows.data)
        self.n_written += complete

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MinkaError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wanted = kind is None or not issubclass(kind, Exception)  # an interrupt is none, nor is a closed generator
        with self._undo, self._told():
            if wanted and self.n_written < self._head.n_chunks:
                self._shorten()
            self._file.close()
            if wanted and self.n_written:
                self._part.replace(self._path)

    def _shorten(self) -> None:
        """Make the file one of only the chunks that are complete."""
        rows, width = self._head.chunk_shape
        size = self.n_written * rows * width * 2
        tokens = self._head.tokens[: self.n_written * self._head.n_ctx]
        head = BaseHead(self._head.n_ctx, self._head.n_vocab, tokens).to_bytes()
        for start in range(0, size, _PIECE):
            self._file.seek(self._head.size + start)
            piece = self._file.read(min(_PIECE, size - start))
            self._file.seek(len(head) + start)
            self._file.write(piece)
        self._file.truncate(len(head) + size)
        self._file.seek(0)
        self._file.write(head)


class BaseReader:
    """Reads a base file chunk by chunk. Raises UsageError for a file that is none or is cut short."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise UsageError(f"cannot read the base file {path}: {error.strerror}") from None
        try:
            self.head = self._read_head()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read_head(self) -> BaseHead:
        start = self._file.read(_HEAD.size)
        if len(start) < _HEAD.size or not start.startswith(MAGIC):
            raise UsageError(f"{self._path} is no file of log-probabilities; make one with --kl-divergence-base")
        _, n_ctx, n_vocab, n_chunks = _HEAD.unpack(start)
        size = self._path.stat().st_size
        if min(n_ctx, n_vocab, n_chunks) < 1 or _HEAD.size + 4 * n_ctx * n_chunks > size:
            raise self._broken(f"{n_chunks} chunks of {n_ctx} tokens")
        tokens = np.fromfile(self._file, np.int32, n_ctx * n_chunks)
        if tokens.min() < 0 or tokens.max() >= n_vocab:
            raise self._broken(f"a token outside 0 to {n_vocab - 1}")
        return BaseHead(n_ctx, n_vocab, tokens)

    def _broken(self, what: str) -> UsageError:
        return UsageError(f"the base file {self._path} is broken or cut short: its head tells of {what}")

    def read(self, n_rows: int) -> U16:
        """The next rows, shape (n_rows, width). Raises UsageError where the file ends."""
        width = self.head.chunk_shape[1]
        rows = np.fromfile(self._file, np.uint16, n_rows * width)
        if len(rows) < n_rows * width:
            raise UsageError(
                f"the base file {self._path} ends before the last of its {self.head.n_chunks} chunks; make it again"
            )
        return rows.reshape(n_rows, width)
