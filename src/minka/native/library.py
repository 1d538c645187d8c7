"""libllama itself: loading it once, its log, and two ways to call it.

A ctypes call through `CDLL` lets go of the GIL and must win it back afterwards, which costs a thread switch whenever
another Python thread is busy. So only calls that take long (decode, load, state copies) go through `slow`; the many
short calls of a step go through `fast`, a `PyDLL` handle on the same library that keeps the GIL.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import llama_cpp.llama_cpp as slow

from minka.native.build import amx_is_broken

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger("minka.llama")

# ggml_log_level -> Python level; 5 continues the line before.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
# What libllama warns of and is meant: the engine asks whether there is room, pools by itself, and wants whole caches;
# and an adapter's weights are never repacked, which is said of each of them.
_EXPECTED = re.compile(
    r"failed to find (a memory slot|free space)|failed to prepare attention ubatches|model default pooling_type is"
    r"|using full-size SWA cache|lora for '.*' cannot use buft"
)

_FAST = (
    "llama_get_logits_ith",
    "llama_get_memory",
    "llama_memory_clear",
    "llama_memory_seq_add",
    "llama_memory_seq_cp",
    "llama_memory_seq_pos_max",
    "llama_memory_seq_pos_min",
    "llama_memory_seq_rm",
    "llama_sampler_accept",
    "llama_sampler_apply",
    "llama_sampler_free",
    "llama_sampler_reset",
    "llama_token_to_piece",
    "llama_vocab_is_control",
    "llama_vocab_is_eog",
)


class Fast:
    """The functions of `_FAST` with the types llama_cpp declares, called with the GIL held."""

    def __init__(self) -> None:
        handle = ctypes.PyDLL(slow._lib._name)
        for name in _FAST:
            declared = getattr(slow._lib, name)
            function = getattr(handle, name)
            function.argtypes, function.restype = declared.argtypes, declared.restype
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ctypes._NamedFuncPointer: ...


class Library:
    """libllama, initialised, with its log routed to the logger `minka.llama`."""

    def __init__(self) -> None:
        self.slow: ModuleType = slow
        self._errors: deque[str] = deque(maxlen=20)
        self._lock = threading.Lock()
        self._line = ""
        self._level = logging.DEBUG
        # libllama keeps the pointer for the life of the process, and so must we.
        self._callback = slow.llama_log_callback(self._on_log)
        slow.llama_log_set(self._callback, ctypes.c_void_p(0))
        slow.llama_backend_init()
        self.fast = Fast()

    def _on_log(self, level: int, text: bytes, _user_data: object) -> None:
        with self._lock:
            if level != _CONTINUE:
                self._level = _LEVELS.get(level, logging.DEBUG)
            self._line += text.decode("utf-8", "replace")
            *lines, self._line = self._line.split("\n")
            for line in lines:
                if line.strip(". "):
                    log.log(logging.DEBUG if _EXPECTED.search(line) else self._level, "%s", line)
                    if self._level >= logging.ERROR:
                        self._errors.append(line)

    @contextmanager
    def errors(self) -> Iterator[deque[str]]:
        """Error lines that libllama logs inside the block; its functions themselves only say "failed"."""
        with self._lock:
            self._errors.clear()
        yield self._errors

    @property
    def version(self) -> str:
        """libllama's own version, such as `0.5.0-dev`."""
        return bytes(self.slow.llama_version()).decode()

    @cached_property
    def amx_is_broken(self) -> bool:
        """Whether weights must not be laid out for AMX, because this build would die of it."""
        info = bytes(self.slow.llama_print_system_info()).decode()
        return amx_is_broken(info, Path(self.slow._lib._name).parent / "libggml-cpu.so")

    @property
    def supports_gpu(self) -> bool:
        """Whether this build of libllama can put layers on a GPU."""
        return bool(self.slow.llama_supports_gpu_offload())


@cache
def library() -> Library:
    """The process's libllama. It is loaded by the first call, because it keeps process-wide state of its own."""
    return Library()
