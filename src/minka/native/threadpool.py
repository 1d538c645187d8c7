"""A pool of compute threads that is pinned, polled or prioritised as asked for, and shared by all graphs of a context.

Without one libllama makes threads as it needs them. Knows nothing of what they compute.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import ClassVar

from minka.errors import NativeError, UsageError
from minka.native.devices import cpu_function, registry
from minka.params import HardwareParams

MAX_THREADS = 512
"""GGML_MAX_N_THREADS, the length of a CPU mask."""
_NICE = {-1: 5, 0: 0, 1: -5, 2: -10, 3: -20}


class _Params(ctypes.Structure):
    """ggml_threadpool_params (ggml.h)."""

    _fields_: ClassVar = [
        ("cpumask", ctypes.c_bool * MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


@dataclass(frozen=True, slots=True)
class Pinning:
    """How threads of a pool are placed: on the processors `cpus` (empty: any), with `strict` each on one of its own.

    `poll` is 0 (sleep while idle) to 100 (spin), `priority` -1 (low) to 3 (real time).
    """

    cpus: frozenset[int] = frozenset()
    strict: bool = False
    poll: int = 50
    priority: int = 0


class Threadpool:
    """`n_threads` compute threads. Raises UsageError for what cannot be, NativeError if they do not start."""

    def __init__(self, n_threads: int, pinning: Pinning) -> None:
        new, free = cpu_function("ggml_threadpool_new"), cpu_function("ggml_threadpool_free")
        if new is None or free is None:
            raise NativeError("this build of libllama cannot make thread pools")
        if not 1 <= n_threads <= MAX_THREADS:
            raise UsageError(f"a thread pool has 1 to {MAX_THREADS} threads, not {n_threads}")
        params = _Params(
            n_threads=n_threads, prio=pinning.priority, poll=pinning.poll, strict_cpu=pinning.strict, paused=False
        )
        for cpu in pinning.cpus:
            params.cpumask[cpu] = True
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free)
        self._pool: int | None = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(new)(ctypes.addressof(params))
        if not self._pool:
            raise NativeError(f"libllama could not start {n_threads} threads")

    def attach(self, context: int, batch: Threadpool | None = None) -> None:
        """Let a llama_context compute on this pool, and prompts on `batch` if there is one."""
        attach = registry().llama_attach_threadpool
        attach.restype, attach.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        attach(context, self._pool, batch._pool if batch else None)

    def close(self) -> None:
        """End the threads; no context may use them any more. Idempotent."""
        if self._pool:
            self._free(self._pool)
            self._pool = None


class Threadpools:
    """The pools of one or several contexts that compute one at a time: one for all, or a second one for prompts.

    Without any pinning there is no pool, and libllama makes threads as it needs them. Close it after the contexts.
    Raises what Threadpool raises.
    """

    def __init__(self, pinning: Pinning | None, batch_pinning: Pinning | None, n_threads: int, n_batch: int) -> None:
        self._pools: list[Threadpool] = []
        if pinning is None and batch_pinning is None:
            return
        # One pool for both is what libllama makes of the first if there is no second.
        self._pools.append(Threadpool(n_threads if batch_pinning else max(n_threads, n_batch), pinning or Pinning()))
        if batch_pinning:
            try:
                self._pools.append(Threadpool(n_batch, batch_pinning))
            except BaseException:
                self.close()
                raise

    def attach(self, context: int) -> None:
        """Let a llama_context compute on them."""
        if self._pools:
            self._pools[0].attach(context, *self._pools[1:])

    def close(self) -> None:
        """End the threads. Idempotent."""
        while self._pools:
            self._pools.pop().close()


def pinnings(params: HardwareParams) -> tuple[Pinning | None, Pinning | None]:
    """How the threads are placed, and those of prompts; None where nothing is said. Raises UsageError."""
    usual = Pinning(_cpus(params.cpu_mask, params.cpu_range), bool(params.cpu_strict), params.poll, params.prio)
    cpus = _cpus(params.cpu_mask_batch, params.cpu_range_batch)
    strict, priority, poll = params.cpu_strict_batch, params.prio_batch, params.poll_batch
    default, batch = Pinning(), None
    if cpus or not strict is priority is poll is None:
        batch = Pinning(cpus, bool(strict), default.poll if poll is None else poll, priority or 0)
    return (None if usual == default else usual), batch


def _cpus(mask: str, span: str) -> frozenset[int]:
    return (parse_cpu_mask(mask) if mask else frozenset()) | (parse_cpu_range(span) if span else frozenset())


def parse_cpu_mask(text: str) -> frozenset[int]:
    """The processors of a hexadecimal mask such as `0xff`; 0 is no mask. Raises UsageError."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    try:
        mask = int(digits or "x", 16)
    except ValueError:
        raise UsageError(f"{text!r} is no CPU mask; give hexadecimal digits, as in 0xff") from None
    if mask < 0 or mask.bit_length() > MAX_THREADS:
        raise UsageError(f"the CPU mask {text!r} is outside of processors 0 to {MAX_THREADS - 1}")
    return frozenset(i for i in range(mask.bit_length()) if mask >> i & 1)


def parse_cpu_range(text: str) -> frozenset[int]:
    """The processors of a range such as `0-7`, whose ends may be left out. Raises UsageError."""
    low, dash, high = text.partition("-")
    if not dash or not all(part.isdecimal() or not part for part in (low, high)):
        raise UsageError(f"{text!r} is no range of processors; give LOW-HIGH, as in 0-7")
    first, last = int(low or 0), int(high or MAX_THREADS - 1)
    if max(first, last) >= MAX_THREADS:
        raise UsageError(f"the range {text!r} is outside of processors 0 to {MAX_THREADS - 1}")
    return frozenset(range(first, last + 1))


def set_priority(priority: int) -> None:
    """Give the whole process a priority: -1 low, 0 as it is, 1 medium, 2 high, 3 real time. Raises UsageError."""
    if priority == 0:
        return
    if priority not in _NICE:
        raise UsageError(f"--prio must be between -1 and 3, but got {priority}")
    if not hasattr(os, "setpriority"):
        raise UsageError("--prio is not supported on this system")
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE[priority])
    except OSError as error:
        raise UsageError(
            f"--prio {priority} was refused by the system ({error.strerror}); give a lower one or run with more rights"
        ) from None
