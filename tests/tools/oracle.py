"""Logits and log-probabilities computed the plain way: one token at a time through llama_cpp, softmax in float64."""

from __future__ import annotations

from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from minka.native.library import library

F64 = NDArray[np.float64]


class Oracle:
    """A model, asked directly. Use it as a context manager."""

    def __init__(self, path: Path, n_ctx: int = 256) -> None:
        library()  # its log goes to `logging`
        self._model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, 1, 1
        self._context = llama.llama_init_from_model(self._model, params)
        self.vocab = llama.llama_model_get_vocab(self._model)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocab)
        self.bos = llama.llama_vocab_bos(self.vocab)

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    def tokens(self, text: bytes) -> list[int]:
        add_special = True
        buffer = (llama.llama_token * (len(text) + 2))()
        n = llama.llama_tokenize(self.vocab, text, len(text), buffer, len(buffer), add_special, not add_special)
        return list(buffer[:n])

    def logits(self, tokens: list[int]) -> F64:
        """What follows each token of a new sequence, shape (n, n_vocab)."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), 1)
        rows = []
        for token in tokens:
            batch = llama.llama_batch_get_one((llama.llama_token * 1)(token), 1)
            assert llama.llama_decode(self._context, batch) == 0
            row = np.ctypeslib.as_array(llama.llama_get_logits_ith(self._context, -1), (self.n_vocab,))
            rows.append(row.astype(np.float64))
        return np.array(rows)


def log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
