"""Which attention kernel a context gets when nobody names one (`--flash-attn auto`).

On a CPU libllama's flash attention works through a short batch query by query, without the matrix kernels: what keeps
a stream going costs two to four times as much (docs/decisions/0006). The plain kernel wants memory for its scores.
"""

from __future__ import annotations

from minka.native.machine import total_memory
from minka.params import ContextParams

SHORT_UBATCH = 128
"""Tokens that the plain kernel computes at once: no slower than more, and its scores take a fourth of the memory."""

_MIN_SCORES = 256 << 20
_QUANTIZED = frozenset({"q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"})


def prefers_plain(params: ContextParams, *, on_cpu: bool, n_head: int, n_kv: int) -> bool:
    """Whether attention is to be computed without the flash kernel.

    `n_kv` is the most cells that a token can attend over. Quantized values need the flash kernel. The scores, a float32
    for each head, token of a micro-batch and cell, may take a sixteenth of the machine's memory, or 256 MiB.
    """
    if params.flash_attn != "auto" or not on_cpu or params.cache_type_v in _QUANTIZED:
        return False
    scores = 4 * n_head * min(params.n_ubatch, SHORT_UBATCH) * n_kv
    return scores <= max(_MIN_SCORES, (total_memory() or 0) // 16)
