"""Writes GGUF files: encodes metadata records, lays out tensors, copies their data from an open file in chunks.

Records that nobody changed are copied byte for byte. Layout as in ggml/src/gguf.cpp of llama.cpp: header, metadata,
tensor records, padding to the alignment, then each tensor's data padded to the alignment, the last one as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from minka.errors import UsageError
from minka.ggufs.layout import MAGIC, VERSION, ValueType, pad
from minka.ggufs.progress import Meter
from minka.ggufs.read import ByteOrder, GgufFile, Tensor, Value


@dataclass(frozen=True, slots=True)
class NewValue:
    """A metadata value to be written."""

    type: ValueType
    value: Value
    element: ValueType | None = None
    """Type of the elements when `type` is ARRAY."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor's record in a file to be written."""

    raw_name: bytes
    dims: tuple[int, ...]
    type_id: int
    n_bytes: int


def letter(order: ByteOrder) -> str:
    """The byte order in the spelling of `struct` and numpy."""
    return "<" if order == "little" else ">"


def encode_string(raw: bytes, order: ByteOrder) -> bytes:
    """A string as GGUF stores it: its length in bytes, then the bytes."""
    return struct.pack(letter(order) + "Q", len(raw)) + raw


def _utf8(words: str) -> bytes:
    try:
        return words.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{words!r} is no text: it has no form in UTF-8") from None


def encode_value(kind: ValueType, value: object, order: ByteOrder) -> bytes:
    """One value without its type.

    Raises:
        UsageError: the value is not of that type, or out of its range.
    """
    if kind is ValueType.STRING:
        if not isinstance(value, str):
            raise UsageError(f"{value!r} is no string")
        return encode_string(_utf8(value), order)
    if kind is ValueType.BOOL and not isinstance(value, bool):
        raise UsageError(f"{value!r} is no bool; write true or false")
    try:
        return struct.pack(letter(order) + kind.code, value)
    except (struct.error, OverflowError):
        raise UsageError(f"{value!r} does not fit the type {kind.name.lower()}") from None


def encode_field(key: str, new: NewValue, order: ByteOrder) -> bytes:
    """A whole metadata record. Raises what `encode_value` raises."""
    prefix = letter(order)
    head = encode_string(_utf8(key), order) + struct.pack(prefix + "I", new.type)
    if new.type is not ValueType.ARRAY:
        return head + encode_value(new.type, new.value, order)
    if new.element is None or not isinstance(new.value, list):
        raise UsageError(f"{key}: an array needs a list of values and the type of its elements")
    element = new.element
    values: Iterable[object] = new.value
    body = b"".join(encode_value(element, value, order) for value in values)
    return head + struct.pack(prefix + "IQ", element, len(new.value)) + body


def placed(source: GgufFile, tensor: Tensor) -> Placed:
    """The record of a tensor that is to be copied as it is."""
    return Placed(tensor.raw_name, tensor.dims, tensor.type_id, source.n_bytes(tensor))


def encode_header(
    fields: Sequence[bytes], tensors: Sequence[Placed], alignment: int, order: ByteOrder, version: int = VERSION
) -> bytes:
    """Everything before the data section, padded to `alignment`; data offsets follow from the order of `tensors`."""
    prefix = letter(order)
    parts = [MAGIC, struct.pack(prefix + "IQQ", version, len(tensors), len(fields)), *fields]
    offset = 0
    for tensor in tensors:
        parts.append(encode_string(tensor.raw_name, order))
        parts.append(struct.pack(f"{prefix}I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims))
        parts.append(struct.pack(prefix + "IQ", tensor.type_id, offset))
        offset += pad(tensor.n_bytes, alignment)
    header = b"".join(parts)
    return header.ljust(pad(len(header), alignment), b"\0")


def write_tensor(out: BinaryIO, chunks: Iterator[bytes], alignment: int, meter: Meter) -> None:
    """Append one tensor's data and its padding."""
    n = 0
    for chunk in chunks:
        out.write(chunk)
        n += len(chunk)
        meter.add(len(chunk))
    out.write(b"\0" * (pad(n, alignment) - n))


def records(source: GgufFile, without: frozenset[str] = frozenset()) -> Iterator[bytes]:
    """The metadata records of a file as they are, but for the keys in `without`."""
    for field in source.fields:
        if field.key not in without:
            yield source.bytes_of(field.start, field.end)


def data_size(tensors: Iterable[Placed]) -> int:
    """Bytes of tensor data without padding: the total of a copy."""
    return sum(tensor.n_bytes for tensor in tensors)


def require_complete(source: GgufFile) -> None:
    """Refuse a file whose tensor data is cut short, before any output is begun.

    Raises:
        ModelError: some tensor's data ends after the file does.
    """
    for tensor in source.tensors:
        source.require(tensor)
