"""A llama_context that makes embeddings: batches that are micro-batches, and the rows or pooled vectors of each text.

Knows nothing of texts that come in parts; `native.embedder` does. Everything is checked there before it gets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native.batch import Batch
from minka.native.context_params import FLASH_ATTN, context_params
from minka.native.control_vector import steer
from minka.native.embeddings import Part
from minka.native.library import Library, library
from minka.native.machine import available_memory
from minka.native.model import Model
from minka.native.threadpool import Threadpools
from minka.params import ContextParams
from minka.types import Pooling

if TYPE_CHECKING:
    from llama_cpp.llama_cpp import llama_context_params

POOLING = {Pooling.NONE: 0, Pooling.MEAN: 1, Pooling.CLS: 2, Pooling.LAST: 3, Pooling.RANK: 4}
"""llama_pooling_type."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a context is for. `cached`: the model has a KV cache; `causal`: its tokens look back only; `plain`: no flash
    attention."""

    n_cells: int
    n_batch: int
    n_seq_max: int
    pooling: Pooling
    cached: bool
    causal: bool
    plain: bool


class EmbeddingContext:
    """One llama_context. Raises NativeError if it cannot be made."""

    def __init__(self, model: Model, params: ContextParams, size: Size, threadpools: Threadpools | None = None) -> None:
        self._lib: Library = library()
        self._slow = self._lib.slow
        self._size = size
        self.n_batch = size.n_batch
        self.width = int(self._slow.llama_model_n_embd_out(model.pointer))
        self.n_scores = int(self._slow.llama_model_n_cls_out(model.pointer))
        _check_memory(model, params, size)
        native = self._native(model, params)
        with self._lib.errors() as errors:
            self._context: int | None = self._slow.llama_init_from_model(model.pointer, native)
            if not self._context:
                reason = errors[0] if errors else "no reason"
                raise NativeError(f"cannot create a context of {size.n_batch} tokens for embeddings: {reason}")
        self._memory = self._slow.llama_get_memory(self._context)
        self._batch = Batch(self._lib, size.n_batch)
        try:
            steer(self._lib, self._context, model, params)
            if threadpools is not None:
                threadpools.attach(self._context)
            self._verify()
        except BaseException:
            self.close()
            raise

    def _native(self, model: Model, params: ContextParams) -> llama_context_params:
        size = self._size
        native = context_params(self._lib, params)
        native.n_ctx, native.n_batch, native.n_ubatch = size.n_cells, size.n_batch, size.n_batch
        native.n_seq_max, native.kv_unified = size.n_seq_max, True
        native.embeddings, native.pooling_type = True, POOLING[size.pooling]
        native.n_outputs_max = max(size.n_batch, size.n_seq_max)  # libllama aborts if it is less than the sequences
        if size.plain:
            native.flash_attn_type = FLASH_ATTN["off"]
        return native

    def _verify(self) -> None:
        """libllama aborts the process if its batches are smaller or its model another than we think."""
        slow, size = self._slow, self._size
        causal = bool(slow.llama_get_causal_attn(self._context))
        if bool(self._memory) != size.cached or (size.cached and causal != size.causal):
            raise NativeError("libllama computes this model's embeddings in another way than its metadata say")
        if min(slow.llama_n_ubatch(self._context), slow.llama_n_batch(self._context)) < size.n_batch:
            raise NativeError(f"libllama made a context for less than {size.n_batch} tokens")
        if int(slow.llama_pooling_type(self._context)) != POOLING[size.pooling]:
            raise NativeError("libllama does not pool as it was told to")

    def compute(self, parts: Sequence[Part]) -> list[NDArray[np.float32]]:
        """The rows of each part, copied: one a token, or the one that libllama pooled them to."""
        self._batch.clear()
        for part in parts:
            self._batch.add(part.seq, part.tokens, part.pos, len(part.tokens))
        run = self._slow.llama_decode if self._memory else self._slow.llama_encode
        n_tokens = self._batch.n_tokens
        with self._lib.errors() as errors:
            code = int(run(self._open(), self._batch.seal()))
        self._batch.clear()
        if code:
            reason = f": {errors[0]}" if errors else ""
            raise NativeError(f"libllama could not embed a batch of {n_tokens} tokens (code {code}){reason}")
        if self._size.pooling is not Pooling.NONE:
            return [self._pooled(part.seq) for part in parts]
        return self._rows(parts, n_tokens)

    def _pooled(self, seq: int) -> NDArray[np.float32]:
        pointer = self._slow.llama_get_embeddings_seq(self._open(), seq)
        if not pointer:
            raise NativeError(f"libllama made no embedding of text {seq}")
        width = self.n_scores if self._size.pooling is Pooling.RANK else self.width
        return np.ctypeslib.as_array(pointer, (1, width)).copy()

    def _rows(self, parts: Sequence[Part], n_tokens: int) -> list[NDArray[np.float32]]:
        pointer = self._slow.llama_get_embeddings(self._open())
        if not pointer:
            raise NativeError("libllama made no embeddings")
        rows = np.ctypeslib.as_array(pointer, (n_tokens, self.width)).copy()
        ends = np.cumsum([len(part.tokens) for part in parts])
        return [rows[end - len(part.tokens) : end] for part, end in zip(parts, ends, strict=True)]

    def drop(self, seq: int) -> None:
        """Free the cells of a text. What this context does not hold is none."""
        if self._memory and seq < self._size.n_seq_max:
            self._slow.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self._context:
            self._batch.close()
            self._slow.llama_free(self._context)
            self._context = None

    def _open(self) -> int:
        if self._context is None:
            raise NativeError("the context was closed")
        return self._context


def _check_memory(model: Model, params: ContextParams, size: Size) -> None:
    """Refuse what cannot fit: the kernel would let us allocate it and kill the process once it is filled."""
    if library().supports_gpu or model.has_state or model.n_swa:
        return  # sizes that only libllama knows
    if size.cached:
        width = model.n_embd // max(model.n_head, 1) * model.n_head_kv
        n_bytes = sum(4 if name == "f32" else 2 for name in (params.cache_type_k, params.cache_type_v))
        need = size.n_cells * model.n_layer * width * n_bytes + 2 * 4 * size.n_batch * model.vocab.n_tokens
    else:
        need = 4 * model.n_head * size.n_batch**2 if params.flash_attn == "off" else 0
    if (free := available_memory()) is not None and need > free:
        raise NativeError(
            f"embeddings of {size.n_cells} tokens need {need / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB of "
            "memory are free; send shorter texts or give a smaller --ctx-size"
        )
