"""BERT in numpy, from a GGUF of F32 tensors: the oracle for embeddings. One text at a time, in double precision.

Post-norm encoder with learned positions (Devlin et al. 2018); the head is dense, tanh, dense over the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Bert:
    """The model of a file with `n_head` attention heads."""

    def __init__(self, path: Path, n_head: int = 4) -> None:
        self._n_head = n_head
        self._tensors = {tensor.name: np.asarray(tensor.data, np.float64) for tensor in GGUFReader(path).tensors}
        self._n_layer = sum(name.endswith("attn_q.weight") for name in self._tensors)

    def rows(self, tokens: Sequence[int]) -> Array:
        """The last layer's vectors, one a token."""
        x = self._tensors["token_embd.weight"][list(tokens)]
        x = x + self._tensors["token_types.weight"][0] + self._tensors["position_embd.weight"][: len(tokens)]
        x = self._norm("token_embd_norm", x)
        for layer in range(self._n_layer):
            blk = f"blk.{layer}"
            x = self._norm(f"{blk}.attn_output_norm", x + self._attention(blk, x))
            inner = _gelu(self._dense(f"{blk}.ffn_up", x))
            x = self._norm(f"{blk}.layer_output_norm", x + self._dense(f"{blk}.ffn_down", inner))
        return x

    def score(self, tokens: Sequence[int]) -> float:
        """The relevance that a reranker gives the text."""
        first = self.rows(tokens)[:1]
        return float(self._dense("cls.output", np.tanh(self._dense("cls", first)))[0, 0])

    def _dense(self, name: str, x: Array) -> Array:
        weight: Array = self._tensors[f"{name}.weight"].T.reshape(x.shape[-1], -1)
        y: Array = x @ weight + self._tensors[f"{name}.bias"]
        return y

    def _norm(self, name: str, x: Array) -> Array:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        unit: Array = (x - mean) / np.sqrt(variance + 1e-12)
        return unit * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]

    def _attention(self, blk: str, x: Array) -> Array:
        q, k, v = (
            self._dense(f"{blk}.attn_{part}", x).reshape(len(x), self._n_head, -1).transpose(1, 0, 2) for part in "qkv"
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return self._dense(f"{blk}.attn_output", mixed.transpose(1, 0, 2).reshape(len(x), -1))


def _gelu(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y
