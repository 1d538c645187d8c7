"""LoRA adapters of one model: loaded from GGUF files, found by an id that no other adapter ever has.

One thread at a time may change them, and no decode may run meanwhile: libllama keeps them in the model.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from minka.errors import ModelError, NativeError, NotFoundError
from minka.native.library import Library
from minka.params import Adapters
from minka.types import Adapter

_TASK = "adapter.lora.task_name"
_PREFIX = "adapter.lora.prompt_prefix"
_TEXT_SIZE = 65536
"""Bytes of a metadata value that are read, the end included."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    pointer: int
    adapter: Adapter


class LoraAdapters:
    """The adapters that are loaded for a model. The model frees what is left of them."""

    def __init__(self, library: Library, model: int) -> None:
        self._slow, self._library, self._model = library.slow, library, model
        self._loaded: dict[int, _Loaded] = {}
        self._next = 0

    def load(self, path: Path, scale: float = 1.0) -> Adapter:
        """Load a file; its `scale` is only noted. Raises ModelError if it is no adapter for this model."""
        if not path.is_file():
            raise ModelError(f"cannot load the adapter {path}: there is no such file")
        with self._library.errors() as errors:
            pointer = self._slow.llama_adapter_lora_init(self._model, os.fsencode(path))
        if not pointer:
            reason = errors[-1] if errors else "libllama gave no reason"
            raise ModelError(f"cannot load the adapter {path}: {reason}")
        if self._slow.llama_adapter_get_alora_n_invocation_tokens(pointer):
            self._slow.llama_adapter_lora_free(pointer)
            raise ModelError(
                f"cannot load the adapter {path}: it is an activated LoRA (aLoRA), which computes from its invocation "
                "tokens on only; Minka does not support these yet"
            )
        task, prefix = self._meta(pointer, _TASK), self._meta(pointer, _PREFIX)
        adapter = Adapter(self._next, str(path), scale, task, prefix)
        self._next += 1
        self._loaded[adapter.id] = _Loaded(pointer, adapter)
        return adapter

    def unload(self, id: int) -> None:
        """Free an adapter, which no context may use any more. Raises NotFoundError for an id that is none."""
        self._check(id)
        self._slow.llama_adapter_lora_free(self._loaded.pop(id).pointer)

    @property
    def all(self) -> tuple[Adapter, ...]:
        """What is loaded, in the order of the ids."""
        return tuple(loaded.adapter for loaded in self._loaded.values())

    def check(self, adapters: Adapters) -> None:
        """Raise NotFoundError if one of them is not loaded."""
        for id, _scale in adapters:
            self._check(id)

    def apply(self, context: int, adapters: Adapters) -> None:
        """Let a llama_context compute with these adapters and no others. Raises NotFoundError, and changes nothing."""
        self.check(adapters)
        n = len(adapters)
        array = self._slow.llama_adapter_lora_p_ctypes * max(n, 1)
        pointers = array(*[self._loaded[id].pointer for id, _ in adapters])
        scales = (ctypes.c_float * max(n, 1))(*[scale for _, scale in adapters])
        if self._slow.llama_set_adapters_lora(context, pointers, n, scales):
            raise NativeError(f"libllama cannot use the adapters {[id for id, _ in adapters]}")

    def _check(self, id: int) -> None:
        if id not in self._loaded:
            raise NotFoundError(f"there is no LoRA adapter {id}: it was unloaded, or never loaded", param="lora")

    def _meta(self, pointer: int, key: str) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_SIZE)
        size = self._slow.llama_adapter_meta_val_str(pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else ""
