"""llama_model_quantize with Python values. It runs to its end: nothing can stop it, and a bad value can abort it.

So a caller that must live runs it in a process of its own. Knows no names of types and no importance matrix file; what
libllama says on the way goes to its log.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native.library import library

MAX_TEXT = 127
"""Bytes of a key or text that a metadata override can hold."""
DEFAULT_BUFFER = 8 << 30

# llama_model_kv_override_type, by the type of the value; bool goes before int, which it is a kind of.
_INT, _FLOAT, _BOOL, _STR = range(4)

OverrideValue = bool | int | float | bytes


@dataclass(frozen=True, slots=True)
class Quantization:
    """What to do to a model. Types are numbers: `ftype` a llama_ftype, all others a ggml_type."""

    ftype: int
    threads: int = 0
    """0 for one per core."""
    only_copy: bool = False
    """Change no tensor; the file keeps its own ftype."""
    pure: bool = False
    """One type for all tensors, instead of the mixture that belongs to `ftype`."""
    allow_requantize: bool = False
    leave_output_tensor: bool = False
    output_tensor_type: int | None = None
    token_embedding_type: int | None = None
    tensor_types: Sequence[tuple[str, int]] = ()
    """Patterns (C++ std::regex) searched in tensor names; the first that is found decides."""
    imatrix: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Importance by tensor: for each matrix of it, one value per column."""
    overrides: Sequence[tuple[str, OverrideValue]] = ()
    """Metadata to set. libllama writes an int as uint32 without its sign, and text up to MAX_TEXT bytes."""
    prune_layers: Sequence[int] = ()
    """Layers to leave out; the later ones move up. In ascending order."""
    keep_split: bool = False
    """Write as many shards as the source has; the output's name is then a prefix."""
    max_buffer: int = DEFAULT_BUFFER
    """Bytes of rows of a tensor in memory at a time."""
    dry_run: bool = False
    """Only log what would be done."""


def quantize(source: str, output: str, job: Quantization) -> None:
    """Quantize a GGUF file into another. Blocks, with the GIL free.

    Raises:
        NativeError: libllama refused; the output may be half written.
    """
    lib = library()
    params = lib.slow.llama_model_quantize_default_params()
    params.ftype, params.nthread = job.ftype, job.threads
    params.only_copy, params.pure, params.dry_run = job.only_copy, job.pure, job.dry_run
    params.allow_requantize, params.quantize_output_tensor = job.allow_requantize, not job.leave_output_tensor
    params.keep_split, params.max_buf_size = job.keep_split, job.max_buffer
    if job.output_tensor_type is not None:
        params.output_tensor_type = job.output_tensor_type
    if job.token_embedding_type is not None:
        params.token_embedding_type = job.token_embedding_type
    # ctypes keeps what is assigned to a pointer field alive as long as the struct, but not what that points to.
    importance = {name: np.ascontiguousarray(values, np.float32) for name, values in job.imatrix.items()}
    if importance:
        params.imatrix = _imatrix(importance)
    if job.overrides:
        params.kv_overrides = _overrides(job.overrides)
    if job.tensor_types:
        params.tt_overrides = _tensor_types(job.tensor_types)
    if job.prune_layers:
        params.prune_layers = (ctypes.c_int32 * (len(job.prune_layers) + 1))(*job.prune_layers, -1)
    with lib.errors() as errors:
        code = lib.slow.llama_model_quantize(os.fsencode(source), os.fsencode(output), ctypes.byref(params))
        if code:
            raise NativeError(_reason(errors))


def _reason(errors: Sequence[str]) -> str:
    """The last error line, without the name of the function that wrote it."""
    line = errors[-1] if errors else "libllama gave no reason"
    return line.partition("failed to quantize: ")[2].strip() or line.strip()


def _imatrix(data: Mapping[str, NDArray[np.float32]]) -> ctypes.Array[ctypes.Structure]:
    item, floats = library().slow.llama_model_imatrix_data, ctypes.POINTER(ctypes.c_float)
    items = [
        item(name.encode("utf-8", "surrogateescape"), values.ctypes.data_as(floats), values.size)
        for name, values in data.items()
    ]
    return (item * (len(items) + 1))(*items)  # type: ignore[no-any-return]


def _overrides(values: Sequence[tuple[str, OverrideValue]]) -> ctypes.Array[ctypes.Structure]:
    items = (library().slow.llama_model_kv_override * (len(values) + 1))()
    for item, (key, value) in zip(items, values, strict=False):
        item.key = key.encode()
        match value:
            case bool():
                item.tag, item.value.val_bool = _BOOL, value
            case int():
                item.tag, item.value.val_i64 = _INT, value
            case float():
                item.tag, item.value.val_f64 = _FLOAT, value
            case bytes():
                item.tag, item.value.val_str = _STR, value
    return items  # type: ignore[no-any-return]


def _tensor_types(values: Sequence[tuple[str, int]]) -> ctypes.Array[ctypes.Structure]:
    item = library().slow.llama_model_tensor_override
    items = [item(pattern.encode(), number) for pattern, number in values]
    return (item * (len(items) + 1))(*items)  # type: ignore[no-any-return]
