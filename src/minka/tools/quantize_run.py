"""Quantizes a GGUF file as llama.cpp's llama-quantize does, byte for byte, without ever leaving half a file.

Checks options and source against each other, stages the output, and leaves the work to a process (`quantize_child`).
Knows no command line and no terminal.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minka.errors import ModelError, UsageError
from minka.ggufs.atomic import Staging, destination
from minka.ggufs.layout import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from minka.ggufs.progress import Progress, silent
from minka.ggufs.read import GgufFile, open_gguf
from minka.ggufs.split import SPLIT_COUNT, shard_path, shard_paths
from minka.tools.quantize_child import Child
from minka.tools.quantize_options import QuantizeOptions, check_options
from minka.tools.quantize_plan import Fallback, PlannedTensor, layer_of, moved_layers
from minka.tools.quantize_types import FileType, file_type, tensor_type
from minka.tools.quantize_worker import Job


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was done, or would be."""

    paths: tuple[Path, ...]
    """The new files; empty after a dry run."""
    type: FileType
    tensors: tuple[PlannedTensor, ...]
    fallbacks: tuple[Fallback, ...]
    imatrix: tuple[int, int, list[str]] | None
    """Entries used of the importance matrix, its chunks and its datasets."""
    seconds: float

    @property
    def before(self) -> int:
        """Bytes of the tensors in the source."""
        return sum(tensor.before for tensor in self.tensors)

    @property
    def after(self) -> int:
        """Bytes of the tensors in the new files."""
        return sum(tensor.after for tensor in self.tensors)

    @property
    def n_elements(self) -> int:
        """Elements of the tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)


def quantize(
    source: str | Path,
    type: str,
    output: str | Path | None = None,
    options: QuantizeOptions | None = None,
    *,
    progress: Progress = silent,
) -> QuantizeReport:
    """Quantize `source` to a file type such as Q4_K_M, into `output` or `ggml-model-TYPE.gguf` beside the source.

    An existing output is replaced, but only once the new one is complete. The work is done in a child process, which
    ends with this call however it ends. `progress` is told bytes of the source.

    Raises:
        UsageError: an option is wrong, or does not fit the model; or the output is the source.
        ModelError: the source or the importance matrix cannot be used.
        MinkaError: the output cannot be written.
        NativeError: libllama refused, or died.
    """
    options, start = options or QuantizeOptions(), time.monotonic()
    kind, source = file_type(type), Path(source)
    check_options(options)
    target = _default_output(source, kind, options) if output is None else Path(output)
    with open_gguf(source) as first:
        moved = _check_source(first, options)
        shards = _shards(first)
        paths = () if options.dry_run else _outputs(shards, target, options)
    child = Child(_job(source, kind, options, moved), progress)
    with _staged(paths, keep_split=options.keep_split) as staged:
        child.run(staged, target.parent)
    return QuantizeReport(
        paths, kind, tuple(child.tensors), tuple(child.fallbacks), child.imatrix, time.monotonic() - start
    )


# -- the source


def _check_source(first: GgufFile, options: QuantizeOptions) -> dict[int, int]:
    """The layers that pruning moves, after making sure that libllama can write a sound copy."""
    if first.get_str("general.type") == "imatrix":
        raise ModelError(f"{first.path} is an importance matrix, not a model; give it with --imatrix")
    if first.alignment != DEFAULT_ALIGNMENT:
        raise ModelError(
            f"{first.path} is laid out for an alignment of {first.alignment}, and libllama writes {DEFAULT_ALIGNMENT} "
            f"only; change it first: minka gguf metadata new IN OUT --set {ALIGNMENT_KEY}=u32:{DEFAULT_ALIGNMENT}"
        )
    if not options.prune_layers:
        return {}
    n_layers = first.get_int(f"{first.get_str('general.architecture')}.block_count") or 0
    for layer in options.prune_layers:
        if not 0 <= layer < n_layers:
            raise UsageError(f"there is no layer {layer} to prune: {first.path} has layers 0 to {n_layers - 1}")
    if len(set(options.prune_layers)) == n_layers:
        raise UsageError(f"--prune-layers would leave no layer of {first.path}")
    return moved_layers(n_layers, set(options.prune_layers))


def _shards(first: GgufFile) -> tuple[Path, ...]:
    count = first.get_int(SPLIT_COUNT) or 0
    return shard_paths(first.path, count) if count > 1 else (first.path,)


def _job(source: Path, kind: FileType, options: QuantizeOptions, moved: dict[int, int]) -> Job:
    output, embedding = options.output_tensor_type, options.token_embedding_type
    return Job(
        source=str(source),
        output="",
        type=kind.name,
        threads=options.threads,
        imatrix=None if options.imatrix is None else os.fspath(options.imatrix),
        include_weights=options.include_weights,
        exclude_weights=options.exclude_weights,
        output_tensor_type=None if output is None else tensor_type(output).id,
        token_embedding_type=None if embedding is None else tensor_type(embedding).id,
        tensor_types=tuple((pattern, tensor_type(name).id) for pattern, name in options.tensor_types),
        pure=options.pure,
        leave_output_tensor=options.leave_output_tensor,
        allow_requantize=options.allow_requantize,
        prune_layers=tuple(sorted(set(options.prune_layers))),
        moved_layers=tuple(moved.items()),
        keep_split=options.keep_split,
        override_kv=options.override_kv,
        max_buffer=options.max_buffer_size << 20,
        dry_run=options.dry_run,
    )


# -- the output


def _default_output(source: Path, kind: FileType, options: QuantizeOptions) -> Path:
    return source.with_name(f"ggml-model-{kind.name}{'' if options.keep_split else '.gguf'}")


def _outputs(shards: Sequence[Path], output: Path, options: QuantizeOptions) -> tuple[Path, ...]:
    """The files to write. Raises MinkaError if one of them is the source or cannot be written."""
    paths: tuple[Path, ...] = (output,)
    if options.keep_split:
        prefix = output.with_name(output.name.removesuffix(".gguf"))
        n = _n_shards(shards, set(options.prune_layers))
        paths = tuple(shard_path(prefix, i, n) for i in range(n))
    for path in paths:
        destination(path, shards)
    return paths


def _n_shards(shards: Sequence[Path], pruned: set[int]) -> int:
    """Shards of the new file: those behind the last one with a tensor are dropped."""
    filled = []
    for path in shards:
        with open_gguf(path) as shard:
            filled.append(any(layer_of(tensor.name) not in pruned for tensor in shard.tensors))
    n = max((i + 1 for i, is_filled in enumerate(filled) if is_filled), default=1)
    # libllama begins every shard but the first when it comes to a tensor of it.
    for path, is_filled in zip(shards[1:n], filled[1:n], strict=True):
        if not is_filled:
            raise UsageError(f"pruning would leave {path} without tensors; drop --keep-split")
    return n


@contextlib.contextmanager
def _staged(paths: Sequence[Path], *, keep_split: bool) -> Iterator[str | None]:
    """What libllama is to write to, so that all of `paths` are in place together at the end; None without any."""
    with contextlib.ExitStack() as stack:
        staging = stack.enter_context(Staging(force=True))
        parts = [os.fspath(stack.enter_context(staging.open(path)).name) for path in paths]
        if not keep_split or not parts:
            yield parts[0] if parts else None
            return
        # libllama makes the names of shards itself: links of such names lead it to the staged files.
        prefix = Path(stack.enter_context(tempfile.TemporaryDirectory()), "model")
        for i, part in enumerate(parts):
            shard_path(prefix, i, len(parts)).symlink_to(Path(part).absolute())
        yield str(prefix)
