"""Changes metadata: one fixed-size value in place, or any number of entries in a rewritten copy.

Knows the layout, not what a key means to a model, except for the alignment, which decides the layout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minka.errors import MinkaError, UsageError
from minka.ggufs.atomic import replacing
from minka.ggufs.layout import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, VALUE_TYPE_NAMES, ValueType
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile, Scalar, Value, open_gguf
from minka.ggufs.write import (
    NewValue,
    data_size,
    encode_field,
    encode_header,
    encode_value,
    placed,
    require_complete,
    write_tensor,
)

Edits = Mapping[str, NewValue | None]
"""What to write under a key; None removes it. New keys are appended in the order given."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that `set_value` replaces, or would."""

    key: str
    type: ValueType
    old: Scalar
    new: Scalar
    offset: int
    """Where in the file the value lies."""
    raw: bytes
    """The new value as it is stored."""


def parse_scalar(kind: ValueType, words: str) -> Scalar:
    """A value as a person writes it: decimal or 0x numbers, `true` / `false`, any text for a string.

    Raises:
        UsageError: the words are no value of that type.
    """
    if kind is ValueType.STRING:
        return words
    if kind is ValueType.BOOL:
        known = {"true": True, "false": False, "1": True, "0": False}.get(words.lower())
        if known is None:
            raise UsageError(f"{words!r} is no bool; write true or false")
        return known
    try:
        return int(words, 0) if kind.is_integer else float(words)
    except ValueError:
        raise UsageError(f"{words!r} is no {kind.name.lower()}") from None


def parse_setting(words: str) -> tuple[str, NewValue]:
    """`KEY=TYPE:VALUE`, or `KEY=[TYPE]:JSON-LIST` for an array.

    Raises:
        UsageError: another form, an unknown type, or a value that is not of the type.
    """
    key, equals, rest = words.partition("=")
    name, colon, value = rest.partition(":")
    if not (key and equals and colon):
        raise UsageError(f"{words!r} is not KEY=TYPE:VALUE, such as general.name=str:Tiny or x.y=[u32]:[1,2]")
    is_array = name.startswith("[") and name.endswith("]")
    kind = VALUE_TYPE_NAMES.get(name.strip("[]").lower())
    if kind is None or kind is ValueType.ARRAY:
        raise UsageError(f"unknown type {name!r} of {key}; known are {', '.join(sorted(VALUE_TYPE_NAMES))}")
    if not is_array:
        return key, NewValue(kind, parse_scalar(kind, value))
    try:
        items = json.loads(value)
    except json.JSONDecodeError as error:
        raise UsageError(f"the value of {key} is no JSON list: {error}") from None
    if not isinstance(items, list):
        raise UsageError(f"the value of {key} is no JSON list")
    return key, NewValue(ValueType.ARRAY, items, kind)


def plan_set(source: GgufFile, key: str, words: str) -> Change:
    """What setting a key in place would do.

    Raises:
        UsageError: there is no such key, it is a string or array, or the words are no value of its type.
    """
    field = source.field(key)
    if field is None:
        raise UsageError(f"{source.path} has no key {key}; 'metadata new --set' adds one in a copy")
    if not field.type.code:
        raise UsageError(
            f"{key} is {'an array' if field.element is not None else 'a string'}, and only numbers and bools can be "
            "set in place; 'metadata new --set' writes a copy"
        )
    old = source.value(field)
    if isinstance(old, list):
        raise UsageError(f"{key} is an array")
    new = parse_scalar(field.type, words)
    if key == ALIGNMENT_KEY and new != old:
        raise UsageError(f"{key} decides where all tensors lie; 'metadata new --set' writes a copy laid out anew")
    raw = encode_value(field.type, new, source.order)
    return Change(key, field.type, old, new, field.value_start, raw)


def set_value(path: Path, key: str, words: str, *, dry_run: bool = False) -> Change:
    """Replace a number or bool of the metadata in place and sync the file. Not a byte else of it changes.

    The value is at most 8 bytes and written in one call, so no interrupt leaves half of it.

    Raises:
        ModelError: the file cannot be read as GGUF.
        UsageError: as `plan_set`.
        MinkaError: the file cannot be written.
    """
    with open_gguf(path) as source:
        change = plan_set(source, key, words)
    if dry_run or change.old == change.new:
        return change
    try:
        handle = os.open(path, os.O_RDWR)
        try:
            os.pwrite(handle, change.raw, change.offset)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise MinkaError(f"cannot write {path}: {error.strerror or error}") from error
    return change


def rewrite(source: GgufFile, output: Path, edits: Edits, *, force: bool = False, progress: Progress = silent) -> None:
    """Write a copy with other metadata: entries keep their place, new ones follow, tensor data is the same.

    Raises:
        ModelError: the source is truncated.
        UsageError: a key to remove is not there, a value does not fit, or `output` may not be written.
    """
    require_complete(source)
    alignment, fields = _plan(source, edits)
    tensors = [placed(source, tensor) for tensor in source.tensors]
    with replacing(output, force=force, inputs=(source.path,)) as out:
        out.write(encode_header(fields, tensors, alignment, source.order))
        meter = Meter(data_size(tensors), progress)
        for tensor in source.tensors:
            write_tensor(out, source.chunks(tensor), alignment, meter)


def describe(source: GgufFile, edits: Edits) -> tuple[str, ...]:
    """What `rewrite` would change, a line per edit, for people. Raises UsageError as it does."""
    _plan(source, edits)
    return tuple(_describe(source, key, new) for key, new in edits.items())


def _plan(source: GgufFile, edits: Edits) -> tuple[int, list[bytes]]:
    """The alignment and the metadata records of the copy."""
    missing = [key for key, new in edits.items() if new is None and source.field(key) is None]
    if missing:
        raise UsageError(f"{source.path} has no key {missing[0]} to remove")
    return _alignment_after(source, edits), _edited(source, edits)


def _edited(source: GgufFile, edits: Edits) -> list[bytes]:
    """All records of the copy. A key that the source holds twice, which libllama refuses, is written once if edited."""
    encoded = {key: encode_field(key, new, source.order) for key, new in edits.items() if new is not None}
    fields = []
    for field in source.fields:
        if field.key not in edits:
            fields.append(source.bytes_of(field.start, field.end))
        elif field.key in encoded:
            fields.append(encoded.pop(field.key))
    return fields + list(encoded.values())


def _alignment_after(source: GgufFile, edits: Edits) -> int:
    if ALIGNMENT_KEY not in edits:
        return source.alignment
    new = edits[ALIGNMENT_KEY]
    if new is None:
        return DEFAULT_ALIGNMENT
    value = new.value
    if new.type is not ValueType.UINT32 or not isinstance(value, int) or value < 1 or value & (value - 1):
        raise UsageError(f"{ALIGNMENT_KEY} must be a uint32 and a power of two, such as {ALIGNMENT_KEY}=u32:32")
    return value


def shown(value: Value, width: int = 60) -> str:
    """A value on one short line."""
    words = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return words if len(words) <= width else words[: width - 3] + "..."


def _describe(source: GgufFile, key: str, new: NewValue | None) -> str:
    field = source.field(key)
    old = None if field is None else shown(source.value(field, 8))
    if new is None:
        return f"removed {key} (was {old})"
    if old is None:
        return f"added   {key} = {shown(new.value)}"
    return f"changed {key}: {old} -> {shown(new.value)}"
