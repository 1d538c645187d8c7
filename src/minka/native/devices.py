"""The devices that libllama can compute on, by ggml's registry, which the Python bindings leave out.

Names are ggml's (`CUDA0`, `BLAS`, `CPU`). Knows nothing of models; `placement` decides what goes where.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from minka.native.library import library

_POINTER = ctypes.c_void_p
_SIZE = ctypes.POINTER(ctypes.c_size_t)
_PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t, ()),
    "ggml_backend_dev_get": (_POINTER, (ctypes.c_size_t,)),
    "ggml_backend_dev_by_type": (_POINTER, (ctypes.c_int,)),
    "ggml_backend_dev_name": (ctypes.c_char_p, (_POINTER,)),
    "ggml_backend_dev_description": (ctypes.c_char_p, (_POINTER,)),
    "ggml_backend_dev_memory": (None, (_POINTER, _SIZE, _SIZE)),
    "ggml_backend_dev_type": (ctypes.c_int, (_POINTER,)),
    "ggml_backend_dev_buffer_type": (_POINTER, (_POINTER,)),
    "ggml_backend_dev_backend_reg": (_POINTER, (_POINTER,)),
    "ggml_backend_cpu_buffer_type": (_POINTER, ()),
    "ggml_backend_buft_name": (ctypes.c_char_p, (_POINTER,)),
    "ggml_backend_reg_count": (ctypes.c_size_t, ()),
    "ggml_backend_reg_get": (_POINTER, (ctypes.c_size_t,)),
    "ggml_backend_reg_name": (ctypes.c_char_p, (_POINTER,)),
    "ggml_backend_reg_dev_count": (ctypes.c_size_t, (_POINTER,)),
    "ggml_row_size": (ctypes.c_size_t, (ctypes.c_int, ctypes.c_int64)),
    "ggml_backend_reg_get_proc_address": (_POINTER, (_POINTER, ctypes.c_char_p)),
}


class DeviceType(IntEnum):
    """ggml_backend_dev_type."""

    CPU = 0
    GPU = 1
    IGPU = 2
    ACCEL = 3
    META = 4


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the registry. Memory in bytes, 0 where the device does not tell."""

    name: str
    description: str
    type: DeviceType
    free: int
    total: int


@cache
def registry() -> ctypes.CDLL:
    """ggml's functions with their types, on a handle of its own."""
    handle = ctypes.CDLL(library().slow._lib._name)
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(handle, name)
        function.restype, function.argtypes = result, arguments
    return handle


def device_pointers() -> list[int]:
    """The ggml_backend_dev_t of all devices, for other modules of native/."""
    ggml = registry()
    return [int(ggml.ggml_backend_dev_get(i)) for i in range(ggml.ggml_backend_dev_count())]


def device_name(pointer: int) -> str:
    """The name of a device, for other modules of native/."""
    return bytes(registry().ggml_backend_dev_name(pointer)).decode()


def devices() -> tuple[Device, ...]:
    """All devices, the CPU among them."""
    return tuple(_describe(pointer) for pointer in device_pointers())


def _describe(pointer: int) -> Device:
    ggml = registry()
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    ggml.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=device_name(pointer),
        description=bytes(ggml.ggml_backend_dev_description(pointer)).decode("utf-8", "replace"),
        type=DeviceType(ggml.ggml_backend_dev_type(pointer)),
        free=int(free.value),
        total=int(total.value),
    )


def backends() -> tuple[str, ...]:
    """Names of the backends that are registered, the CPU's among them; RPC only if a server was added."""
    ggml = registry()
    pointers = [ggml.ggml_backend_reg_get(i) for i in range(ggml.ggml_backend_reg_count())]
    names = [(bytes(ggml.ggml_backend_reg_name(p)).decode(), int(ggml.ggml_backend_reg_dev_count(p))) for p in pointers]
    found = [name for name, _ in names if not name.startswith("RPC")]
    return (*found, "RPC") if any(name.startswith("RPC") and n for name, n in names) else tuple(found)


def buffer_types() -> dict[str, int]:
    """The default buffer type of each device by its name, such as `CPU` or `CUDA0`, with its pointer."""
    ggml = registry()
    found = [ggml.ggml_backend_dev_buffer_type(pointer) for pointer in device_pointers()]
    return {bytes(ggml.ggml_backend_buft_name(pointer)).decode(): int(pointer) for pointer in found if pointer}


def cpu_function(name: str) -> int | None:
    """The address of a function of the CPU backend, which may be a library of its own; None if it has none."""
    ggml = registry()
    device = ggml.ggml_backend_dev_by_type(DeviceType.CPU)
    found = device and ggml.ggml_backend_reg_get_proc_address(ggml.ggml_backend_dev_backend_reg(device), name.encode())
    return int(found) if found else None
