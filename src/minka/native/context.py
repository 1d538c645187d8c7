"""The real backend: one llama_context, its KV cache, and the batch that feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from minka.errors import ModelError, NativeError
from minka.native.batch import Batch
from minka.native.library import Library, library
from minka.native.machine import available_memory, physical_cores
from minka.native.model import Model
from minka.native.protocol import Decoded, Logits, Sampler
from minka.native.samplers import Chain, Greedy, biases, picks_maximum
from minka.native.vocab import Vocab
from minka.params import ContextParams, SamplingParams

if TYPE_CHECKING:
    from llama_cpp.llama_cpp import llama_context_params

# ggml_type numbers; llama_cpp lacks some of the constants.
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5, "iq4_nl": 4.5, "q5_0": 5.5, "q5_1": 6}
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_ROPE_SCALING = {"": -1, "none": 0, "linear": 1, "yarn": 2}
DEFAULT_SLOTS = 4
"""Sequences when --parallel is not given, as in llama-server."""


class Context:
    """Implements `protocol.Backend`. Frees its C objects on `close`; the model outlives it."""

    def __init__(self, model: Model, params: ContextParams) -> None:
        self._lib: Library = library()
        self._slow, self._fast = self._lib.slow, self._lib.fast
        self.model = model
        self.n_seq_max = DEFAULT_SLOTS if params.parallel < 0 else params.parallel
        self.kv_unified = params.parallel < 0 if params.kv_unified is None else params.kv_unified
        if self.n_seq_max > (limit := self._slow.llama_max_parallel_sequences()):
            raise ModelError(f"--parallel {self.n_seq_max} is more than the {limit} sequences that libllama can hold")
        wanted = _context_length(model, params, self.n_seq_max)
        _check_memory(model, params, wanted)
        native = self._native_params(params, wanted)
        with self._lib.errors() as errors:
            self._context: int | None = self._slow.llama_init_from_model(model.pointer, native)
            if not self._context:
                raise ModelError(f"cannot create a context of {wanted} tokens: {errors[0] if errors else 'no reason'}")
        self._memory = self._fast.llama_get_memory(self._context)
        self.n_ctx = int(self._slow.llama_n_ctx(self._context))
        limits = [int(self._slow.llama_n_ctx_seq(self._context)), model.n_ctx_train, params.kv_unified_per_slot]
        self.n_ctx_seq = min(limit for limit in limits if limit > 0)
        self.n_batch = int(self._slow.llama_n_batch(self._context))
        self.n_ubatch = int(self._slow.llama_n_ubatch(self._context))
        self._n_outputs_max = native.n_outputs_max or self.n_batch
        self._batch = Batch(self._lib, max(self.n_batch, self.n_seq_max))
        if params.warmup:
            self._warm_up()

    def _native_params(self, params: ContextParams, n_ctx: int) -> llama_context_params:
        native = self._slow.llama_context_default_params()
        native.n_ctx, native.n_seq_max, native.kv_unified = n_ctx, self.n_seq_max, self.kv_unified
        native.n_batch, native.n_ubatch = params.n_batch, min(params.n_ubatch, params.n_batch)
        native.n_outputs_max = min(params.n_batch, max(self.n_seq_max, 1))
        native.n_threads = params.threads if params.threads > 0 else physical_cores()
        native.n_threads_batch = params.threads_batch if params.threads_batch > 0 else native.n_threads
        native.flash_attn_type = _FLASH_ATTN[params.flash_attn]
        native.type_k, native.type_v = KV_TYPES[params.cache_type_k], KV_TYPES[params.cache_type_v]
        native.offload_kqv, native.swa_full, native.no_perf = params.kv_offload, params.swa_full, not params.perf
        native.rope_scaling_type = _ROPE_SCALING[params.rope_scaling or ""]
        native.rope_freq_base, native.rope_freq_scale = params.rope_freq_base, params.rope_freq_scale
        native.yarn_orig_ctx, native.yarn_ext_factor = params.yarn_orig_ctx, params.yarn_ext_factor
        native.yarn_attn_factor = params.yarn_attn_factor
        native.yarn_beta_slow, native.yarn_beta_fast = params.yarn_beta_slow, params.yarn_beta_fast
        return native  # type: ignore[no-any-return]

    def _warm_up(self) -> None:
        """Decode two tokens and forget them: the first decode of a process pages the weights in."""
        vocab = self.vocab
        tokens = [t for t in (vocab.bos, vocab.eos) if t >= 0] or [0]
        self._batch.add(0, tokens, 0, 1)
        self.decode()
        self.clear()

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.model.vocab

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        """See `protocol.Backend.add`. Raises NativeError for anything that would make libllama abort."""
        self._check_seq(seq)
        if not 0 <= logits <= len(tokens) or self._batch.n_outputs + logits > self._n_outputs_max:
            raise NativeError(f"{logits} logits rows of {len(tokens)} tokens, at most {self._n_outputs_max} per decode")
        if pos + len(tokens) > self.n_ctx_seq:
            raise NativeError(f"sequence {seq} would grow to {pos + len(tokens)} of {self.n_ctx_seq} positions")
        return self._batch.add(seq, tokens, pos, logits)

    def decode(self) -> Decoded:
        """See `protocol.Backend.decode`. The GIL is free meanwhile."""
        n_tokens = self._batch.n_tokens
        with self._lib.errors() as errors:
            code = int(self._slow.llama_decode(self._open(), self._batch.seal()))
            self._batch.clear()
            if code not in (0, 1):
                reason = f": {errors[0]}" if errors else ""
                raise NativeError(f"libllama could not compute a batch of {n_tokens} tokens (code {code}){reason}")
        return Decoded.OK if code == 0 else Decoded.NO_SLOT

    def logits(self, row: int) -> Logits:
        """See `protocol.Backend.logits`."""
        pointer = self._fast.llama_get_logits_ith(self._open(), row) if self._batch.has_logits(row) else None
        if not pointer:
            raise NativeError(f"the last batch has no logits in row {row}")
        return np.ctypeslib.as_array(pointer, (self.vocab.n_tokens,))

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        """See `protocol.Backend.sampler`."""
        for token, _bias in params.logit_bias:
            self.vocab.check(token)
        if picks_maximum(params):
            return Greedy(self.logits, biases(self.vocab, params))
        return Chain(self._lib, self.vocab, self._open(), self.logits, params, seed)

    def share(self, src: int, dst: int, n: int) -> None:
        """See `protocol.Backend.share`."""
        self._check_seq(src)
        self._check_seq(dst)
        if src == dst or not max(self.floor(src), 1) <= n <= self.length(src):
            raise NativeError(f"cannot share {n} of {self.length(src)} positions of sequence {src} with {dst}")
        self._fast.llama_memory_seq_rm(self._memory, dst, -1, -1)
        if self.kv_unified:
            self._fast.llama_memory_seq_cp(self._memory, src, dst, 0, n)
        else:
            # Between streams libllama copies whole sequences only: a partial copy aborts the process.
            self._fast.llama_memory_seq_cp(self._memory, src, dst, -1, -1)
            self.cut(dst, n)

    def cut(self, seq: int, n: int) -> None:
        """See `protocol.Backend.cut`."""
        if n >= self.length(seq):
            return
        if 0 < n < self.floor(seq) or not self._fast.llama_memory_seq_rm(self._memory, seq, n if n else -1, -1):
            raise NativeError(f"sequence {seq} of {self.length(seq)} positions cannot be cut to {n}")

    def floor(self, seq: int) -> int:
        """See `protocol.Backend.floor`."""
        if self.model.has_state:
            return self.length(seq)
        oldest = int(self._fast.llama_memory_seq_pos_min(self._memory, seq)) if self.model.n_swa else 0
        return oldest + self.model.n_swa + 1 if oldest > 0 else 0

    def discard(self) -> None:
        """See `protocol.Backend.discard`."""
        self._batch.clear()

    def length(self, seq: int) -> int:
        """See `protocol.Backend.length`."""
        self._check_seq(seq)
        return int(self._fast.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def clear(self) -> None:
        """Drop all sequences."""
        self._fast.llama_memory_clear(self._memory, 1)

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

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise NativeError(f"sequence {seq} is outside 0 to {self.n_seq_max - 1}")
        self._open()


def _context_length(model: Model, params: ContextParams, n_seq: int) -> int:
    if n_seq < 1:
        raise ModelError("--parallel must be at least 1: a server without slots can answer nothing")
    if params.n_ctx > 0:
        return params.n_ctx
    return params.kv_unified_per_slot * n_seq if params.kv_unified_per_slot else model.n_ctx_train


def _check_memory(model: Model, params: ContextParams, n_ctx: int) -> None:
    """Refuse a KV cache that cannot fit: the kernel would let us allocate it and kill the process when it is filled."""
    if model.has_state or model.n_swa or (library().supports_gpu and params.kv_offload):
        return  # sizes that only libllama knows
    width = model.n_embd / max(model.n_head, 1) * model.n_head_kv
    with suppress(ValueError):
        width = float(model.meta("llama.attention.key_length") or width / model.n_head_kv) * model.n_head_kv
    need = int(n_ctx * model.n_layer * width * (_BITS[params.cache_type_k] + _BITS[params.cache_type_v]) / 8)
    if (free := available_memory()) is not None and need > free:
        raise ModelError(
            f"a context of {n_ctx} tokens needs {need / 2**30:.1f} GiB for its KV cache, but only "
            f"{free / 2**30:.1f} GiB of memory are free; give a smaller --ctx-size or a smaller --cache-type-k/-v"
        )
