"""A context for tools that measure: any layout of sequences, logits of every token, and a way to stop a long decode.

The engine has `context.Context`; here nothing is shared, scheduled or sampled. What libllama would answer with an abort
of the process is a NativeError. One thread owns a context, except that any may call `abort`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minka.errors import ModelError, NativeError, RequestError
from minka.native.context_params import KV_TYPES, context_params
from minka.native.control_vector import steer
from minka.native.devices import registry
from minka.native.library import Library, library
from minka.native.machine import available_memory
from minka.native.model import Model
from minka.native.threadpool import Pinning, Threadpools
from minka.native.vocab import Vocab
from minka.params import ContextParams

_NO_ROOM, _ABORTED = 1, 2


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter's file, and the factor by which its change of the weights counts."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens to decode, in order: `token`, `pos` and `output` (1: wants a logits row) have one value for each.

    Token i belongs to the sequences seq_ids[seq_start[i] : seq_start[i] + n_seq[i]].
    """

    token: NDArray[np.int32]
    pos: NDArray[np.int32]
    output: NDArray[np.int8]
    n_seq: NDArray[np.int32]
    seq_start: NDArray[np.int64]
    seq_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.token)

    @property
    def n_outputs(self) -> int:
        """Logits rows that a decode of these makes."""
        return int(np.count_nonzero(self.output))

    def part(self, start: int, end: int) -> Tokens:
        """Tokens start..end-1."""
        cut = slice(start, end)
        return Tokens(
            self.token[cut], self.pos[cut], self.output[cut], self.n_seq[cut], self.seq_start[cut], self.seq_ids
        )


class TokenList:
    """Builds `Tokens` from runs of consecutive positions."""

    def __init__(self) -> None:
        self._token: list[NDArray[np.int32]] = []
        self._pos: list[NDArray[np.int32]] = []
        self._output: list[NDArray[np.int8]] = []
        self._seqs: list[tuple[int, ...]] = []
        self.n_tokens = self.n_outputs = 0

    def add(self, tokens: ArrayLike, pos: int, seqs: Sequence[int], outputs: slice | None = None) -> None:
        """Append tokens at positions from `pos` on to each of the sequences; those in `outputs` get a logits row."""
        token = np.asarray(tokens, np.int32)
        output = np.zeros(len(token), np.int8)
        if outputs is not None:
            output[outputs] = 1
        self._token.append(token)
        self._pos.append(np.arange(pos, pos + len(token), dtype=np.int32))
        self._output.append(output)
        self._seqs.append(tuple(seqs))
        self.n_tokens += len(token)
        self.n_outputs += int(np.count_nonzero(output))

    def tokens(self) -> Tokens:
        """All runs, in the order in which they were added."""
        lengths = [len(run) for run in self._token]
        widths = np.array([len(seqs) for seqs in self._seqs], np.int32)
        starts = np.cumsum(widths, dtype=np.int64) - widths
        return Tokens(
            np.concatenate(self._token),
            np.concatenate(self._pos),
            np.concatenate(self._output),
            np.repeat(widths, lengths),
            np.repeat(starts, lengths),
            np.array([seq for seqs in self._seqs for seq in seqs], np.int32),
        )


class RawBatch:
    """A llama_batch over its own copy of some tokens. `token` and `pos` may be changed between two decodes."""

    def __init__(self, lib: Library, tokens: Tokens) -> None:
        self.n_tokens, self.n_outputs = len(tokens), tokens.n_outputs
        self.token, self.pos = tokens.token.copy(), tokens.pos.copy()
        self._kept = output, n_seq, seq_ids = tokens.output.copy(), tokens.n_seq.copy(), tokens.seq_ids.copy()
        # seq_id is an array of pointers; they all point into one array.
        self._seq_id = np.uintp(seq_ids.ctypes.data) + tokens.seq_start.astype(np.uintp) * np.uintp(4)
        slow, int32 = lib.slow, ctypes.POINTER(ctypes.c_int32)
        self.native = slow.llama_batch(
            self.n_tokens,
            self.token.ctypes.data_as(int32),
            None,
            self.pos.ctypes.data_as(int32),
            n_seq.ctypes.data_as(int32),
            self._seq_id.ctypes.data_as(ctypes.POINTER(int32)),
            output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


class RawContext:
    """A llama_context of `n_seq_max` sequences; the model outlives it.

    `params.parallel` and `params.warmup` are not looked at. With `pinning` it computes on threads of its own, and with
    `batch_pinning` on others for prompts. Raises ModelError if it cannot be made.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        *,
        n_seq_max: int = 1,
        embeddings: bool = False,
        op_offload: bool = True,
        pinning: Pinning | None = None,
        batch_pinning: Pinning | None = None,
    ) -> None:
        self._lib = library()
        self._slow = self._lib.slow
        self.model, self.kv_unified = model, bool(params.kv_unified)
        limit = int(self._slow.llama_max_parallel_sequences())
        if not 1 <= n_seq_max <= limit:
            raise ModelError(f"{n_seq_max} parallel sequences are not between 1 and the {limit} that libllama can hold")
        native = context_params(self._lib, params)
        native.n_seq_max, native.kv_unified = n_seq_max, self.kv_unified
        native.embeddings, native.op_offload = embeddings, op_offload
        self._stop = ctypes.create_string_buffer(2)
        # libllama asks a C function whether to stop, before each operation. strlen is one that reads a flag: its result
        # is 1 for "\1" and 0 for "". A Python function would need the GIL hundreds of times in a decode.
        self._asked = ctypes.cast(ctypes.CDLL(None).strlen, self._slow.ggml_abort_callback)
        native.abort_callback, native.abort_callback_data = self._asked, ctypes.c_void_p(ctypes.addressof(self._stop))
        self._check_memory(params, native)
        with self._lib.errors() as errors:
            self._context: int | None = self._slow.llama_init_from_model(model.pointer, native)
            if not self._context:
                raise ModelError(
                    f"cannot create a context of {native.n_ctx} tokens: {errors[0] if errors else 'no reason'}"
                )
        self._memory = self._slow.llama_get_memory(self._context)
        self.n_ctx = int(self._slow.llama_n_ctx(self._context))
        self.n_ctx_seq = int(self._slow.llama_n_ctx_seq(self._context))
        self.n_batch = int(self._slow.llama_n_batch(self._context))
        self.n_ubatch = int(self._slow.llama_n_ubatch(self._context))
        self.n_seq_max = int(self._slow.llama_n_seq_max(self._context))
        self.n_threads, self.n_threads_batch = int(native.n_threads), int(native.n_threads_batch)
        self._threadpools: Threadpools | None = None
        try:
            steer(self._lib, self._context, model, params)
            self._threadpools = Threadpools(pinning, batch_pinning, self.n_threads, self.n_threads_batch)
            self._threadpools.attach(self._open())
        except BaseException:
            self.close()
            raise

    def _check_memory(self, params: ContextParams, native: ctypes.Structure) -> None:
        """Refuse what cannot fit: the kernel would let us allocate it and kill the process once it is filled."""
        model = self.model
        if self._lib.supports_gpu or model.has_state:
            return
        n_ctx = params.n_ctx or model.n_ctx_train
        width = model.n_embd // max(model.n_head, 1) * model.n_head_kv
        row_size = registry().ggml_row_size
        rows = row_size(KV_TYPES[params.cache_type_k], width) + row_size(KV_TYPES[params.cache_type_v], width)
        need = n_ctx * model.n_layer * rows + min(params.n_batch, n_ctx) * self.vocab.n_tokens * 4
        if (free := available_memory()) is not None and need > free:
            raise ModelError(
                f"a context of {n_ctx} tokens needs {need / 2**30:.1f} GiB for its KV cache and logits, but only "
                f"{free / 2**30:.1f} GiB of memory are free; give smaller sizes (-c, -b)"
            )

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.model.vocab

    def prepare(self, tokens: Tokens) -> RawBatch:
        """A batch that can be decoded, again and again. Raises NativeError for anything that libllama cannot bear."""
        self._open()
        if not 1 <= len(tokens) <= self.n_batch:
            raise NativeError(f"a batch has 1 to {self.n_batch} tokens, not {len(tokens)}")
        for name, values, limit in (
            ("token", tokens.token, self.vocab.n_tokens),
            ("position", tokens.pos, self.n_ctx_seq),
            ("sequence", tokens.seq_ids, self.n_seq_max),
        ):
            if int(values.min()) < 0 or int(values.max()) >= limit:
                raise NativeError(f"a {name} of the batch is outside 0 to {limit - 1}")
        return RawBatch(self._lib, tokens)

    def decode(self, batch: RawBatch) -> None:
        """Compute a batch. Raises NativeError if there is no room for it, and if it was aborted."""
        with self._lib.errors() as errors:
            code = int(self._slow.llama_decode(self._open(), batch.native))
        if code:
            raise self._failure(code, batch, errors)

    def generate(self, batch: RawBatch, tokens: NDArray[np.int32]) -> None:
        """Decode a batch once for each row of tokens (n_steps, batch.n_tokens), a position further each time.

        Every step is computed before the next one begins. Raises what `decode` raises.
        """
        decode, synchronize, context = self._slow.llama_decode, self._slow.llama_synchronize, self._open()
        with self._lib.errors() as errors:
            for row in tokens:
                batch.token[:] = row
                if code := decode(context, batch.native):
                    raise self._failure(code, batch, errors)
                synchronize(context)
                batch.pos += 1

    def _failure(self, code: int, batch: RawBatch, errors: Sequence[str]) -> NativeError:
        if code == _NO_ROOM:
            return NativeError(f"the KV cache of {self.n_ctx} tokens has no room for a batch of {batch.n_tokens}")
        if code == _ABORTED:
            return NativeError("the computation was stopped")
        reason = f": {errors[0]}" if errors else ""
        return NativeError(f"libllama could not compute a batch of {batch.n_tokens} tokens (code {code}){reason}")

    def logits(self, n_outputs: int) -> NDArray[np.float32]:
        """The rows of the last batch, shape (n_outputs, n_vocab), without a copy: valid until the next decode."""
        pointer = self._slow.llama_get_logits(self._open())
        if not n_outputs:
            return np.empty((0, self.vocab.n_tokens), np.float32)
        if not pointer:
            raise NativeError("the model makes no logits: it is no language model")
        return np.ctypeslib.as_array(pointer, (n_outputs, self.vocab.n_tokens))

    def synchronize(self) -> None:
        """Wait until all that was decoded is computed."""
        self._slow.llama_synchronize(self._open())

    def clear(self, *, data: bool) -> None:
        """Drop all sequences; `data` overwrites their cells too."""
        self._slow.llama_memory_clear(self._memory, data)

    def length(self, seq: int) -> int:
        """Positions that a sequence holds."""
        return int(self._slow.llama_memory_seq_pos_max(self._memory, self._seq(seq))) + 1

    def copy_sequence(self, src: int, dst: int) -> None:
        """Make `dst` hold what `src` holds; between split sequences the data follow at the next decode."""
        self._slow.llama_memory_seq_cp(self._memory, self._seq(src), self._seq(dst), -1, -1)

    def cut(self, seq: int, n: int) -> None:
        """Drop positions >= n of a sequence. Raises NativeError if the model cannot."""
        if not self._slow.llama_memory_seq_rm(self._memory, self._seq(seq), n, -1):
            raise NativeError(f"sequence {seq} cannot be cut to {n} positions with this model")

    def save(self, seq: int) -> NDArray[np.uint8]:
        """The state of a sequence."""
        size = int(self._slow.llama_state_seq_get_size(self._open(), self._seq(seq)))
        state = np.empty(size, np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return state[: int(self._slow.llama_state_seq_get_data(self._open(), pointer, size, seq))]

    def restore(self, seq: int, state: NDArray[np.uint8]) -> bool:
        """Replace a sequence by a saved one; False if the state does not fit this context."""
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return bool(self._slow.llama_state_seq_set_data(self._open(), pointer, len(state), self._seq(seq)))

    def adapt(self, adapters: Sequence[Adapter]) -> None:
        """Compute with these LoRA adapters and no others. Raises ModelError for a file that is none for this model."""
        loaded = [self._load(adapter) for adapter in adapters]
        pointers = (ctypes.POINTER(ctypes.c_void_p) * len(loaded))(*loaded)
        scales = (ctypes.c_float * len(loaded))(*[adapter.scale for adapter in adapters])
        if self._slow.llama_set_adapters_lora(self._open(), pointers, len(loaded), scales):
            raise NativeError("libllama could not apply the LoRA adapters")

    def _load(self, adapter: Adapter) -> ctypes._Pointer[ctypes.c_void_p]:
        """An adapter, which belongs to the model and is freed with it."""
        if not adapter.path.is_file():
            raise ModelError(f"cannot load the LoRA adapter {adapter.path}: there is no such file")
        with self._lib.errors() as errors:
            loaded = self._slow.llama_adapter_lora_init(self.model.pointer, os.fsencode(adapter.path))
            if not loaded:
                reason = next(iter(errors), "libllama gave no reason")
                raise ModelError(f"cannot load the LoRA adapter {adapter.path}: {reason}")
        return loaded  # type: ignore[no-any-return]

    @property
    def pointer(self) -> int:
        """The llama_context, for other modules of native/."""
        return self._open()

    def abort(self) -> None:
        """Make the running decode raise NativeError soon (on the CPU; other devices finish). From any thread."""
        self._stop[0] = b"\1"

    def resume(self) -> None:
        """Allow decodes again after `abort`."""
        self._stop[0] = b"\0"

    def close(self) -> None:
        """Free the context and its threads. Idempotent."""
        if self._context:
            self._slow.llama_free(self._context)
            self._context = None
        if self._threadpools is not None:
            self._threadpools.close()

    def _open(self) -> int:
        if self._context is None:
            raise NativeError("the context was closed")
        return self._context

    def _seq(self, seq: int) -> int:
        self._open()
        if not 0 <= seq < self.n_seq_max:
            raise NativeError(f"sequence {seq} is outside 0 to {self.n_seq_max - 1}")
        return seq


def is_causal(model: Model) -> bool:
    """Whether the model predicts each token from those before it: no encoder, no embedding model."""
    if not model.has_decoder or library().slow.llama_model_has_encoder(model.pointer):
        return False
    return model.meta(f"{model.meta('general.architecture')}.attention.causal") != "false"


def tokenize(vocab: Vocab, text: bytes, *, add_special: bool = True, parse_special: bool = False) -> NDArray[np.int32]:
    """Tokens of a text of any bytes. Raises RequestError over 2 GiB.

    `add_special`: with the tokens that the model wants around it; `parse_special`: names of control tokens are those.
    """
    size = len(text) + 2
    if size > 2**31 - 1:
        raise RequestError("the text is longer than 2 GiB")
    vocab.require_tokenizer()
    slow = library().slow
    while True:
        tokens = np.empty(size, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        n = int(slow.llama_tokenize(vocab.pointer, text, len(text), pointer, size, add_special, parse_special))
        if n >= 0:
            return tokens[:n].copy()
        size = -n  # more tokens than bytes: rare, and C says how many
