"""Reads the header of a GGUF file and gives access to the tensor bytes by memory map, a chunk at a time.

Reads what is there without judging it: unknown tensor types, duplicate names and offsets outside the file are kept as
found, for `check` to name and for `dump` to show; only a header that cannot be followed is an error. The reader of the
PyPI package `gguf` refuses such files, and makes one array per token of a vocabulary. Knows nothing of models.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from minka.errors import ModelError
from minka.ggufs.layout import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    SUPPORTED_VERSIONS,
    TensorType,
    ValueType,
    pad,
    tensor_type,
)

ByteOrder = Literal["little", "big"]
Scalar = bool | int | float | str
Value = Scalar | list[bool] | list[int] | list[float] | list[str]

CHUNK = 8 << 20
"""Bytes of tensor data held in memory at a time."""

# A header is held in memory, and a sparse file announces terabytes at no cost: these are far above any real model.
MAX_RECORDS = 1 << 17
"""Metadata entries, and tensors."""
MAX_KEY = 0xFFFF
"""Bytes of a key (the limit of the format) or of a tensor's name."""
MAX_ELEMENTS = 1 << 24
"""Elements of an array."""
MAX_STRING = 1 << 26
"""Bytes of a string."""
MAX_DIMS = 8
"""Dimensions that are read; ggml allows four, and `check` names what is above."""


def text(raw: bytes) -> str:
    """A value: UTF-8, with bytes that are none shown as escapes."""
    return raw.decode("utf-8", errors="backslashreplace")


def printable(words: str) -> str:
    """Words with everything that moves a cursor, clears a screen or turns text around shown as escapes."""
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def name_text(raw: bytes) -> str:
    """A name or key for people, who see it on a terminal: as `text`, and printable."""
    return printable(text(raw))


@dataclass(frozen=True, slots=True)
class Field:
    """One metadata entry: where it lies and what type it has. The value is read on demand."""

    raw_key: bytes
    type: ValueType
    element: ValueType | None
    """Type of the elements of an array, else None."""
    count: int
    """Elements of an array; 1 for a single value."""
    start: int
    """Offset in the file of the record, that is of the length of the key."""
    value_start: int
    """Offset of the value: after the type words, and after the count of an array."""
    end: int

    @property
    def key(self) -> str:
        """The key as text."""
        return name_text(self.raw_key)

    @property
    def type_name(self) -> str:
        """The type as it is shown and written: `uint32`, or `[string]` for an array."""
        return self.type.name.lower() if self.element is None else f"[{self.element.name.lower()}]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it; nothing here is checked against the file."""

    raw_name: bytes
    dims: tuple[int, ...]
    """Elements per dimension, the contiguous one first (ggml's `ne`)."""
    type_id: int
    offset: int
    """Bytes from the start of the data section."""
    start: int
    """Offset in the file of the record that describes it."""
    data_start: int
    """Offset in the file of the data."""

    @property
    def name(self) -> str:
        """The name as text."""
        return name_text(self.raw_name)

    @property
    def type(self) -> TensorType:
        """Layout of the data."""
        return tensor_type(self.type_id)

    @property
    def n_elements(self) -> int:
        """Product of the dimensions."""
        n = 1
        for dim in self.dims:
            n *= dim
        return n

    @property
    def n_bytes(self) -> int | None:
        """Bytes of the data, or None when the type is unknown."""
        kind = self.type
        return self.n_elements // kind.block * kind.size if kind.known else None


class GgufFile:
    """An open GGUF file: a context manager, closed when the block is left. Reading it needs no lock."""

    def __init__(self, path: Path, data: mmap.mmap, header: _Header) -> None:
        self.path = path
        self.size = len(data)
        self.order: ByteOrder = header.order
        self.version = header.version
        self.fields = tuple(header.fields)
        self.data_start = pad(header.end, header.alignment)
        """Offset in the file of the data section."""
        self.alignment = header.alignment
        self.tensors = tuple(
            Tensor(name, dims, type_id, offset, start, self.data_start + offset)
            for name, dims, type_id, offset, start in header.tensors
        )
        self._data = data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory map."""
        self._data.close()

    @property
    def prefix(self) -> Literal["<", ">"]:
        """The byte order in the spelling of `struct` and numpy."""
        return "<" if self.order == "little" else ">"

    def field(self, key: str) -> Field | None:
        """The first field of that key, or None."""
        return self._first.get(key.encode("utf-8", "surrogatepass"))

    @cached_property
    def _first(self) -> dict[bytes, Field]:
        """The first field of each key."""
        return {field.raw_key: field for field in reversed(self.fields)}

    def bytes_of(self, start: int, end: int) -> bytes:
        """A copy of the bytes from `start` up to `end`, fewer where the file ends."""
        return self._data[start:end]

    def value(self, field: Field, limit: int | None = None) -> Value:
        """The value of a field as Python has it; of an array, the first `limit` elements."""
        if field.type is ValueType.STRING:
            return text(self.bytes_of(field.value_start + 8, field.end))
        if field.element is None:
            value: Scalar = struct.unpack_from(self.prefix + field.type.code, self._data, field.value_start)[0]
            return value
        n = field.count if limit is None else min(limit, field.count)
        if field.element is ValueType.STRING:
            return [text(raw) for raw in self.strings(field, n)]
        return list(struct.unpack_from(f"{self.prefix}{n}{field.element.code}", self._data, field.value_start))

    def strings(self, field: Field, n: int | None = None) -> Iterator[bytes]:
        """The first `n` elements (all of them by default) of an array of strings, as raw bytes."""
        read, data, at = struct.Struct(self.prefix + "Q").unpack_from, self._data, field.value_start
        for _ in range(field.count if n is None else n):
            start = at + 8
            at = start + read(data, at)[0]
            yield data[start:at]

    def get(self, key: str) -> Value | None:
        """The value of a key, or None when the file does not have it."""
        field = self.field(key)
        return None if field is None else self.value(field)

    def get_str(self, key: str) -> str | None:
        """The value of a key when it is a string."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def get_int(self, key: str) -> int | None:
        """The value of a key when it is a whole number."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @cached_property
    def _extents(self) -> dict[int, int]:
        """For each data offset the next higher one, or the end of the data."""
        starts = sorted({tensor.data_start for tensor in self.tensors})
        return dict(zip(starts, [*starts[1:], max(self.size, starts[-1])], strict=True)) if starts else {}

    def n_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor's data; for an unknown type, all up to the next tensor (its padding included)."""
        known = tensor.n_bytes
        return self._extents[tensor.data_start] - tensor.data_start if known is None else known

    def require(self, tensor: Tensor) -> int:
        """The offset at which a tensor's data ends.

        Raises:
            ModelError: the file ends before that.
        """
        end = tensor.data_start + self.n_bytes(tensor)
        if end > self.size:
            raise ModelError(
                f"{self.path} is truncated: tensor {tensor.name} ends at byte {end}, "
                f"the file has {self.size}; download or copy it again"
            )
        return end

    def chunks(self, tensor: Tensor, size: int = CHUNK) -> Iterator[bytes]:
        """The data of a tensor in pieces of `size` bytes, the last one shorter.

        Raises:
            ModelError: the file ends before the data does.
        """
        end = self.require(tensor)
        for start in range(tensor.data_start, end, size):
            yield self._data[start : min(start + size, end)]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read at any place. Raises OSError, also for a folder, a device, and a FIFO without waiting."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", closefd=True)
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file of version 2 or 3, in either byte order, and read its header.

    Raises:
        ModelError: the file is missing, unreadable, no GGUF, of another version, or its header is cut short.
    """
    try:
        with open_regular(path) as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except ValueError:
        raise ModelError(f"{path} is empty, so it is no GGUF file") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return GgufFile(path, data, _Header(path, data))
    except BaseException:
        data.close()
        raise


class _Header:
    """One walk over the header, from the magic to the last tensor record."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 4
        self._what = "header"
        if data[:4] != MAGIC:
            raise ModelError(f"{path} is no GGUF file: it starts with {data[:4]!r}, not {MAGIC!r}")
        self.order: ByteOrder = self._find_order()
        self._prefix = "<" if self.order == "little" else ">"
        self.version = self._number("I")
        if self.version not in SUPPORTED_VERSIONS:
            raise ModelError(f"{path} is GGUF version {self.version}; only versions 2 and 3 can be read")
        n_tensors, n_fields = self._number("Q"), self._number("Q")
        self._at_most(n_tensors, MAX_RECORDS, "tensors")
        self._at_most(n_fields, MAX_RECORDS, "metadata entries")
        self.fields = [self._field(i) for i in range(self._plausible(n_fields, 12, "metadata entries"))]
        self.alignment = self._find_alignment()
        self.tensors = [self._tensor(i) for i in range(self._plausible(n_tensors, 24, "tensors"))]
        self.end = self._at

    def _find_order(self) -> ByteOrder:
        # A version is small: in the wrong byte order its low 16 bits are zero.
        (version,) = struct.unpack("<I", self._data[4:8].ljust(4, b"\xff"))
        return "big" if version & 0xFFFF == 0 and version else "little"

    def _find_alignment(self) -> int:
        """The file's alignment, or the default where the key holds nothing usable (which `check` names)."""
        for field in self.fields:
            if field.raw_key == ALIGNMENT_KEY.encode() and field.type is ValueType.UINT32:
                (value,) = struct.unpack_from(self._prefix + "I", self._data, field.value_start)
                return int(value) if value and value & (value - 1) == 0 else DEFAULT_ALIGNMENT
        return DEFAULT_ALIGNMENT

    def _skip(self, n: int) -> None:
        if n > len(self._data) - self._at:
            raise ModelError(
                f"{self._path} is truncated: {self._what} at byte {self._at} needs {n} bytes, "
                f"{len(self._data) - self._at} are left; download or copy it again"
            )
        self._at += n

    def _number(self, code: str) -> int:
        start = self._at
        self._skip(struct.calcsize("=" + code))
        value: int = struct.unpack_from(self._prefix + code, self._data, start)[0]
        return value

    def _name(self) -> bytes:
        length = self._number("Q")
        start = self._at
        self._at_most(length, MAX_KEY, "bytes of a name")
        self._skip(length)
        return self._data[start : self._at]

    def _at_most(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise ModelError(f"{self._path} is damaged: {self._what} announces {count} {what}, at most {most} are read")

    def _plausible(self, count: int, least: int, what: str) -> int:
        """A count, after making sure the file could hold so many records of `least` bytes."""
        left = len(self._data) - self._at
        if count * least > left:
            raise ModelError(
                f"{self._path} is damaged or truncated: it announces {count} {what}, {left} bytes are left for them"
            )
        return count

    def _type(self) -> ValueType:
        number = self._number("I")
        try:
            return ValueType(number)
        except ValueError:
            raise ModelError(
                f"{self._path} is damaged: {self._what} has the value type {number}, which GGUF does not define"
            ) from None

    def _field(self, index: int) -> Field:
        self._what = f"metadata entry {index}"
        start = self._at
        key = self._name()
        self._what = f"metadata {name_text(key)}"
        kind = self._type()
        element, count = None, 1
        if kind is ValueType.ARRAY:
            element, count = self._type(), self._number("Q")
            if element is ValueType.ARRAY:
                raise ModelError(f"{self._path}: {self._what} is an array of arrays, which llama.cpp has not")
        value_start = self._at
        self._skip_values(element or kind, count)
        return Field(key, kind, element, count, start, value_start, self._at)

    def _skip_values(self, kind: ValueType, count: int) -> None:
        self._at_most(count, MAX_ELEMENTS, "values")
        if kind is not ValueType.STRING:
            self._skip(kind.size * count)
            return
        self._skip_strings(self._plausible(count, 8, "strings in an array"))

    def _skip_strings(self, count: int) -> None:
        """A vocabulary has up to 250,000: a tight loop goes past what is sound, the other one says what is not."""
        read, data, at, last = struct.Struct(self._prefix + "Q").unpack_from, self._data, self._at, len(self._data) - 8
        for _ in range(count):
            if at > last or (length := read(data, at)[0]) > MAX_STRING:
                break
            at += 8 + length
        else:
            if at <= len(data):
                self._at = at
                return
        for _ in range(count):
            length = self._number("Q")
            self._at_most(length, MAX_STRING, "bytes of a string")
            self._skip(length)

    def _tensor(self, index: int) -> tuple[bytes, tuple[int, ...], int, int, int]:
        self._what = f"the record of tensor {index}"
        start = self._at
        name = self._name()
        n_dims = self._number("I")
        self._at_most(n_dims, MAX_DIMS, f"dimensions of {name_text(name)}")
        dims = tuple(self._number("Q") for _ in range(n_dims))
        type_id, offset = self._number("I"), self._number("Q")
        return name, dims, type_id, offset, start
