"""Which attention kernel a context gets when nobody names one (`--flash-attn auto`).

On a CPU libllama's flash attention works through a short batch query by query, without the matrix kernels: what keeps
a stream going costs two to four times as much (docs/decisions/0006). The plain kernel wants memory for its scores.
"""

from __future__ import annotations

from minka.native.machine import total_memory
from minka.params import ContextParams

SHORT_UBATCH = 128
"""Tokens that the plain kernel computes at once: no slower than more, and its scores take a fourth of the memory."""

MOST_SHARING = 4
"""Sequences of one pool of cells up to which the plain kernel wins: it computes scores for the others' cells, too."""

_MIN_SCORES = 256 << 20
_QUANTIZED = frozenset({"q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"})


def prefers_plain(params: ContextParams, *, on_cpu: bool, n_head: int, n_kv: int, n_sharing: int = 1) -> bool:
    """Whether attention is to be computed without the flash kernel.

    `n_kv` is the number of cells in a pool, `n_sharing` that of the sequences in it. Quantized values need the flash
    kernel. The scores, a float32 for each head, token of a micro-batch and cell, may take a sixteenth of the machine's
    memory, or 256 MiB.
    """
    if params.flash_attn != "auto" or not on_cpu or params.cache_type_v in _QUANTIZED or n_sharing > MOST_SHARING:
        return False
    scores = 4 * n_head * min(params.n_ubatch, SHORT_UBATCH) * n_kv
    return scores <= max(_MIN_SCORES, (total_memory() or 0) // 16)
