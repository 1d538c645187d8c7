"""How a text is generated, as a Python caller says it: request fields of the server's API, with types.

Knows no ranges: the parameter table has them, and the same code checks them as for a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What is asked of the model for one prompt. None is the default that the model was loaded with.

    Names, ranges and meanings are those of the request fields in docs/parameters.md. `n`: completions of the prompt.
    `max_tokens`: the most tokens of each, -1 for as many as the context holds. `stop`: strings that end the text and
    are not part of it. `logprobs`: report the log probability of each token, and so many of the likeliest others.
    `json_schema`: the text is JSON of this schema; `grammar`: it matches this GBNF grammar; `close_at_limit`: JSON that
    is about to be cut is closed. `extra`: further request fields by name.
    """

    n: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: Sequence[str] | None = None
    min_keep: int | None = None
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    json_schema: Mapping[str, object] | None = None
    grammar: str | None = None
    close_at_limit: bool | None = None
    priority: int | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    timeout_ms: int | None = None
    extra: Mapping[str, object] | None = None

    def request_fields(self) -> dict[str, object]:
        """The fields of a request that asks for the same, but for `logprobs`, which APIs spell differently."""
        given = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = [[token, bias] for token, bias in self.logit_bias.items()]
        for name in ("dry_sequence_breakers", "samplers", "stop"):
            if name in given and not isinstance(given[name], str):
                given[name] = list(getattr(self, name))
        return {**given, **(self.extra or {})}


_NAMES = tuple(field.name for field in fields(SamplingParams) if field.name not in ("logprobs", "extra"))
