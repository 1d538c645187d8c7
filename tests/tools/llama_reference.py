"""A Llama, with or without experts, computed with numpy alone: what its weights see, and its logits.

An oracle for importance matrices and perplexity. Source of the formulas: the Llama, GQA, RoPE and Mixtral papers. It
shares no code with what it tests but the reader of the PyPI package `gguf`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Llama:
    """A model in float64. `seen[weight]` are the rows that met a weight, by expert."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.w = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors}
        fields = reader.fields
        self.n_layer = int(fields["llama.block_count"].contents())
        self.n_head = int(fields["llama.attention.head_count"].contents())
        self.n_kv = int(fields["llama.attention.head_count_kv"].contents())
        used = fields.get("llama.expert_used_count")
        self.n_used = int(used.contents()) if used else 0
        self.seen: dict[str, dict[int, list[Floats]]] = defaultdict(lambda: defaultdict(list))

    def evaluate(self, tokens: NDArray[np.int32]) -> Floats:
        """Logits of every position of one sequence, shape (n, n_vocab)."""
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.n_layer):
            x = x + self._attention(f"blk.{layer}", _norm(x, self.w[f"blk.{layer}.attn_norm.weight"]))
            ffn = self._experts if self.n_used else self._ffn
            x = x + ffn(f"blk.{layer}", _norm(x, self.w[f"blk.{layer}.ffn_norm.weight"]))
        return self._product("output", _norm(x, self.w["output_norm.weight"]))

    def sums(self, weight: str) -> tuple[Floats, list[int]]:
        """Sums of the squares that a weight has seen, and the rows, for each of its matrices."""
        rows = [np.concatenate(self.seen[weight][i]) for i in sorted(self.seen[weight])]
        return np.concatenate([(one**2).sum(axis=0) for one in rows]), [len(one) for one in rows]

    def _product(self, name: str, x: Floats, expert: int | None = None) -> Floats:
        weight = self.w[f"{name}.weight"]
        self.seen[f"{name}.weight"][expert or 0].append(x)
        return x @ (weight if expert is None else weight[expert]).T

    def _attention(self, blk: str, x: Floats) -> Floats:
        q, k, v = (self._product(f"{blk}.attn_{part}", x) for part in "qkv")
        q, k, v = (
            part.reshape(len(x), heads, -1) for part, heads in ((q, self.n_head), (k, self.n_kv), (v, self.n_kv))
        )
        q, k = _rotate(q), _rotate(k)
        group = self.n_head // self.n_kv
        scores = np.einsum("thd,shd->hts", q, np.repeat(k, group, axis=1)) / np.sqrt(q.shape[-1])
        scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
        mixed = np.einsum("hts,shd->thd", _softmax(scores), np.repeat(v, group, axis=1))
        return self._product(f"{blk}.attn_output", mixed.reshape(len(x), -1))

    def _ffn(self, blk: str, x: Floats, suffix: str = "", expert: int | None = None) -> Floats:
        gate = self._product(f"{blk}.ffn_gate{suffix}", x, expert)
        up = self._product(f"{blk}.ffn_up{suffix}", x, expert)
        return self._product(f"{blk}.ffn_down{suffix}", gate / (1 + np.exp(-gate)) * up, expert)

    def _experts(self, blk: str, x: Floats) -> Floats:
        shares = _softmax(self._product(f"{blk}.ffn_gate_inp", x))
        chosen = np.argsort(-shares, axis=1)[:, : self.n_used]
        picked = np.take_along_axis(shares, chosen, axis=1)
        picked = picked / picked.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(shares.shape[1]):
            rows, places = np.nonzero(chosen == expert)
            out[rows] += picked[rows, places, None] * self._ffn(blk, x[rows], "_exps", expert)
        return out


def _norm(x: Floats, weight: Floats) -> Floats:
    scale: Floats = np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    normed: Floats = x / scale * weight
    return normed


def _softmax(x: Floats) -> Floats:
    e: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Floats = e / e.sum(axis=-1, keepdims=True)
    return shares


def _rotate(x: Floats) -> Floats:
    """RoPE over neighbouring pairs, base 10,000."""
    n, _, width = x.shape
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
