"""The process that quantizes: reads a job from standard input, plans, checks, converts, and reports in JSON lines.

libllama's quantizer cannot be stopped and ends the process on some errors. In a process of its own it can be stopped
at any moment, and its end is an error message for the one who asked. Run by `quantize_run`, which owns the files.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from minka.errors import MinkaError
from minka.native.quantize import MAX_TEXT, OverrideValue, Quantization, quantize
from minka.tools.imatrix_file import importance, read_imatrix
from minka.tools.quantize_plan import Limits, PlanReader, StepReader, check
from minka.tools.quantize_types import file_type

Setting = tuple[str, Literal["bool", "int", "float", "str"], str | float]
"""Key, type and value of a metadata override."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the worker is told. Types are numbers; everything can be written as JSON."""

    source: str
    output: str
    """A file, or with `keep_split` the prefix of the shards."""
    type: str
    """Name of a file type."""
    threads: int
    imatrix: str | None
    include_weights: tuple[str, ...]
    exclude_weights: tuple[str, ...]
    output_tensor_type: int | None
    token_embedding_type: int | None
    tensor_types: tuple[tuple[str, int], ...]
    pure: bool
    leave_output_tensor: bool
    allow_requantize: bool
    prune_layers: tuple[int, ...]
    moved_layers: tuple[tuple[int, int], ...]
    """New and old number of the layers that move."""
    keep_split: bool
    override_kv: tuple[Setting, ...]
    max_buffer: int
    dry_run: bool

    def to_json(self) -> str:
        """The job as `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        for name in ("tensor_types", "moved_layers", "override_kv"):
            values[name] = tuple(tuple(item) for item in values[name])
        return cls(**values)


class Event(TypedDict, total=False):
    """What the worker reports; one of its keys is there."""

    imatrix: tuple[int, int, list[str]]
    """Entries used of the importance matrix, its chunks, its datasets."""
    plan: list[tuple[str, tuple[int, ...], int, int]]
    """Name, dimensions, type before and type after of each tensor."""
    fallbacks: list[tuple[int, str, str, int]]
    """Columns, wanted type, type instead, tensors."""
    done: int
    """Tensors that are through."""
    error: tuple[str, str]
    """Class and message of a MinkaError."""


Emit = Callable[[Event], None]


def work(job: Job, emit: Emit) -> None:
    """Do a job, reporting on the way. The output is complete when this returns.

    Raises:
        MinkaError: it cannot be done; the output may be half written.
    """
    values, settings = _importance(job, emit)
    native = _native(job, values, settings)
    plan = PlanReader()
    with _listening(plan):
        quantize(job.source, "", replace(native, dry_run=True))
    check(plan.tensors, _limits(job, values))
    emit({"fallbacks": [(one.columns, one.wanted, one.target, one.n_tensors) for one in plan.fallbacks]})
    emit({"plan": [(tensor.name, tensor.dims, tensor.source.id, tensor.target.id) for tensor in plan.tensors]})
    if job.dry_run:
        return
    steps = StepReader()

    def step(line: str) -> None:
        if steps(line):
            emit({"done": steps.done})

    with _listening(step):
        quantize(job.source, job.output, native)


def _native(
    job: Job, values: Mapping[str, NDArray[np.float32]], settings: list[tuple[str, OverrideValue]]
) -> Quantization:
    kind = file_type(job.type)
    return Quantization(
        ftype=kind.number,
        threads=job.threads,
        only_copy=kind.name == "COPY",
        pure=job.pure,
        allow_requantize=job.allow_requantize,
        leave_output_tensor=job.leave_output_tensor,
        output_tensor_type=job.output_tensor_type,
        token_embedding_type=job.token_embedding_type,
        tensor_types=job.tensor_types,
        imatrix=values,
        overrides=[(key, _override(kind, value)) for key, kind, value in job.override_kv] + settings,
        prune_layers=job.prune_layers,
        keep_split=job.keep_split,
        max_buffer=job.max_buffer,
    )


def _override(kind: str, value: str | float) -> OverrideValue:
    match kind:
        case "bool":
            return bool(value)
        case "int":
            return int(value)
        case "float":
            return float(value)
        case _:
            return str(value).encode("utf-8", "surrogateescape")


def _limits(job: Job, values: Mapping[str, NDArray[np.float32]]) -> Limits:
    sizes = {name: data.size for name, data in values.items()}
    return Limits(job.allow_requantize, sizes, dict(job.moved_layers), strict_q2_k=job.type == "Q2_K_S")


def _importance(job: Job, emit: Emit) -> tuple[dict[str, NDArray[np.float32]], list[tuple[str, OverrideValue]]]:
    """The values to use, and the metadata that says where they come from."""
    if job.imatrix is None:
        return {}, []
    found = read_imatrix(Path(job.imatrix))
    values = {name: data for name, data in importance(found).items() if _is_wanted(job, name)}
    emit({"imatrix": (len(values), found.chunk_count, list(found.datasets))})
    if not values:
        return {}, []
    settings: list[tuple[str, OverrideValue]] = [("quantize.imatrix.file", os.fsencode(job.imatrix)[:MAX_TEXT])]
    if found.datasets:
        dataset = found.datasets[0].encode("utf-8", "surrogateescape")
        settings.append(("quantize.imatrix.dataset", dataset[:MAX_TEXT]))
    settings.append(("quantize.imatrix.entries_count", len(values)))
    if found.chunk_count > 0:
        settings.append(("quantize.imatrix.chunks_count", found.chunk_count))
    return values, settings


def _is_wanted(job: Job, name: str) -> bool:
    if job.include_weights and not any(part in name for part in job.include_weights):
        return False
    return not any(part in name for part in job.exclude_weights)


@contextmanager
def _listening(take: Callable[[str], object]) -> Iterator[None]:
    """Pass libllama's lines on, and keep them from everybody else."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            take(record.getMessage())

    logger, handler = logging.getLogger("minka.llama"), Lines()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def main() -> int:
    """Do the job on standard input. Events go to standard output, and whatever else is printed to standard error."""
    # Ctrl-C reaches the whole terminal; who started this process decides what it means, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:
        os.dup2(2, 1)

        def emit(event: Event) -> None:
            try:
                print(json.dumps(event), file=events, flush=True)
            except OSError:
                os._exit(1)  # nobody listens any more; an exception could not get past the C code that calls this

        try:
            work(Job.from_json(sys.stdin.read()), emit)
        except MinkaError as error:
            emit({"error": (type(error).__name__, str(error))})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
