"""Merges the shards of a split GGUF file, whether Minka or llama.cpp's gguf-split wrote them.

As gguf-split does, the merged file keeps the split keys with split.count set to 0, so that merging and splitting again
gives the same bytes; on request they are dropped, which gives back the file as it was before its first split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from minka.errors import ModelError
from minka.ggufs.atomic import replacing
from minka.ggufs.layout import ValueType
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile, open_gguf
from minka.ggufs.split import SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS, canonical, shard_paths
from minka.ggufs.write import (
    NewValue,
    data_size,
    encode_field,
    encode_header,
    records,
    require_complete,
    write_tensor,
)


def open_shards(stack: ExitStack, first: Path) -> tuple[GgufFile, ...]:
    """Open all shards of a split; `stack` closes them. A file that is not split is its own only shard.

    Raises:
        ModelError: `first` is not the first shard, one is missing or damaged, or they do not belong together.
    """
    head = stack.enter_context(open_gguf(first))
    count = head.get_int(SPLIT_COUNT) or 0
    if count < 2:
        return (head,)
    shards = [head]
    for path in shard_paths(first, count)[1:]:
        if not path.exists():
            raise ModelError(f"shard {path} is missing; all {count} must lie beside the first one")
        shards.append(stack.enter_context(open_gguf(path)))
    _check_together(shards)
    return tuple(shards)


def _check_together(shards: Sequence[GgufFile]) -> None:
    head, total = shards[0], sum(len(shard.tensors) for shard in shards)
    for i, shard in enumerate(shards):
        found = (shard.get_int(SPLIT_NO), shard.get_int(SPLIT_COUNT))
        if found != (i, len(shards)) or shard.order != head.order:
            raise ModelError(
                f"{shard.path} says it is number {found[0]} of {found[1]} shards (counted from 0), "
                f"not {i} of {len(shards)}: it is of another split"
            )
    expected = head.get_int(SPLIT_TENSORS)
    if expected is not None and expected != total:
        raise ModelError(f"the shards of {head.path} hold {total} tensors, their metadata announces {expected}")
    names = Counter(tensor.name for shard in shards for tensor in shard.tensors)
    for name, n in names.most_common(1):
        if n > 1:
            raise ModelError(f"the shards of {head.path} hold tensor {name} {n} times")


def merge(
    first: Path,
    output: Path,
    *,
    drop_split_keys: bool = False,
    delete_shards: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[Path, ...]:
    """Join all shards into `output`; with `delete_shards` they are removed once it is in place.

    Returns:
        The files that were joined.

    Raises:
        ModelError: a shard is missing, damaged or of another split, or `first` is not split at all.
        UsageError: `output` exists and `force` is not set.
        MinkaError: the output cannot be written.
    """
    with ExitStack() as stack:
        shards = open_shards(stack, first)
        if not shards[0].get_int(SPLIT_COUNT):
            raise ModelError(f"{first} is not a shard: it has no {SPLIT_COUNT} above zero in its metadata")
        for shard in shards:
            require_complete(shard)
        paths = tuple(shard.path for shard in shards)
        _write(shards, output, drop_split_keys=drop_split_keys, force=force, progress=progress)
    if delete_shards:
        for path in paths:
            if not (output.exists() and path.samefile(output)):
                path.unlink()
    return paths


def _write(shards: Sequence[GgufFile], output: Path, *, drop_split_keys: bool, force: bool, progress: Progress) -> None:
    head = shards[0]
    fields = list(records(head, without=SPLIT_KEYS if drop_split_keys else frozenset({SPLIT_COUNT})))
    if not drop_split_keys:
        fields.append(encode_field(SPLIT_COUNT, NewValue(ValueType.UINT16, 0), head.order))
    tensors = [canonical(shard, tensor) for shard in shards for tensor in shard.tensors]
    with replacing(output, force=force, inputs=[shard.path for shard in shards]) as out:
        out.write(encode_header(fields, tensors, head.alignment, head.order))
        meter = Meter(data_size(tensors), progress)
        for shard in shards:
            for tensor in shard.tensors:
                write_tensor(out, shard.chunks(tensor), head.alignment, meter)
