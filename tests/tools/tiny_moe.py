"""A tiny Llama with experts: each layer routes a token to `n_used` of `n_expert` feed-forward networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.tiny import _attention, _attention_keys, _decoder_keys
from tests.tiny_file import TinyFile
from tests.tiny_vocab import spm_vocab


def write_moe(path: Path, *, seed: int = 0, n_embd: int = 64, n_expert: int = 4, n_used: int = 2) -> Path:
    """Write the model; the same arguments give the same bytes."""
    n_head, n_ff, n_layer = 4, 128, 2
    words = spm_vocab()
    file = TinyFile(path, "llama", seed=seed)
    _decoder_keys(file, words, n_embd=n_embd, n_layer=n_layer, n_ff=n_ff, n_ctx_train=2048)
    _attention_keys(file, n_head, n_head)
    file.keys.add_rope_dimension_count(n_embd // n_head)
    file.keys.add_expert_count(n_expert)
    file.keys.add_expert_used_count(n_used)
    file.vocabulary(words, n_embd)
    for layer in range(n_layer):
        blk = f"blk.{layer}"
        _attention(file, layer, n_embd, n_embd)
        file.ones(f"{blk}.ffn_norm.weight", n_embd)
        file.matrix(f"{blk}.ffn_gate_inp.weight", n_embd, n_expert)
        for name, n_in, n_out in (("gate", n_embd, n_ff), ("up", n_embd, n_ff), ("down", n_ff, n_embd)):
            values = file.normal((n_expert, n_out, n_in), n_in**-0.5)
            if name == "down":
                values[:, 0] = 0.0  # channel 0 carries the prior, and no layer writes to it
            file.keys.add_tensor(f"{blk}.ffn_{name}_exps.weight", values.astype(np.float32))
    return file.close()
