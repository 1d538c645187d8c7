"""A model file in memory: weights, vocabulary, metadata. Holds no KV cache; contexts share it."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import cast

from minka.errors import ModelError
from minka.ggufs.loadable import require_loadable
from minka.native.adapters import LoraAdapters
from minka.native.library import Library, library
from minka.native.placement import KvOverride, Placement
from minka.native.vocab import Vocab
from minka.params import ModelParams

log = logging.getLogger("minka.native")

_SAMPLE = 1 << 20
"""Bytes of a file's beginning and end that its fingerprint covers."""

_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}


class Model:
    """A loaded GGUF. Close it after all contexts made from it."""

    def __init__(self, path: Path, pointer: int, lib: Library, metadata: tuple[KvOverride, ...] = ()) -> None:
        self.path = path
        self._metadata = metadata
        self._model: int | None = pointer
        self._lib = lib
        self.vocab = Vocab(lib, lib.slow.llama_model_get_vocab(pointer))
        self.adapters = LoraAdapters(lib, pointer)

    @classmethod
    def load(
        cls,
        path: Path,
        params: ModelParams,
        progress: Callable[[float], None] | None = None,
        placement: Placement | None = None,
    ) -> Model:
        """Load a GGUF (of a split one: the first shard). `progress` is called with 0..1 from this thread;
        an exception in it, or an interrupt, stops the loading and is raised here.

        Raises ModelError with libllama's own reason if it cannot, and UsageError for a `placement` that cannot be.
        """
        if not path.is_file():
            raise ModelError(f"cannot load the model {path}: there is no such file")
        require_loadable(path)
        lib = library()
        native = _native_params(lib, params)
        if placement is not None:
            placement.apply(native)
        with lib.errors() as errors:
            pointer = _load(lib, path, native, progress or (lambda _share: None))
            if not pointer:
                raise ModelError(f"cannot load the model {path}: {_reason(errors)}")
        return cls(path, pointer, lib, placement.metadata if placement is not None else ())

    @property
    def pointer(self) -> int:
        """The llama_model, for other modules of native/."""
        if self._model is None:
            raise ModelError(f"the model {self.path} was closed")
        return self._model

    def close(self) -> None:
        """Free the weights. Idempotent."""
        if self._model is not None:
            self.vocab.close()
            self._lib.slow.llama_model_free(self._model)
            self._model = None

    def _string(self, function: Callable[..., int], *arguments: object) -> str | None:
        """A value that C writes into our buffer; None if it has none."""
        size = function(self.pointer, *arguments, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        function(self.pointer, *arguments, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def meta(self, key: str) -> str | None:
        """A metadata value as text, None if the file has no such key (arrays have no text form)."""
        return self._string(self._lib.slow.llama_model_meta_val_str, key.encode())

    @cached_property
    def fingerprint(self) -> bytes:
        """Tells models apart: a hash of the file's size, its beginning (the metadata) and its end, and of what was put
        in place of its metadata, 32 bytes."""
        size = self.path.stat().st_size
        digest = blake2b(size.to_bytes(8, "little"), digest_size=32)
        with self.path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read())
        if self._metadata:
            digest.update(repr(self._metadata).encode())
        return digest.digest()

    def chat_template(self, name: str | None = None) -> str | None:
        """The Jinja source of the default chat template, or of a named one such as `tool_use`."""
        source = self._lib.slow.llama_model_chat_template(self.pointer, name.encode() if name else None)
        return bytes(source).decode("utf-8", "replace") if source else None

    @cached_property
    def description(self) -> str:
        """Architecture, size and quantization in words, such as `llama 135M Q4_1`."""
        return self._string(self._lib.slow.llama_model_desc) or "unknown"

    @cached_property
    def ftype(self) -> str:
        """The file's main quantization, such as `Q4_1`."""
        name = self._lib.slow.llama_ftype_name(self._lib.slow.llama_model_ftype(self.pointer))
        return bytes(name).decode() if name else "unknown"

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(self._lib.slow.llama_model_size(self.pointer))

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return int(self._lib.slow.llama_model_n_params(self.pointer))

    @property
    def n_ctx_train(self) -> int:
        """Context length that the model was trained for."""
        return int(self._lib.slow.llama_model_n_ctx_train(self.pointer))

    @property
    def n_embd(self) -> int:
        """Width of a hidden state."""
        return int(self._lib.slow.llama_model_n_embd(self.pointer))

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(self._lib.slow.llama_model_n_layer(self.pointer))

    @property
    def n_head(self) -> int:
        """Attention heads."""
        return int(self._lib.slow.llama_model_n_head(self.pointer))

    @property
    def n_head_kv(self) -> int:
        """Heads that the KV cache stores."""
        return int(self._lib.slow.llama_model_n_head_kv(self.pointer))

    @property
    def n_swa(self) -> int:
        """Size of the attention window, 0 if attention sees everything."""
        return int(self._lib.slow.llama_model_n_swa(self.pointer))

    @property
    def has_state(self) -> bool:
        """Recurrent or hybrid: part of its memory is a state that cannot be cut at a position."""
        slow = self._lib.slow
        return bool(slow.llama_model_is_recurrent(self.pointer) or slow.llama_model_is_hybrid(self.pointer))

    @property
    def has_decoder(self) -> bool:
        """Whether the model has a decoder at all."""
        return bool(self._lib.slow.llama_model_has_decoder(self.pointer))

    @property
    def has_encoder(self) -> bool:
        """Whether a prompt has to be encoded before anything is generated (T5 and the like)."""
        return bool(self._lib.slow.llama_model_has_encoder(self.pointer))

    def apply_legacy_template(self, template: str, messages: list[tuple[str, str]], add_assistant: bool) -> str | None:
        """Render (role, content) pairs with one of libllama's built-in formats; None if it knows no such format."""
        slow = self._lib.slow
        pairs = [(role.encode(), content.encode("utf-8", "replace")) for role, content in messages]
        chat = (slow.llama_chat_message * max(len(pairs), 1))(*[slow.llama_chat_message(*pair) for pair in pairs])
        size = slow.llama_chat_apply_template(template.encode(), chat, len(pairs), add_assistant, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        slow.llama_chat_apply_template(template.encode(), chat, len(pairs), add_assistant, buffer, len(buffer))
        return buffer.raw[:size].decode("utf-8", "replace")


def _load(lib: Library, path: Path, native: ctypes.Structure, progress: Callable[[float], None]) -> int | None:
    """The llama_model, or None. It is made in a thread that ends with the load.

    Repacking weights computes, and OpenMP's threads belong to the thread that first computed. Left with the caller,
    they take a tenth from every later decode of another thread. And a caller that waits here can be interrupted.
    """
    shares: SimpleQueue[float | None] = SimpleQueue()
    stop = Event()

    def note(share: float, _user_data: object) -> bool:
        shares.put(share)
        return not stop.is_set()

    native.progress_callback = lib.slow.llama_progress_callback(note)
    with ThreadPoolExecutor(1, "minka-load") as pool:
        loading = pool.submit(lib.slow.llama_model_load_from_file, os.fsencode(path), native)
        loading.add_done_callback(lambda _loading: shares.put(None))
        try:
            while (share := shares.get()) is not None:
                progress(share)
        except BaseException:
            stop.set()
            if pointer := loading.result():
                lib.slow.llama_model_free(pointer)
            raise
    return cast("int | None", loading.result())


def _native_params(lib: Library, params: ModelParams) -> ctypes.Structure:
    native = lib.slow.llama_model_default_params()
    native.n_gpu_layers = params.n_gpu_layers
    native.split_mode = _SPLIT_MODES[params.split_mode]
    native.main_gpu = params.main_gpu
    native.load_mode = _LOAD_MODES[params.load_mode]
    native.check_tensors = params.check_tensors
    native.use_extra_bufts = params.repack and not lib.amx_is_broken
    if params.repack and lib.amx_is_broken:
        log.warning(
            "libllama was compiled by a GCC that breaks AMX; running without AMX and repacked weights. `make` builds a "
            "good one, or: CXXFLAGS='-fno-tree-dse -fno-dse -frecord-gcc-switches' pip install --force-reinstall "
            "--no-cache-dir --no-deps llama-cpp-python"
        )
    native.no_host = params.no_host
    if params.tensor_split:
        limit = lib.slow.llama_max_devices()
        if len(params.tensor_split) > limit:
            raise ModelError(f"--tensor-split has {len(params.tensor_split)} parts, but libllama knows {limit} devices")
        # The array must outlive the load; the struct keeps a reference through ctypes' _objects.
        native.tensor_split = (ctypes.c_float * limit)(*params.tensor_split)
    return native  # type: ignore[no-any-return]


def _reason(errors: Iterable[str]) -> str:
    """The first error line, without the names of the functions that passed it on."""
    line = next(iter(errors), "libllama gave no reason")
    return re.sub(r"^(\w+: )?(error loading model: )?", "", line).strip()
