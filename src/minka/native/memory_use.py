"""What a model and a context take of each device's memory, from libllama's own books.

libllama can load a model without its weights and make a context without its buffers, and then tells what both would
take; that function is C++ and returns a std::map, which is walked here as libstdc++ lays it out (x86-64 and AArch64
Linux). A measurement takes as long as reading the file's header.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from minka.errors import NotSupportedError
from minka.native.context import Context
from minka.native.devices import DeviceType, device_name, registry
from minka.native.library import library
from minka.native.machine import total_memory
from minka.native.model import Model
from minka.native.placement import Placement
from minka.params import ContextParams, ModelParams

_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
_N_DEVICES = "_Z21llama_model_n_devicesPK11llama_model"
_GET_DEVICE = "_Z22llama_model_get_devicePK11llama_modeli"
_MAX_NODES = 1024
"""More buffer types than there are: a larger count means that the map is laid out otherwise."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes."""

    model: int = 0
    """The weights."""
    context: int = 0
    """KV cache and states."""
    compute: int = 0
    """Intermediate results of the largest batch."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.model + self.context + self.compute

    def __add__(self, other: Need) -> Need:
        return Need(self.model + other.model, self.context + other.context, self.compute + other.compute)


@dataclass(frozen=True, slots=True)
class Use:
    """What one device has, and what is needed of it. `free` and `total` are bytes, both 0 where it does not tell."""

    name: str
    description: str
    free: int
    total: int
    need: Need


@dataclass(frozen=True, slots=True)
class Measured:
    """The needs of a model with a context."""

    devices: tuple[Use, ...]
    """GPUs and the like, in libllama's order; empty on a machine with a CPU only."""
    host: Use
    """Main memory. Its `free` is all that the machine has, as the weights that are read push out other files."""
    n_ctx: int
    n_ctx_train: int
    n_layer: int
    n_expert: int
    """0 for a dense model."""


class _Map(ctypes.Structure):
    """std::map as libstdc++ has it: its comparison, the header of its tree, and the number of its nodes."""

    _fields_: ClassVar = [
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("n", ctypes.c_size_t),
    ]


class _Node(ctypes.Structure):
    """A node of that tree, with its key and its value."""

    _fields_: ClassVar = [
        ("color", ctypes.c_size_t),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("buffer_type", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    ]


class _Sketch(Context):
    """A context that is never used, and so may be larger than the memory."""

    def _check_room(self, params: ContextParams, n_ctx: int) -> None:
        """Nothing: how much it would take is what is asked."""


def measure(path: Path, model: ModelParams, context: ContextParams, placement: Placement | None = None) -> Measured:
    """What a model and a context of these parameters would take, as `Context` makes it.

    Raises:
        ModelError: the model cannot be used.
        NotSupportedError: this libllama does not tell.
    """
    sketch = replace(placement or Placement(), weights="measure")
    with closing(Model.load(path, model, placement=sketch)) as loaded, closing(_Sketch(loaded, context)) as made:
        return measure_context(loaded, made)


def measure_context(model: Model, context: Context) -> Measured:
    """What a loaded model and a context take now. Raises NotSupportedError."""
    needs = list(_breakdown(context))
    devices = _model_devices(model)
    host = Need()
    of_devices = dict.fromkeys(devices, Need())
    for device, need in needs:
        if device in of_devices:
            of_devices[device] += need
        else:  # main memory, weights that were rearranged for the CPU, and pinned memory
            host += need
    memory = total_memory() or 0
    return Measured(
        tuple(_use(device, need) for device, need in of_devices.items()),
        Use("Host", "main memory", memory, memory, host),
        context.n_ctx,
        model.n_ctx_train,
        model.n_layer,
        int(model.meta(f"{model.meta('general.architecture')}.expert_count") or 0),
    )


def _use(device: int, need: Need) -> Use:
    ggml = registry()
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    kind = ggml.ggml_backend_dev_type(device)
    if not total.value and kind not in (DeviceType.GPU, DeviceType.IGPU):  # BLAS and the like use main memory
        free.value = total.value = total_memory() or 0
    description = bytes(ggml.ggml_backend_dev_description(device)).decode("utf-8", "replace")
    return Use(device_name(device), description, int(free.value), int(total.value), need)


def _model_devices(model: Model) -> list[int]:
    count, get = _function(_N_DEVICES, ctypes.c_int), _function(_GET_DEVICE, ctypes.c_void_p)
    get.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return [int(get(model.pointer, i)) for i in range(count(model.pointer))]


def _function(name: str, result: type[ctypes._CData]) -> ctypes._NamedFuncPointer:
    # Other platforms name the functions otherwise, and have other maps.
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8 or not hasattr(registry(), name):
        raise NotSupportedError("this build of libllama does not tell what a model needs; only those for Linux do")
    function = registry()[name]
    function.argtypes, function.restype = [ctypes.c_void_p], result
    return function


def _breakdown(context: Context) -> Iterator[tuple[int, Need]]:
    """The device of each type of buffer (0 for none), and what is in buffers of that type."""
    ggml = registry()
    ggml.ggml_backend_buft_get_device.restype = ctypes.c_void_p
    ggml.ggml_backend_buft_get_device.argtypes = [ctypes.c_void_p]
    found = _function(_BREAKDOWN, _Map)(context.pointer)
    nodes = list(_nodes(found.root, found.n))
    if found.n > _MAX_NODES or len(nodes) != found.n:
        raise NotSupportedError(f"libllama {library().version} tells what a model needs in a way that is not known")
    for node in nodes:
        device = ggml.ggml_backend_buft_get_device(node.buffer_type)
        yield int(device or 0), Need(node.model, node.context, node.compute)


def _nodes(root: int | None, limit: int) -> Iterator[_Node]:
    waiting = [root] if root and limit <= _MAX_NODES else []
    while waiting:
        node = _Node.from_address(waiting.pop())
        yield node
        waiting += [child for child in (node.left, node.right) if child]
