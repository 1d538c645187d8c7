"""Splits a GGUF file into shards as llama.cpp's gguf-split does, so that either's shards load and merge in the other.

All metadata goes into the first shard; each shard also has split.no, split.count and split.tensors.count, in the order
and with the types that gguf-split writes them. Source: tools/gguf-split/gguf-split.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minka.errors import ModelError, UsageError
from minka.ggufs.atomic import Staging
from minka.ggufs.layout import DEFAULT_ALIGNMENT, ValueType, pad
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile, Tensor
from minka.ggufs.write import (
    NewValue,
    Placed,
    data_size,
    encode_field,
    encode_header,
    records,
    require_complete,
    write_tensor,
)

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
SPLIT_KEYS = frozenset({SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS})
DEFAULT_MAX_TENSORS = 128
MAX_SHARDS = 0xFFFF
"""split.count is a 16-bit number."""

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """When a shard is full: by the number of tensors, or, where `max_bytes` is given, by their size instead."""

    max_tensors: int = DEFAULT_MAX_TENSORS
    max_bytes: int | None = None
    """Limit of the tensor data of a shard, each tensor padded to 32 bytes; the header is not counted."""
    no_tensor_first: bool = False
    """Keep tensors out of the first shard, which then holds metadata only."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a split, complete in memory but for its tensor data."""

    header: bytes
    tensors: tuple[Tensor, ...]
    n_bytes: int
    """Header and tensor data, without padding between tensors: what gguf-split prints as total_size."""


def parse_size(words: str) -> int:
    """`N`M or `N`G in decimal units, as bytes.

    Raises:
        UsageError: another form, or not above zero.
    """
    match = re.fullmatch(r"([0-9]{1,9})([MG])", words)
    if not match or not int(match[1]):
        raise UsageError(f"size {words!r} is not a positive number with M or G behind it, such as 500M or 2G")
    return int(match[1]) * (10**6 if match[2] == "M" else 10**9)


def shard_path(prefix: Path, number: int, count: int) -> Path:
    """File of shard `number`, counted from 0, of `count`."""
    return prefix.with_name(f"{prefix.name}-{number + 1:05d}-of-{count:05d}.gguf")


def shard_paths(first: Path, count: int) -> tuple[Path, ...]:
    """The files of all shards, given the first one and the number in its metadata.

    Raises:
        ModelError: `first` is not named as the first shard of `count`.
    """
    match = _SHARD_NAME.fullmatch(first.name)
    if not match or int(match["no"]) != 1 or int(match["count"]) != count:
        raise ModelError(
            f"{first} is not named as the first of {count} shards; its name must end with -00001-of-{count:05d}.gguf"
        )
    return tuple(shard_path(first.with_name(match["prefix"]), i, count) for i in range(count))


def canonical_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """Dimensions without ones at the end, and at least one of them: how ggml writes a tensor it has read."""
    n = max((i + 1 for i, dim in enumerate(dims) if dim != 1), default=1)
    return tuple(dims[:n]) or (1,)


def canonical(source: GgufFile, tensor: Tensor) -> Placed:
    """The record of a tensor as gguf-split writes it."""
    return Placed(tensor.raw_name, canonical_dims(tensor.dims), tensor.type_id, source.n_bytes(tensor))


def group_tensors(source: GgufFile, rule: SplitRule) -> list[tuple[Tensor, ...]]:
    """The tensors of each shard. One tensor above the size limit gets a shard of its own.

    Raises:
        UsageError: a limit is not above zero.
    """
    if rule.max_tensors < 1 or (rule.max_bytes is not None and rule.max_bytes < 1):
        raise UsageError("a shard must hold at least one tensor; raise the limit")
    groups: list[list[Tensor]] = [[], []] if rule.no_tensor_first else [[]]
    filled = 0
    for i, tensor in enumerate(source.tensors):
        size = pad(source.n_bytes(tensor), DEFAULT_ALIGNMENT)
        full = i % rule.max_tensors == 0 if rule.max_bytes is None else filled + size > rule.max_bytes
        if full and groups[-1]:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    return [tuple(group) for group in groups]


def plan_split(source: GgufFile, rule: SplitRule) -> tuple[Shard, ...]:
    """The shards that `split` would write.

    Raises:
        UsageError: the rule cannot be followed, or makes more than 65,535 shards.
    """
    groups = group_tensors(source, rule)
    if len(groups) > MAX_SHARDS:
        raise UsageError(f"{len(groups)} shards are more than the {MAX_SHARDS} the format can count; raise the limit")
    return tuple(_shard(source, i, len(groups), group) for i, group in enumerate(groups))


def _shard(source: GgufFile, number: int, count: int, tensors: tuple[Tensor, ...]) -> Shard:
    fields = list(records(source, without=SPLIT_KEYS)) if number == 0 else []
    fields += _split_records(source, number, count)
    infos = [canonical(source, tensor) for tensor in tensors]
    header = encode_header(fields, infos, _shard_alignment(source, number), source.order)
    return Shard(header, tensors, len(header) + data_size(infos))


def _split_records(source: GgufFile, number: int, count: int) -> Iterator[bytes]:
    # gguf-split sets the count last, once it is known, which moves it behind the other two.
    yield encode_field(SPLIT_NO, NewValue(ValueType.UINT16, number), source.order)
    yield encode_field(SPLIT_TENSORS, NewValue(ValueType.INT32, len(source.tensors)), source.order)
    yield encode_field(SPLIT_COUNT, NewValue(ValueType.UINT16, count), source.order)


def _shard_alignment(source: GgufFile, number: int) -> int:
    """Only the first shard carries general.alignment, so a loader takes the default for the others."""
    return source.alignment if number == 0 else DEFAULT_ALIGNMENT


def split(
    source: GgufFile, prefix: Path, rule: SplitRule, *, force: bool = False, progress: Progress = silent
) -> tuple[Path, ...]:
    """Write the shards `PREFIX-00001-of-0000N.gguf` and so on; they appear together when all are complete.

    Raises:
        ModelError: the source is truncated.
        UsageError: the rule cannot be followed, or a shard's file exists and `force` is not set.
        MinkaError: a file cannot be written.
    """
    require_complete(source)
    shards = plan_split(source, rule)
    meter = Meter(sum(source.n_bytes(tensor) for tensor in source.tensors), progress)
    paths = tuple(shard_path(prefix, i, len(shards)) for i in range(len(shards)))
    with Staging(force=force, inputs=(source.path,)) as staging:
        for i, (shard, path) in enumerate(zip(shards, paths, strict=True)):
            with staging.open(path) as out:
                out.write(shard.header)
                for tensor in shard.tensors:
                    write_tensor(out, source.chunks(tensor), _shard_alignment(source, i), meter)
    return paths
