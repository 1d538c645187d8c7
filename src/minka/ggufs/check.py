"""Looks for everything that makes a GGUF file unfit to load: structure, layout, vocabulary and tensor data.

Reports what it finds and repairs nothing. A header that cannot be followed at all is an error of `open_gguf`, not a
problem listed here. The rules are those of ggml/src/gguf.cpp, plus what a loader would only notice when it is too late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minka.ggufs.layout import ALIGNMENT_KEY, MAX_DIMS, MAX_NAME, REMOVED_TYPES, ValueType, pad
from minka.ggufs.loadable import faults
from minka.ggufs.nonfinite import count_nonfinite
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile, Tensor
from minka.ggufs.vocab import TOKENS

_MAX_ELEMENTS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    where: str
    """`header`, `metadata KEY` or `tensor NAME`."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check(source: GgufFile, *, data: bool = True, progress: Progress = silent) -> tuple[Problem, ...]:
    """All problems of a file; empty when it is sound.

    Args:
        data: read all tensor data and look for NaN and infinity.
    """
    fatal = (Problem(f"metadata {key}", what) for key, what in faults(source))
    problems = [*_check_metadata(source), *_check_vocabulary(source), *fatal, *_check_tensors(source)]
    if data:
        problems += _check_data(source, progress)
    return tuple(problems)


def _check_metadata(source: GgufFile) -> Iterator[Problem]:
    for raw, n in Counter(field.raw_key for field in source.fields).items():
        where = f"metadata {raw.decode(errors='backslashreplace')}"
        if not raw:
            yield Problem("metadata", "a key is empty")
        if n > 1:
            yield Problem(where, f"the key is there {n} times")
        if not _is_utf8(raw):
            yield Problem(where, "the key is not UTF-8")
    field = source.field(ALIGNMENT_KEY)
    if field is not None:
        value = source.value(field)
        if field.type is not ValueType.UINT32:
            yield Problem(f"metadata {ALIGNMENT_KEY}", f"is of type {field.type_name}, must be uint32")
        elif value != source.alignment:
            yield Problem(f"metadata {ALIGNMENT_KEY}", f"is {value}, must be a power of two")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_vocabulary(source: GgufFile) -> Iterator[Problem]:
    tokens = source.field(TOKENS)
    if tokens is None or tokens.element is None:
        return
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        field = source.field(key)
        if field is not None and field.count != tokens.count:
            yield Problem(f"metadata {key}", f"has {field.count} entries for {tokens.count} tokens")
    for field in source.fields:
        token = source.get_int(field.key) if field.key.endswith("_token_id") else None
        if token is not None and not 0 <= token < tokens.count and token not in (-1, 0xFFFFFFFF):
            yield Problem(f"metadata {field.key}", f"is token {token}, there are {tokens.count}")


def _check_tensors(source: GgufFile) -> Iterator[Problem]:
    for raw, n in Counter(tensor.raw_name for tensor in source.tensors).items():
        if n > 1:
            yield Problem(f"tensor {raw.decode(errors='backslashreplace')}", f"the name is there {n} times")
    for tensor in source.tensors:
        for what in (*_wrong_with_info(tensor), *_wrong_with_place(source, tensor)):
            yield Problem(f"tensor {tensor.name}", what)
    yield from _check_layout(source)


def _wrong_with_info(tensor: Tensor) -> Iterator[str]:
    kind = tensor.type
    if len(tensor.raw_name) >= MAX_NAME:
        yield f"the name has {len(tensor.raw_name)} bytes, libllama allows {MAX_NAME - 1}"
    if not _is_utf8(tensor.raw_name):
        yield "the name is not UTF-8"
    if len(tensor.dims) > MAX_DIMS:
        yield f"has {len(tensor.dims)} dimensions, ggml allows {MAX_DIMS}"
    if tensor.n_elements > _MAX_ELEMENTS or any(dim > _MAX_ELEMENTS for dim in tensor.dims):
        yield f"the shape {_shape(tensor)} overflows 63 bits"
    if tensor.type_id in REMOVED_TYPES:
        yield f"type {tensor.type_id} ({kind.name}) was removed from llama.cpp; quantise the model again"
    elif not kind.known:
        yield f"type {tensor.type_id} is unknown"
    elif (row := tensor.dims[0] if tensor.dims else 1) % kind.block:
        yield f"a row of {row} elements is not a whole number of {kind.name} blocks of {kind.block}"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.dims))


def _wrong_with_place(source: GgufFile, tensor: Tensor) -> Iterator[str]:
    end = tensor.data_start + source.n_bytes(tensor)
    if tensor.offset % source.alignment:
        yield f"offset {tensor.offset} is not a multiple of the alignment {source.alignment}"
    if end > source.size:
        yield f"data ends at byte {end}, the file has {source.size}: truncated, download or copy it again"


def _check_layout(source: GgufFile) -> Iterator[Problem]:
    """Overlaps, and gaps or another order than the records', which libllama refuses as well."""
    overlapping = set()
    widest: Tensor | None = None
    for tensor in sorted(source.tensors, key=lambda tensor: tensor.offset):
        end = 0 if widest is None else widest.offset + source.n_bytes(widest)
        if widest is not None and end > tensor.offset:
            overlapping.add(tensor)
            yield Problem(f"tensor {tensor.name}", f"starts {end - tensor.offset} bytes before {widest.name} ends")
        if widest is None or tensor.offset + source.n_bytes(tensor) > end:
            widest = tensor
    expected = 0
    for tensor in source.tensors:
        if tensor.offset != expected and tensor not in overlapping:
            yield Problem(f"tensor {tensor.name}", f"is at offset {tensor.offset}, libllama expects {expected}")
        expected = pad(tensor.offset + source.n_bytes(tensor), source.alignment)


def _check_data(source: GgufFile, progress: Progress) -> list[Problem]:
    tensors = [tensor for tensor in source.tensors if _readable(source, tensor)]
    meter = Meter(sum(source.n_bytes(tensor) for tensor in tensors), progress)
    problems = []
    for tensor in tensors:
        bad = count_nonfinite(source, tensor, meter)
        if bad is not None:
            total = tensor.n_elements // tensor.type.block
            what = "values are" if tensor.type.block == 1 else "blocks have a scale that is"
            problems.append(
                Problem(
                    f"tensor {tensor.name}",
                    f"{bad.n_blocks} of {total} {what} NaN or infinite, the first at index {bad.first}",
                )
            )
    return problems


def _readable(source: GgufFile, tensor: Tensor) -> bool:
    return bool(tensor.type.known and tensor.data_start + source.n_bytes(tensor) <= source.size)


def summary(source: GgufFile, problems: Sequence[Problem]) -> str:
    """One line that says how the check went."""
    count = f"{len(source.fields)} metadata entries, {len(source.tensors)} tensors"
    verdict = "no problem found" if not problems else f"{len(problems)} problem{'s' * (len(problems) > 1)} found"
    return f"{source.path}: {count}, {verdict}"
