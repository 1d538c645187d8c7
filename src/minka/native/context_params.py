"""`ContextParams` as libllama's llama_context_params: the one place where their names and numbers meet.

Sizes and sequences are left to the context that is made, since they depend on what it is for. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minka.native.library import Library
from minka.native.machine import physical_cores
from minka.params import ContextParams

if TYPE_CHECKING:
    from llama_cpp.llama_cpp import llama_context_params

# ggml_type numbers; llama_cpp lacks some of the constants.
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
"""llama_flash_attn_type."""
_ROPE_SCALING = {"": -1, "none": 0, "linear": 1, "yarn": 2}


def thread_counts(params: ContextParams) -> tuple[int, int]:
    """How many threads generate, and how many compute prompts."""
    n_threads = params.threads if params.threads > 0 else physical_cores()
    return n_threads, params.threads_batch if params.threads_batch > 0 else n_threads


def context_params(lib: Library, params: ContextParams) -> llama_context_params:
    """llama_context_params with all that `params` says but n_seq_max and kv_unified, which keep their defaults."""
    native = lib.slow.llama_context_default_params()
    native.n_ctx, native.n_batch, native.n_ubatch = params.n_ctx, params.n_batch, params.n_ubatch
    native.n_threads, native.n_threads_batch = thread_counts(params)
    native.flash_attn_type = FLASH_ATTN[params.flash_attn]
    native.type_k, native.type_v = KV_TYPES[params.cache_type_k], KV_TYPES[params.cache_type_v]
    native.offload_kqv, native.swa_full, native.no_perf = params.kv_offload, params.swa_full, not params.perf
    native.rope_scaling_type = _ROPE_SCALING[params.rope_scaling or ""]
    native.rope_freq_base, native.rope_freq_scale = params.rope_freq_base, params.rope_freq_scale
    native.yarn_orig_ctx, native.yarn_ext_factor = params.yarn_orig_ctx, params.yarn_ext_factor
    native.yarn_attn_factor = params.yarn_attn_factor
    native.yarn_beta_slow, native.yarn_beta_fast = params.yarn_beta_slow, params.yarn_beta_fast
    return native  # type: ignore[no-any-return]
