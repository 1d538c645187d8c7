"""Where the weights of a model go, beyond what ModelParams says: devices, tensors by name, lazy loading, metadata.

Patterns are libllama's: regular expressions that are searched in tensor names. What is not said is libllama's choice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from minka.errors import UsageError
from minka.native.devices import DeviceType, buffer_types, device_name, device_pointers, registry
from minka.native.library import library
from minka.native.threadpool import set_priority
from minka.params import HardwareParams

LAZY_MODES = {"off": 0, "auto": 1, "on": 2}
LOAD_NONE = 0
"""llama_load_mode: read, not mapped."""
NUMA_MODES = {"distribute": 1, "isolate": 2, "numactl": 3}
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
DENSE_FFN = r"\.ffn_(up|down|gate)\."
_KV_TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}
_KV_LENGTH = 127
"""Bytes of a key or a text that libllama has room for."""
_READ_KV: Mapping[str, Callable[[str], int | float | bool | str]] = {
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text],
    "str": str,
}


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override (llama.h); the last one of an array is empty."""

    _fields_: ClassVar = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class KvOverride:
    """Metadata to load the model with in place of the file's: `key` and an int, float, bool or str."""

    key: str
    value: int | float | bool | str


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices` are names, empty for none but the CPU, None for libllama's choice. `overrides` are pairs of a tensor
    name pattern and a buffer type, the first that fits counts. All is checked when the model is loaded.
    `weights`: "skip" leaves them out, so that only the vocabulary and the metadata are there; "measure" reserves their
    memory only in the books, so that contexts can be made to see what they need, but nothing can be computed.
    """

    devices: tuple[str, ...] | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    lazy_mode: str = "auto"
    metadata: tuple[KvOverride, ...] = ()
    weights: Literal["load", "skip", "measure"] = "load"

    def apply(self, native: ctypes.Structure) -> None:
        """Fill in llama_model_params. Raises UsageError for a device or buffer type that does not exist."""
        known = buffer_types()
        pointers = [_device(name) for name in self.devices or ()]
        overrides = [_Override(pattern.encode(), _buffer_type(known, name)) for pattern, name in self.overrides]
        devices = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)
        ended = (_Override * (len(overrides) + 1))(*overrides)
        values: dict[str, object] = {"lazy_mode": LAZY_MODES[self.lazy_mode], "vocab_only": self.weights == "skip"}
        if self.weights == "measure":
            values |= {"no_alloc": True, "load_mode": LOAD_NONE}
        if self.devices is not None:
            values["devices"] = ctypes.addressof(devices)
        if overrides:
            values["tensor_buft_overrides"] = ctypes.addressof(ended)
        if self.metadata:
            values["kv_overrides"] = _metadata(self.metadata)
        # C reads the arrays until the model is loaded, and their addresses alone do not keep them.
        values["kept"] = devices, ended
        for name, value in values.items():
            setattr(native, name, value)


def prepare(params: HardwareParams) -> Placement:
    """Where the parameters put a model. Before it is loaded: what holds for the whole process, its priority and its use
    of NUMA nodes, is changed at once.

    Raises UsageError for a device or buffer type that does not exist, and for a priority that the system refuses.
    """
    placed = placement(params)
    if params.numa:
        init_numa(params.numa)
    set_priority(params.prio)
    return placed


def placement(params: HardwareParams) -> Placement:
    """Where the parameters put a model. Raises UsageError for a device or buffer type that does not exist."""
    overrides = list(parse_overrides(params.override_tensor))
    if params.cpu_moe:
        overrides.append((EXPERTS, cpu_buffer_type()))
    overrides += block_overrides(params.n_cpu_moe, EXPERTS)
    overrides += block_overrides(params.n_cpu_ffn, DENSE_FFN)
    names = () if params.device == ("none",) else params.device
    return Placement(
        devices=tuple(map(check_device, names)) if params.device else None,
        overrides=tuple(overrides),
        lazy_mode=params.lazy_mode,
        metadata=tuple(map(parse_metadata, params.override_kv)),
    )


def parse_overrides(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a tensor name pattern and a buffer type from PATTERN=TYPE. Raises UsageError for what is none."""
    for word in words:
        pattern, equals, name = word.partition("=")
        if not pattern or not equals:
            raise UsageError(f"{word!r} puts no tensor anywhere; give PATTERN=TYPE, as in exps=CPU")
        yield pattern, check_buffer_type(name)


def parse_metadata(word: str) -> KvOverride:
    """Metadata from KEY=TYPE:VALUE. Raises UsageError."""
    key, _, rest = word.partition("=")
    kind, colon, value = rest.partition(":")
    try:
        if not key or not colon or max(len(key.encode()), len(value.encode())) > _KV_LENGTH:
            raise ValueError(word)
        return KvOverride(key, _READ_KV[kind](value))
    except (ValueError, KeyError):
        raise UsageError(
            f"{word!r} changes no metadata; give KEY=TYPE:VALUE with int, float, bool or str, as in a.b=int:4"
        ) from None


def block_overrides(n_layer: int, pattern: str) -> tuple[tuple[str, str], ...]:
    """Overrides that keep the tensors of the first `n_layer` layers that fit a pattern on the CPU."""
    return tuple((rf"blk\.{layer}{pattern}", cpu_buffer_type()) for layer in range(n_layer))


def cpu_buffer_type() -> str:
    """The name of the CPU's buffer type."""
    ggml = registry()
    return bytes(ggml.ggml_backend_buft_name(ggml.ggml_backend_cpu_buffer_type())).decode()


def init_numa(mode: str) -> None:
    """Tell libllama how to spread threads over NUMA nodes. Before a model is loaded; it holds for the process."""
    library().slow.llama_numa_init(NUMA_MODES[mode])


def check_device(name: str) -> str:
    """The name, if it is a device other than the CPU. Raises UsageError."""
    _device(name)
    return name


def check_buffer_type(name: str) -> str:
    """The name, if it is a buffer type. Raises UsageError."""
    _buffer_type(buffer_types(), name)
    return name


def _device(name: str) -> int:
    ggml = registry()
    usable = {device_name(p): p for p in device_pointers() if ggml.ggml_backend_dev_type(p) != DeviceType.CPU}
    if name not in usable:
        listed = f"; there are {', '.join(usable)}" if usable else "; this build of libllama has none but the CPU"
        raise UsageError(f"there is no device {name!r}{listed}")
    return usable[name]


def _buffer_type(known: dict[str, int], name: str) -> int:
    if name not in known:
        raise UsageError(f"there is no buffer type {name!r}; there are {', '.join(known)}")
    return known[name]


def _metadata(overrides: tuple[KvOverride, ...]) -> object:
    slow = library().slow
    array = (slow.llama_model_kv_override * (len(overrides) + 1))()  # the last one has an empty key
    for entry, override in zip(array, overrides, strict=False):
        value = override.value
        kind = next(name for name, type_ in _KINDS if isinstance(value, type_))
        entry.tag, entry.key = _KV_TAGS[kind], override.key.encode()
        match kind:
            case "bool":
                entry.value.val_bool = value
            case "int":
                entry.value.val_i64 = value
            case "float":
                entry.value.val_f64 = value
            case _:
                entry.value.val_str = str(value).encode()
    return array


# bool before int, which it is one of.
_KINDS: tuple[tuple[str, type], ...] = (("bool", bool), ("int", int), ("float", float), ("str", str))
