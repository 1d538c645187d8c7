"""Control vectors: directions that are added to what the layers of a model compute, read from files and handed over.

A file is a GGUF with a tensor `direction.N` of F32 for each layer N that it steers, N from 1 on, as llama.cpp's
llama-cvector-generator writes it; several files add up, each times its factor (source: common/common.cpp).
"""

from __future__ import annotations

import ctypes
import logging
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minka.errors import ModelError, UsageError
from minka.ggufs.read import GgufFile, Tensor, open_gguf
from minka.native.library import Library
from minka.native.model import Model
from minka.params import ContextParams

log = logging.getLogger("minka.native")

Directions = NDArray[np.float32]
"""One row for each layer from layer 1 on, shape (n_layer - 1, n_embd)."""

_NAME = re.compile(r"direction\.([1-9][0-9]{0,5})")
_F32 = 0


def steer(lib: Library, context: object, model: Model, params: ContextParams) -> bytes:
    """Make a llama_context add the control vectors of the parameters. What it returns tells their sum from others.

    Raises ModelError for files that are none for this model, UsageError for layers that cannot be.
    """
    if not params.control_vectors:
        return b""
    start, end = layer_range(params, model.n_layer)
    directions = load(params.control_vectors, model.n_layer, model.n_embd)
    values = directions.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if lib.slow.llama_set_adapter_cvec(context, values, directions.size, model.n_embd, start, end):
        raise ModelError("libllama could not apply the control vectors")
    return blake2b(directions.tobytes() + f"{start}-{end}".encode(), digest_size=16).digest()


def layer_range(params: ContextParams, n_layer: int) -> tuple[int, int]:
    """The first and the last layer to steer. Raises UsageError if there is none between them."""
    start, end = params.control_vector_layers or (0, 0)
    start, end = max(start, 1), end if end > 0 else n_layer
    if start > end:
        raise UsageError(f"--control-vector-layer-range {start} {end} has no layer in it")
    return start, end


@dataclass(frozen=True, slots=True)
class ControlVector:
    """What a file holds: a direction for each layer that it steers; those of a layer that are there twice are added."""

    model_hint: str
    """The architecture that it was made with, empty if the file does not say it."""
    directions: dict[int, NDArray[np.float32]]

    @property
    def n_embd(self) -> int:
        """Values of a direction."""
        return next(iter(self.directions.values())).size


def read(path: Path) -> ControlVector:
    """Read a file. Raises ModelError if it is no control vector."""
    found: dict[int, NDArray[np.float32]] = {}
    with open_gguf(path) as source:
        for tensor in source.tensors:
            layer, direction = _direction(source, tensor)
            if any(other.size != direction.size for other in found.values()):
                raise ModelError(f"{path} is no control vector: its directions are of different sizes")
            found[layer] = found[layer] + direction if layer in found else direction
        if not found:
            raise ModelError(f"{path} is no control vector: there are no directions in it")
        return ControlVector(source.get_str("controlvector.model_hint") or "", found)


def load(files: tuple[tuple[str, float], ...], n_layer: int, n_embd: int) -> Directions:
    """The sum of some files, each times its factor, for a model of these sizes. Raises ModelError."""
    total = np.zeros((max(n_layer - 1, 1), n_embd), np.float32)
    for name, scale in files:
        vector = read(Path(name).expanduser())
        if vector.n_embd != n_embd:
            raise ModelError(
                f"{name} is for another model: its directions have {vector.n_embd} values, and the layers of this "
                f"model compute {n_embd}"
            )
        for layer, direction in vector.directions.items():
            if layer >= n_layer:
                log.warning("%s has a direction for layer %d, which the model does not have", name, layer)
            else:
                total[layer - 1] += direction * np.float32(scale)
    return total


def _direction(source: GgufFile, tensor: Tensor) -> tuple[int, NDArray[np.float32]]:
    match = _NAME.fullmatch(tensor.name)
    if match is None or tensor.type_id != _F32 or tensor.dims[:1] != (tensor.n_elements,):
        raise ModelError(
            f"{source.path} is no control vector: tensor {tensor.name} is not direction.N, of one dimension in F32"
        )
    raw = b"".join(source.chunks(tensor))
    return int(match[1]), np.frombuffer(raw, source.prefix + "f4").astype(np.float32)
