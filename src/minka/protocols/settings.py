"""`generation_settings`: the parameters of a job as llama-server prints them, key by key in its order."""

from __future__ import annotations

import math

from minka.grammar.lazy import split
from minka.types import Job

RANDOM_SEED = 4294967295
"""llama.cpp's number for "take a random seed"."""

_BEFORE_BREAKERS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
)
_AFTER_BREAKERS = ("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay")
_OURS = ("n_indent", "close_at_limit", "t_max_predict_ms", "n_cache_reuse", "cache_prompt", "priority", "timeout_ms")
"""What llama-server does not tell, behind its keys."""
_USER_TEXT = frozenset({"dry_sequence_breakers", "stop", "logit_bias"})
_CONSTRAINT = frozenset({"grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens"})


def settings_object(job: Job, *, stream: bool, timings_per_token: bool = False, full: bool = True) -> dict[str, object]:
    """All parameters of a job. `full` adds what may hold user text, which `/slots` and `/props` leave out."""
    sampling = job.sampling
    body = {
        "seed": sampling.seed if sampling.seed >= 0 else RANDOM_SEED,
        **{name: getattr(sampling, name) for name in _BEFORE_BREAKERS},
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        **{name: getattr(sampling, name) for name in _AFTER_BREAKERS},
        "stop": list(job.stop),
        "max_tokens": job.n_predict,
        "n_predict": job.n_predict,
        "n_keep": job.n_keep,
        "n_discard": job.n_discard,
        "ignore_eos": sampling.ignore_eos,
        "stream": stream,
        "logit_bias": [{"bias": _bias(bias), "token": token} for token, bias in sampling.logit_bias],
        "n_probs": sampling.n_probs,
        "min_keep": sampling.min_keep,
        **_constraint(job),
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": list(sampling.samplers),
        "speculative.types": "none",
        "timings_per_token": timings_per_token,
        "post_sampling_probs": sampling.post_sampling_probs,
        "backend_sampling": sampling.backend_sampling,
        "lora": [{"id": id, "scale": scale} for id, scale in job.lora],
        **{name: getattr(job, name) for name in _OURS},
    }
    return body if full else {name: value for name, value in body.items() if name not in _USER_TEXT | _CONSTRAINT}


def _constraint(job: Job) -> dict[str, object]:
    """The grammar as it was compiled, in Lark whatever the request was written in."""
    triggers, source = split(job.constraint.grammar) if job.constraint is not None else (None, "")
    return {
        "grammar": source,
        "grammar_lazy": triggers is not None,
        "grammar_triggers": triggers.listed() if triggers is not None else [],
        "preserved_tokens": sorted(job.preserved_tokens),
    }


def _bias(bias: float) -> float | None:
    return bias if math.isfinite(bias) else None
