"""What llama-imatrix of llama.cpp 0.5.0-dev writes for the tests' models and files.

Made in a folder with the files of `write_sources`. Sums of a tensor's `in_sum2` are of float32 values that depend on
the processor in their last digits; the hashes are not of computed values.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from minka.tools.imatrix_file import Entry, Imatrix, write_dat, write_gguf
from tests import tiny
from tests.tiny_vocab import WORDS
from tests.tools.tiny_moe import write_moe


def words(n: int) -> str:
    """Nonsense of `n` common words, always the same."""
    choice = random.Random(7).choice
    return " ".join(choice(WORDS) for _ in range(n))


def write_sources(folder: Path) -> None:
    """Write two models, a text, and importance matrices of both forms."""
    tiny.write_llama(folder / "llama.gguf")
    write_moe(folder / "moe.gguf")
    (folder / "text.txt").write_text(words(400) + "\n")
    write_gguf(folder / "a.gguf", matrix(1))
    write_dat(folder / "b.dat", matrix(2))


def matrix(seed: int) -> Imatrix:
    """An importance matrix of a weight, and of one with four experts, of which one saw nothing."""
    rng = np.random.default_rng(seed)
    routed = np.array([90, 0, 700, 41])
    entries = {
        "blk.0.attn_q.weight": Entry(rng.random(8, np.float32) * np.float32(640), np.array([640])),
        "blk.0.ffn_up_exps.weight": Entry(
            rng.random(32, np.float32) * np.repeat(routed.astype(np.float32), 8),
            routed,
        ),
        "output.weight": Entry(np.zeros(4, np.float32), np.array([0])),
    }
    return Imatrix(entries, (f"text{seed}.txt",), 5, 128)


# llama-imatrix -m NAME.gguf -f text.txt -c 64 -b 128 -t 1 --process-output; of each weight, sum of j * in_sum2[j] over
# its values and the rows of each matrix; then the final estimate of the perplexity with its error.
LLAMA = {
    "blk.0.attn_q.weight": (1700931.85, [896]),
    "blk.0.attn_output.weight": (724920.85, [896]),
    "blk.0.ffn_down.weight": (6337999.95, [896]),
    "blk.1.attn_v.weight": (1774041.35, [896]),
    "blk.1.attn_output.weight": (638561.11, [896]),
    "blk.1.ffn_up.weight": (1768549.41, [896]),
    "blk.1.ffn_down.weight": (6822490.56, [896]),
    "output.weight": (1794055.94, [896]),
}
MOE = {
    "blk.0.ffn_gate_inp.weight": (1720465.91, [896]),
    "blk.0.ffn_gate_exps.weight": (13885654.95, [471, 453, 507, 361]),
    "blk.0.ffn_down_exps.weight": (19459825.78, [471, 453, 507, 361]),
    "blk.1.attn_output.weight": (841441.97, [896]),
    "blk.1.ffn_up_exps.weight": (14747674.62, [254, 653, 563, 322]),
    "blk.1.ffn_down_exps.weight": (19950542.94, [254, 653, 563, 322]),
    "output.weight": (1751812.06, [896]),
}
COLLECTED = {"llama": (LLAMA, 21537.5278, 3148.69423), "moe": (MOE, 15628.8000, 2531.60615)}

MERGED = {
    "--in-file a.gguf,b.dat -c 128 --output-format gguf": "95ff9d0677f5186ae3ee38f691cbf63c",
    "--in-file a.gguf,b.dat -c 128 --output-format dat": "6ada113a1f9d62393ea3a0d900a69fe4",
    "--in-file b.dat --in-file a.gguf -c 64 --output-format gguf": "4624099c12c3d8317e7f42c19d47e9d7",
    "--in-file b.dat --in-file a.gguf -c 64 --output-format dat": "08297885ed023066c08e07d1cb81696f",
}
"""First half of the SHA-256 of what llama-imatrix merges, by its arguments."""
