"""Watching a model compute: products of its weights, or results by their names, shown to Python while libllama decodes.

libllama asks before each node of its graph whether someone wants to see it (`cb_eval`). Here that question is answered,
and what is wanted is shown as numpy views. Knows nothing of what it is for.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native.context import Context
from minka.native.library import Library, library
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.native.threadpool import Threadpools
from minka.params import ContextParams

if TYPE_CHECKING:
    from llama_cpp.llama_cpp import llama_context_params

_N_OPS = 64
"""Operations whose names are looked at: fewer than ggml has, because it would read beyond the last one."""
_OBJECT_SIZE = 32
"""Bytes that ggml puts before each tensor in a context (struct ggml_object)."""
_F32 = 0
Item = TypeVar("Item", np.float32, np.int32)


class Product(NamedTuple):
    """A product of activations with a weight. The arrays are libllama's memory: valid during the call only."""

    weight: str
    """Name of the weight in the model file."""
    shape: tuple[int, int, int, int]
    """Elements of the weight per dimension, the contiguous one first (ggml's `ne`)."""
    x: NDArray[np.float32]
    """The activations, shape (n3, n2, rows, shape[0])."""
    experts: NDArray[np.int32] | None
    """For a weight of several experts, the ones each token was routed to: shape (n_tokens, n_used). `x` is then
    (1, n_tokens, n_used or 1, shape[0])."""
    repeats: bool
    """Whether `x` holds the very numbers of the product shown before, as for query, key and value of a layer."""


class Observer(Protocol):
    """Sees products. An exception from either method stops the decode, which then raises it."""

    def wants(self, weight: str, *, routed: bool, n_rows: int) -> bool:
        """Whether to show the product with this weight; `n_rows` are its activations' rows per matrix."""

    def see(self, product: Product) -> None:
        """Look at a product that `wants` said yes to."""


class _Tensor(ctypes.Structure):
    """A ggml_tensor, as ggml/include/ggml.h of llama.cpp declares it."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


_OP_OFFSET = _Tensor.op.offset


class _Ggml:
    """The functions of libggml that llama_cpp does not declare, called with the GIL held, and the ids of two ops."""

    def __init__(self, lib: Library) -> None:
        handle = ctypes.PyDLL(lib.slow._lib._name)
        self.is_host = handle.ggml_backend_buffer_is_host
        self.is_host.argtypes, self.is_host.restype = [ctypes.c_void_p], ctypes.c_bool
        self.get = handle.ggml_backend_tensor_get
        self.get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self.get.restype = None
        overhead = handle.ggml_tensor_overhead
        overhead.argtypes, overhead.restype = [], ctypes.c_size_t
        if overhead() != _OBJECT_SIZE + ctypes.sizeof(_Tensor):
            raise NativeError(f"libllama {lib.version} lays tensors out in a way that Minka cannot read; update Minka")
        ops = _op_ids(handle, ("MUL_MAT", "MUL_MAT_ID"))
        self.mul_mat, self.mul_mat_id = ops


def _op_ids(handle: ctypes.PyDLL, names: tuple[str, ...]) -> list[int]:
    """Numbers of operations by their names, because they move between versions of ggml."""
    op_name = handle.ggml_op_name
    op_name.argtypes, op_name.restype = [ctypes.c_int], ctypes.c_char_p
    known = [op_name(number).decode() for number in range(_N_OPS)]
    missing = [name for name in names if name not in known]
    if missing:
        raise NativeError(f"this libllama has no operation {missing[0]}; update Minka")
    return [known.index(name) for name in names]


def weight_name(raw: bytes) -> str:
    """A tensor's name without what a backend adds: `CUDA0#blk.0.attn_k.weight#0` is `blk.0.attn_k.weight`."""
    name = raw.decode("utf-8", "replace")
    _, mark, rest = name.partition("#")
    return rest.partition("#")[0] if mark else name


class _Carry:
    """A `with` block whose first exception is kept instead of raised: it must not unwind through C."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = self.error or error
        return True

    def clear(self) -> BaseException | None:
        """The exception, which is forgotten here."""
        error, self.error = self.error, None
        return error


class Hook(ABC):
    """The callback that libllama calls with the addresses of tensors. Keep it as long as the context."""

    def __init__(self, lib: Library) -> None:
        self._ggml = _Ggml(lib)
        self.carry = _Carry()
        self.callback = lib.slow.ggml_backend_sched_eval_callback(self._on_node)

    def _on_node(self, address: int, ask: bool, _user_data: object) -> bool:
        if self.carry.error is not None:
            # Want the next node, then refuse it: that ends the graph at once, where "no" would compute all the rest.
            return ask
        with self.carry:
            return self._wants(address) if ask else self._show(address)
        return ask

    @abstractmethod
    def _wants(self, address: int) -> bool:
        """Whether to be shown this node once it is computed."""

    @abstractmethod
    def _show(self, address: int) -> bool:
        """Look at a node that was wanted. False ends the decode."""

    def _array(self, tensor: _Tensor, dtype: type[Item]) -> NDArray[Item]:
        """A tensor's elements in numpy's order of dimensions: a view where the CPU can read it, else a copy."""
        ne, nb = list(tensor.ne), list(tensor.nb)
        span = sum((n - 1) * step for n, step in zip(ne, nb, strict=True)) + np.dtype(dtype).itemsize
        if self._is_host(tensor):
            memory = (ctypes.c_char * span).from_address(tensor.data)
        else:
            memory = (ctypes.c_char * span)()
            self._ggml.get(ctypes.addressof(tensor), memory, 0, span)
        return np.ndarray(ne[::-1], dtype, memory, strides=nb[::-1])

    def _is_host(self, tensor: _Tensor) -> bool:
        owner = _Tensor.from_address(tensor.view_src) if tensor.view_src else tensor
        return bool(self._ggml.is_host(owner.buffer))


class _ProductHook(Hook):
    """Shows an observer the products with weights."""

    def __init__(self, lib: Library, observer: Observer) -> None:
        super().__init__(lib)
        self._observer = observer
        self._last_x = 0

    def _wants(self, address: int) -> bool:
        if address == self._last_x:
            self._last_x = 0  # about to be computed anew
        op = ctypes.c_int.from_address(address + _OP_OFFSET).value
        if op not in (self._ggml.mul_mat, self._ggml.mul_mat_id):
            return False
        weight, x = self._sources(_Tensor.from_address(address))
        routed = op == self._ggml.mul_mat_id
        return x.type == _F32 and self._observer.wants(weight_name(weight.name), routed=routed, n_rows=x.ne[1])

    def _show(self, address: int) -> bool:
        product = _Tensor.from_address(address)
        weight, x = self._sources(product)
        ids = _Tensor.from_address(product.src[2]) if product.op == self._ggml.mul_mat_id else None
        repeats = product.src[1] == self._last_x
        # An input of the graph gets new numbers without being asked about.
        self._last_x = product.src[1] if x.op else 0
        self._observer.see(
            Product(
                weight_name(weight.name),
                (weight.ne[0], weight.ne[1], weight.ne[2], weight.ne[3]),
                self._array(x, np.float32),
                None if ids is None else self._array(ids, np.int32)[0, 0],
                repeats,
            )
        )
        return True

    @staticmethod
    def _sources(product: _Tensor) -> tuple[_Tensor, _Tensor]:
        return _Tensor.from_address(product.src[0]), _Tensor.from_address(product.src[1])


See = Callable[[str, NDArray[np.float32]], None]
"""Called with a result's name and its numbers, shape (n3, n2, n1, n0), which are valid during the call only."""


class _ResultHook(Hook):
    """Shows results of F32 whose names begin as asked."""

    def __init__(self, lib: Library, prefix: str, see: See) -> None:
        super().__init__(lib)
        self._prefix, self._see = prefix.encode(), see

    def _wants(self, address: int) -> bool:
        tensor = _Tensor.from_address(address)
        return tensor.type == _F32 and bool(tensor.name.startswith(self._prefix))

    def _show(self, address: int) -> bool:
        tensor = _Tensor.from_address(address)
        self._see(tensor.name.decode("utf-8", "replace"), self._array(tensor, np.float32))
        return True


class WatchedContext(Context):
    """A context whose decodes are watched by a hook, and that has logits for every token of a batch."""

    def __init__(self, model: Model, params: ContextParams, hook: Hook, threadpools: Threadpools | None = None) -> None:
        self._hook = hook
        super().__init__(model, params, threadpools)

    def _native_params(self, params: ContextParams, n_ctx: int) -> llama_context_params:
        native = super()._native_params(params, n_ctx)
        native.cb_eval = self._hook.callback
        native.n_outputs_max = native.n_batch
        return native

    def _choose_attention(self, native: llama_context_params, params: ContextParams, n_ctx: int) -> None:
        """Nothing: what is watched is to be computed as the upstream tools compute it."""

    def decode(self) -> Decoded:
        """See `Context.decode`. Raises what the observer raised; the sequences of the batch are useless then."""
        carry = self._hook.carry
        try:
            return super().decode()
        finally:
            if (error := carry.clear()) is not None:
                raise error


class ObservedContext(WatchedContext):
    """Shows an observer the products of each decode."""

    def __init__(
        self, model: Model, params: ContextParams, observer: Observer, threadpools: Threadpools | None = None
    ) -> None:
        super().__init__(model, params, _ProductHook(library(), observer), threadpools)


class ResultContext(WatchedContext):
    """Shows `see` the results whose names begin with `prefix`, such as `l_out`: what each layer gives to the next."""

    def __init__(
        self, model: Model, params: ContextParams, prefix: str, see: See, threadpools: Threadpools | None = None
    ) -> None:
        super().__init__(model, params, _ResultHook(library(), prefix, see), threadpools)
