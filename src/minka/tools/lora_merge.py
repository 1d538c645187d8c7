"""Merges LoRA adapters into a model: every weight that they change, computed once and written into a new file.

What is computed, and which types come out, follows llama-export-lora (tools/export-lora of llama.cpp); besides, split
models are read, and adapters may change different weights. A piece of a weight is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minka.errors import ModelError, UsageError
from minka.ggufs.atomic import destination, replacing
from minka.ggufs.endian import swap_blocks
from minka.ggufs.layout import ValueType
from minka.ggufs.merge import open_shards
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile, Tensor
from minka.ggufs.split import SPLIT_KEYS
from minka.ggufs.values import can_dequantize, to_floats
from minka.ggufs.write import (
    NewValue,
    Placed,
    data_size,
    encode_field,
    encode_header,
    placed,
    records,
    require_complete,
    write_tensor,
)
from minka.native.machine import physical_cores
from minka.tools.lora_file import Floats, LoraFile, open_lora, shape_text

FILE_TYPE = "general.file_type"
_MOSTLY_F16 = 1
_F32, _F16 = 0, 1
PIECE = 1 << 20
"""Elements of a weight that are merged at a time, by each thread."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What was written."""

    path: Path
    merged: tuple[str, ...]
    """Weights that were changed."""
    n_tensors: int
    ignored: tuple[tuple[Path, str], ...]
    """Tensors of adapters that are no part of a pair, which a merge leaves out."""


def lora_export(
    model: str | Path,
    adapters: Sequence[tuple[str | Path, float]],
    output: str | Path,
    *,
    threads: int = 0,
    progress: Progress = silent,
) -> MergeReport:
    """Write a model with adapters merged into it, each counting times its factor.

    Merged weights are F32 if they were, else F16; all others are copied. An existing output is replaced, once the new
    one is complete. `threads` 0 is one per core. `progress` is told bytes of the output.

    Raises:
        UsageError: there is no adapter, or the output is one of the inputs.
        ModelError: a file cannot be used, or an adapter is for another model.
        MinkaError: the output cannot be written.
    """
    target = Path(output)
    if not adapters:
        raise UsageError("there is no adapter to merge: give one with --lora or --lora-scaled")
    with ExitStack() as stack:
        shards = open_shards(stack, Path(model))
        loras = [(stack.enter_context(open_lora(Path(path).expanduser())), scale) for path, scale in adapters]
        _check(shards, loras, target)
        merge = _Merge(shards, loras, threads or physical_cores())
        merge.write(target, progress)
        ignored = tuple((lora.path, name) for lora, _ in loras for name in lora.others)
        return MergeReport(target, tuple(merge.changes), merge.n_tensors, ignored)


Loras = Sequence[tuple[LoraFile, float]]
Change = tuple[Floats, Floats, float]
"""B as (matrices, rows, rank), A as (matrices, rank, columns), and their factor. One matrix may stand for all."""


def _check(shards: Sequence[GgufFile], loras: Loras, output: Path) -> None:
    """Refuse what does not fit together, before anything is written."""
    base = shards[0]
    architecture = base.get_str("general.architecture")
    destination(output, [source.path for source in (*shards, *(lora.source for lora, _ in loras))])
    for shard in shards:
        require_complete(shard)
    if base.get_str("general.type") not in (None, "model"):
        raise ModelError(f"{base.path} is no model, but a GGUF file of type {base.get_str('general.type')}")
    tensors = {tensor.name: tensor for shard in shards for tensor in shard.tensors}
    for lora, _ in loras:
        if lora.architecture != architecture:
            raise ModelError(f"{lora.path} is for {lora.architecture} models, and {base.path} is of {architecture}")
        for pair in lora.pairs.values():
            _check_weight(lora, pair.weight, pair.dims, tensors.get(pair.weight))


def _check_weight(lora: LoraFile, weight: str, dims: tuple[int, ...], tensor: Tensor | None) -> None:
    if tensor is None:
        raise ModelError(f"{lora.path} is for another model: this one has no {weight}")
    if tensor.dims[:2] != dims:
        raise ModelError(
            f"{lora.path} is for another model: it changes {weight} of {shape_text(dims)}, and here it is "
            f"{shape_text(tensor.dims)}"
        )
    if not can_dequantize(tensor.type):
        raise ModelError(f"{weight} is {tensor.type.name}, which cannot be turned into numbers to merge")
    n_matrices = tensor.n_elements // (dims[0] * dims[1])
    pair = lora.pairs[weight]
    for part in (pair.a, pair.b):
        if part.n_elements // (part.dims[0] * part.dims[1]) not in (1, n_matrices):
            raise ModelError(f"{lora.path} is for another model: {part.name} has {shape_text(part.dims)} values")


class _Merge:
    """One output: its header, and its tensors in the order of the model."""

    def __init__(self, shards: Sequence[GgufFile], loras: Loras, threads: int) -> None:
        self._shards, self._threads = shards, threads
        self.changes: dict[str, list[tuple[LoraFile, float]]] = {}
        for lora, scale in loras:
            for weight in lora.pairs:
                self.changes.setdefault(weight, []).append((lora, scale))
        self.n_tensors = sum(len(shard.tensors) for shard in shards)

    def write(self, output: Path, progress: Progress) -> None:
        """Write the file, in place only once it is whole."""
        head = self._shards[0]
        fields = list(records(head, without=SPLIT_KEYS | {FILE_TYPE}))
        fields.append(encode_field(FILE_TYPE, NewValue(ValueType.UINT32, _MOSTLY_F16), head.order))
        tensors = [self._placed(shard, tensor) for shard in self._shards for tensor in shard.tensors]
        with replacing(output, force=True) as out, ThreadPoolExecutor(self._threads) as pool:
            out.write(encode_header(fields, tensors, head.alignment, head.order))
            meter = Meter(data_size(tensors), progress)
            for shard in self._shards:
                for tensor in shard.tensors:
                    chunks = self._merged(shard, tensor, pool) if tensor.name in self.changes else shard.chunks(tensor)
                    write_tensor(out, chunks, head.alignment, meter)

    def _placed(self, shard: GgufFile, tensor: Tensor) -> Placed:
        if tensor.name not in self.changes:
            return placed(shard, tensor)
        type_id, width = (_F32, 4) if tensor.type_id == _F32 else (_F16, 2)
        return Placed(tensor.raw_name, tensor.dims, type_id, tensor.n_elements * width)

    def _merged(self, shard: GgufFile, tensor: Tensor, pool: ThreadPoolExecutor) -> Iterator[bytes]:
        """The data of a changed weight, some rows at a time."""
        changes = [self._change(lora, tensor.name, scale) for lora, scale in self.changes[tensor.name]]
        n_rows = tensor.dims[1]
        step = max(1, PIECE // tensor.dims[0])
        n_matrices = tensor.n_elements // (tensor.dims[0] * n_rows)
        pieces = [(m, start, min(start + step, n_rows)) for m in range(n_matrices) for start in range(0, n_rows, step)]
        dtype = shard.prefix + ("f4" if tensor.type_id == _F32 else "f2")

        def work(piece: tuple[int, int, int]) -> bytes:
            return _piece(shard, tensor, changes, piece).astype(dtype).tobytes()

        for group in range(0, len(pieces), self._threads):
            yield from pool.map(work, pieces[group : group + self._threads])

    @staticmethod
    def _change(lora: LoraFile, weight: str, scale: float) -> Change:
        pair = lora.pairs[weight]
        a, b = lora.floats(pair.a), lora.floats(pair.b)
        a, b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
        if pair.transposed:  # a is (rows, rank), b (columns, rank)
            a, b = b.transpose(0, 2, 1), a
        return b, a, lora.factor(pair, scale)


def _piece(shard: GgufFile, tensor: Tensor, changes: Sequence[Change], piece: tuple[int, int, int]) -> Floats:
    """Rows start..end-1 of one matrix of a weight, with the changes added."""
    matrix, start, end = piece
    columns, n_rows = tensor.dims[:2]
    kind = tensor.type
    width = columns // kind.block * kind.size
    first = tensor.data_start + (matrix * n_rows + start) * width
    raw = shard.bytes_of(first, first + (end - start) * width)
    values = to_floats(kind, raw if shard.order == "little" else swap_blocks(kind, raw))
    total = values.astype(np.float32).reshape(end - start, columns)
    for b, a, factor in changes:
        delta = b[matrix % len(b), start:end] @ a[matrix % len(a)]
        total += delta * np.float32(factor)
    return total
