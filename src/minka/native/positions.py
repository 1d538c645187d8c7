"""Whether the positions of a computed text can be changed without computing it again.

libllama turns every key of the cache by the difference, all sequences' at once, those that stay by nothing. Where the
RoPE also scales (YaRN, the attention factor of LongRoPE) it scales again each time, and so damages what did not move.
And it has no code that turns bf16: it aborts the process.
"""

from __future__ import annotations

from minka.native.model import Model
from minka.params import ContextParams


def can_turn(model: Model, params: ContextParams) -> bool:
    """Whether keys can be turned, and turning one by no position leaves it as it is.

    See llama_context's constructor, llama_kv_cache::build_rope_shift and ggml_compute_forward_rope of llama.cpp.
    """
    if params.cache_type_k == "bf16":
        return False
    kind = params.rope_scaling or _text(model, "type") or "linear"
    extrapolates = _number(model, "yarn_ext_factor", params.yarn_ext_factor, 1.0 if kind == "yarn" else 0.0)
    factor = _number(model, "yarn_attn_factor", params.yarn_attn_factor, 1.0) * _number(model, "attn_factor", -1.0, 1.0)
    return extrapolates == 0.0 and factor == 1.0


def _number(model: Model, name: str, given: float, otherwise: float) -> float:
    """A number that the user gave, else the model's, else the default; negative is not given."""
    if given >= 0:
        return given
    text = _text(model, name)
    return float(text) if text is not None and float(text) >= 0 else otherwise


def _text(model: Model, name: str) -> str | None:
    return model.meta(f"{model.meta('general.architecture')}.rope.scaling.{name}")
