"""The real backend: one llama_context, its KV cache, and the batch that feeds it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minka.errors import ModelError, NativeError, RequestError
from minka.native.attention import SHORT_UBATCH, prefers_plain
from minka.native.batch import Batch
from minka.native.context_params import FLASH_ATTN, context_params
from minka.native.control_vector import steer
from minka.native.library import Library, library
from minka.native.machine import available_memory
from minka.native.model import Model
from minka.native.positions import can_turn
from minka.native.protocol import Block, Decoded, Logits, Sampler
from minka.native.samplers import Candidates, Chain, Greedy, biases, picks_maximum
from minka.native.state import KvBlock, StateFormat
from minka.native.state_layouts import adopt, portable
from minka.native.threadpool import Threadpools
from minka.native.vocab import Vocab
from minka.params import Adapters, ContextParams, SamplingParams
from minka.types import Adapter

if TYPE_CHECKING:
    from llama_cpp.llama_cpp import llama_context_params

_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5, "iq4_nl": 4.5, "q5_0": 5.5, "q5_1": 6}
_ROW_BYTES, _MIN_ROWS, _MAX_ROWS = 32 << 20, 64, 256
DEFAULT_SLOTS = 4
"""Sequences when --parallel is not given, as in llama-server."""


class TextlessError(ModelError):
    """The model has no KV cache: all that it can do is to embed texts."""


class Context:
    """Implements `protocol.Backend`. Frees its C objects on `close`; the model and the thread pools outlive it."""

    def __init__(self, model: Model, params: ContextParams, threadpools: Threadpools | None = None) -> None:
        self._lib: Library = library()
        self._slow, self._fast = self._lib.slow, self._lib.fast
        self.model = model
        self.n_seq_max = DEFAULT_SLOTS if params.parallel < 0 else params.parallel
        self.kv_unified = params.parallel < 0 if params.kv_unified is None else params.kv_unified
        if self.n_seq_max > (limit := self._slow.llama_max_parallel_sequences()):
            raise ModelError(f"--parallel {self.n_seq_max} is more than the {limit} sequences that libllama can hold")
        # One more sequence in the shared pool, to which states are restored before they are appended to another.
        self._scratch = self.n_seq_max if self.kv_unified and self.n_seq_max < limit else None
        wanted = _context_length(model, params, self.n_seq_max)
        self._check_room(params, wanted)
        native = self._native_params(params, wanted)
        self._rope = tuple(getattr(native, name) for name, *_ in native._fields_ if name.startswith(("rope", "yarn")))
        with self._lib.errors() as errors:
            self._context: int | None = self._slow.llama_init_from_model(model.pointer, native)
            if not self._context:
                raise ModelError(f"cannot create a context of {wanted} tokens: {errors[0] if errors else 'no reason'}")
        self._memory = self._fast.llama_get_memory(self._context)
        if not self._memory or model.has_encoder:
            self._slow.llama_free(self._context)
            if not self._memory:
                raise TextlessError(f"the model {model.path} only makes embeddings; it cannot generate text")
            raise ModelError(
                f"the model {model.path} has an encoder beside its decoder; Minka cannot generate text with it"
            )
        try:
            self._steering = steer(self._lib, self._context, model, params)
            if threadpools is not None:
                threadpools.attach(self._context)
        except BaseException:
            self._slow.llama_free(self._context)
            raise
        self._copying: set[tuple[int, int]] = set()
        """Streams (source, target) whose data libllama copies at the beginning of the next decode."""
        self._moved: dict[int, int] = {}
        """Sequences whose keys libllama turns at the beginning of the next decode, with the first position of these."""
        # libllama aborts the process in the next decode if it cannot.
        self.can_shift = bool(self._slow.llama_memory_can_shift(self._memory)) and can_turn(model, params)
        self.can_splice = self.can_shift and not model.has_state
        self.n_ctx = int(self._slow.llama_n_ctx(self._context))
        limits = [int(self._slow.llama_n_ctx_seq(self._context)), model.n_ctx_train, params.kv_unified_per_slot]
        self.n_ctx_seq = min(limit for limit in limits if limit > 0)
        self.n_batch = int(self._slow.llama_n_batch(self._context))
        self.n_ubatch = int(self._slow.llama_n_ubatch(self._context))
        self.n_rows = min(native.n_outputs_max, self.n_batch)
        self._adapters: Adapters = ()
        self._batch = Batch(self._lib, max(self.n_batch, self.n_seq_max))
        self._wants_warmup = params.warmup

    def _check_room(self, params: ContextParams, n_ctx: int) -> None:
        _check_memory(self.model, params, n_ctx)

    def _native_params(self, params: ContextParams, n_ctx: int) -> llama_context_params:
        native = context_params(self._lib, params)
        native.n_ctx, native.n_seq_max, native.kv_unified = n_ctx, self.n_seq_max, self.kv_unified
        if self._scratch is not None:
            native.n_seq_max += 1
        native.n_batch = max(params.n_batch, native.n_seq_max)  # a step has a token of every sequence
        native.n_ubatch = min(params.n_ubatch, native.n_batch)
        self._choose_attention(native, params, n_ctx)
        if self.model.n_swa and not params.swa_full:
            # While libllama finds cells for the later parts of a batch it drops positions that the first part's window
            # still needs, and computes something else than the text. A batch of one part is safe.
            native.n_batch = native.n_ubatch = max(native.n_ubatch, native.n_seq_max)
        native.n_outputs_max = min(native.n_seq_max + _prompt_rows(self.vocab.n_tokens), native.n_batch)
        return native

    def _choose_attention(self, native: llama_context_params, params: ContextParams, n_ctx: int) -> None:
        n_kv = n_ctx if self.kv_unified else -(-n_ctx // self.n_seq_max)
        n_sharing = self.n_seq_max if self.kv_unified else 1
        on_cpu = not (self._lib.supports_gpu and params.kv_offload)
        if prefers_plain(params, on_cpu=on_cpu, n_head=self.model.n_head, n_kv=n_kv, n_sharing=n_sharing):
            native.flash_attn_type, native.n_ubatch = FLASH_ATTN["off"], min(native.n_ubatch, SHORT_UBATCH)

    def warm_up(self) -> None:
        """See `protocol.Backend.warm_up`. Nothing if the parameters say so."""
        if not self._wants_warmup:
            return
        vocab = self.vocab
        tokens = [t for t in (vocab.bos, vocab.eos) if t >= 0] or [0]
        self._batch.add(0, tokens[: self.n_batch], 0, 1)
        self.decode()
        self.clear()

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.model.vocab

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        """See `protocol.Backend.add`. Raises NativeError for anything that would make libllama abort."""
        self._check_seq(seq)
        if not 0 <= logits <= len(tokens) or self._batch.n_outputs + logits > self.n_rows:
            raise NativeError(f"{logits} logits rows of {len(tokens)} tokens, at most {self.n_rows} per decode")
        if pos + len(tokens) > self.n_ctx_seq:
            raise NativeError(f"sequence {seq} would grow to {pos + len(tokens)} of {self.n_ctx_seq} positions")
        return self._batch.add(seq, tokens, pos, logits)

    def adapt(self, adapters: Adapters) -> None:
        """See `protocol.Backend.adapt`."""
        if adapters != self._adapters:
            self.model.adapters.apply(self._open(), adapters)
            self._adapters = adapters

    def check_adapters(self, adapters: Adapters) -> None:
        """See `protocol.Backend.check_adapters`."""
        self.model.adapters.check(adapters)

    def load_adapter(self, path: Path, scale: float) -> Adapter:
        """See `protocol.Backend.load_adapter`."""
        return self.model.adapters.load(path, scale)

    def unload_adapter(self, id: int) -> None:
        """See `protocol.Backend.unload_adapter`."""
        self.adapt(())
        self.model.adapters.unload(id)

    def decode(self) -> Decoded:
        """See `protocol.Backend.decode`. The GIL is free meanwhile."""
        n_tokens = self._batch.n_tokens
        with self._lib.errors() as errors:
            code = int(self._slow.llama_decode(self._open(), self._batch.seal()))
            self._batch.clear()
            self._copying.clear()
            self._moved.clear()
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
        self._open()
        for token, _bias in params.logit_bias:
            self.vocab.check(token)
        bias = biases(self.vocab, params)
        if len(bias) >= self.vocab.n_tokens and all(value == -np.inf for value in bias.values()):
            raise RequestError("logit_bias forbids every token there is", param="logit_bias")
        if picks_maximum(params):
            return Greedy(self.logits, bias)
        return Chain(self._lib, self.vocab, self.logits, self._candidates, params, seed)

    @cached_property
    def _candidates(self) -> Candidates:
        return Candidates(self._lib, self.vocab.n_tokens)

    def share(self, src: int, dst: int, n: int) -> None:
        """See `protocol.Backend.share`."""
        self._check_seq(src)
        self._check_seq(dst)
        if src == dst or not max(self.floor(src), 1) <= n <= self.length(src):
            raise NativeError(f"cannot share {n} of {self.length(src)} positions of sequence {src} with {dst}")
        self._fast.llama_memory_seq_rm(self._memory, dst, -1, -1)
        self._moved.pop(dst, None)
        if n > self._moved.get(src, n):
            self._moved[dst] = self._moved[src]
        if self.kv_unified:
            self._fast.llama_memory_seq_cp(self._memory, src, dst, 0, n)
        else:
            # Between streams libllama copies whole sequences only: a partial copy aborts the process.
            self._fast.llama_memory_seq_cp(self._memory, src, dst, -1, -1)
            self._copying.add((src, dst))
            self.cut(dst, n)

    def shift(self, seq: int, keep: int, discard: int) -> None:
        """See `protocol.Backend.shift`. Whether cells are shared is the caller's to know: libllama does not tell."""
        if not self.can_shift or keep < 0 or discard < 1 or keep + discard >= self.length(seq):
            raise NativeError(f"cannot drop {discard} of {self.length(seq)} positions of sequence {seq} from {keep} on")
        if not self._fast.llama_memory_seq_rm(self._memory, seq, keep, keep + discard):
            raise NativeError(f"libllama cannot drop positions {keep} to {keep + discard - 1} of sequence {seq}")
        self._fast.llama_memory_seq_add(self._memory, seq, keep + discard, -1, -discard)
        self._moved[seq] = min(keep, self._moved.get(seq, keep))

    def cut(self, seq: int, n: int) -> None:
        """See `protocol.Backend.cut`."""
        if n >= self.length(seq):
            return
        allowed = n == 0 or n >= max(self.floor(seq), 1)
        if not allowed or not self._fast.llama_memory_seq_rm(self._memory, seq, n or -1, -1):
            raise NativeError(f"sequence {seq} of {self.length(seq)} positions cannot be cut to {n}")
        if n <= self._moved.get(seq, -1):
            del self._moved[seq]

    def floor(self, seq: int) -> int:
        """See `protocol.Backend.floor`."""
        self._check_seq(seq)
        if self.model.has_state:
            return self.length(seq)
        oldest = int(self._fast.llama_memory_seq_pos_min(self._memory, seq)) if self.model.n_swa else 0
        # A restored state has just the window that goes on from its end.
        return min(self.length(seq), oldest + self.model.n_swa + 1) if oldest > 0 else 0

    @property
    def n_graphs_reused(self) -> int:
        """See `protocol.Backend.n_graphs_reused`."""
        return int(self._slow.llama_perf_context(self._open()).n_reused)

    def discard(self) -> None:
        """See `protocol.Backend.discard`."""
        self._batch.clear()

    def length(self, seq: int) -> int:
        """See `protocol.Backend.length`."""
        self._check_seq(seq)
        return int(self._fast.llama_memory_seq_pos_max(self._memory, seq)) + 1

    @cached_property
    def _format(self) -> StateFormat | None:
        return StateFormat.probe(self)

    @property
    def sliceable(self) -> bool:
        """See `protocol.Backend.sliceable`. The first call needs an empty context: it tries whether it works."""
        return self._format is not None

    @cached_property
    def fingerprint(self) -> str:
        """See `protocol.Backend.fingerprint`."""
        steered = (self._steering,) if self._steering else ()
        facts = repr((self._lib.version, self._sliced().kind, self._rope, *steered))
        return blake2b(facts.encode(), key=self.model.fingerprint, digest_size=16).hexdigest()

    def extract(self, seq: int, ranges: Sequence[tuple[int, int]]) -> Sequence[KvBlock]:
        """See `protocol.Backend.extract`."""
        if max((end for _start, end in ranges), default=0) > self._moved.get(seq, self.n_ctx):
            raise NativeError(f"sequence {seq} was shifted: what moved can be extracted after the next decode only")
        return self._sliced().cut(self._save(seq), ranges)

    def insert(self, seq: int, blocks: Sequence[Block]) -> bool:
        """See `protocol.Backend.insert`."""
        own = [block for block in blocks if isinstance(block, KvBlock)]
        if not own or len(own) != len(blocks):
            raise NativeError("only blocks that a context extracted can be inserted")
        start = own[0].start
        if start > self.length(seq) or (start and self._scratch is None):
            raise NativeError(f"cannot insert at position {start} of a sequence of {self.length(seq)}")
        self.cut(seq, start)
        state = self._sliced().join(own)
        if start == 0:
            return self.restore(seq, state)
        if not self._restore(self._scratch_seq(), state):
            return False
        self._fast.llama_memory_seq_cp(self._memory, self._scratch_seq(), seq, -1, -1)
        self._fast.llama_memory_seq_rm(self._memory, self._scratch_seq(), -1, -1)
        return True

    def block(self, raw: bytes) -> KvBlock:
        """See `protocol.Backend.block`."""
        block = KvBlock.from_bytes(raw)
        if block.kind != self._sliced().kind:
            raise NativeError("the block comes from another kind of KV cache")
        return block

    def save(self, seq: int) -> bytes:
        """See `protocol.Backend.save`."""
        if seq in self._moved:
            raise NativeError(f"sequence {seq} was shifted: it can be saved after the next decode only")
        return self._save(seq)

    def _save(self, seq: int) -> bytes:
        self._check_seq(seq)
        if seq in {target for _, target in self._copying}:
            raise NativeError(f"sequence {seq} waits for a copy that the next decode makes")
        size = int(self._slow.llama_state_seq_get_size(self._open(), seq))
        buffer = (ctypes.c_uint8 * size)()
        written = int(self._slow.llama_state_seq_get_data(self._open(), buffer, size, seq))
        if written != size:
            raise NativeError(f"libllama saved {written} of {size} bytes of sequence {seq}")
        return bytes(buffer)

    def restore(self, seq: int, state: bytes) -> bool:
        """See `protocol.Backend.restore`."""
        self._check_seq(seq)
        return self._restore(seq, state)

    def portable(self, state: bytes) -> bytes:
        """See `protocol.Backend.portable`."""
        return state if self._format is None else portable(self._format, state)

    def adopt(self, state: bytes) -> bytes:
        """See `protocol.Backend.adopt`."""
        return state if self._format is None else adopt(self._format, state)

    def _restore(self, seq: int, state: bytes) -> bool:
        if any(seq in pair for pair in self._copying):
            raise NativeError(f"sequence {seq} takes part in a copy that the next decode makes")
        self._moved.pop(seq, None)
        # C only reads it, so it needs no copy.
        buffer = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
        if self._slow.llama_state_seq_set_data(self._open(), buffer, len(state), seq):
            return True
        self._fast.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return False

    def _sliced(self) -> StateFormat:
        if self._format is None:
            raise NativeError("states of this model cannot be cut into blocks")
        return self._format

    def _scratch_seq(self) -> int:
        if self._scratch is None:
            raise NativeError("this context has no sequence to spare")
        return self._scratch

    def clear(self) -> None:
        """Drop all sequences."""
        self._open()
        self._moved.clear()
        self._fast.llama_memory_clear(self._memory, 1)

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self._context:
            self._batch.close()
            self._slow.llama_free(self._context)
            self._context = None

    @property
    def pointer(self) -> int:
        """The llama_context, for other modules of native/."""
        return self._open()

    def _open(self) -> int:
        if self._context is None:
            raise NativeError("the context was closed")
        return self._context

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise NativeError(f"sequence {seq} is outside 0 to {self.n_seq_max - 1}")
        self._open()


def _prompt_rows(n_vocab: int) -> int:
    """Rows of prompt tokens that one decode can give: libllama reserves their memory whether they are used or not."""
    return max(_MIN_ROWS, min(_MAX_ROWS, _ROW_BYTES // (4 * n_vocab)))


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
