"""What a protocol knows of the model that is served: names, sizes, defaults, tokenizer, template. All read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minka.chat.template import Template
from minka.params import GenerationParams, SamplingParams
from minka.types import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of the model file, as `/v1/models` and `/props` show them."""

    path: str
    name: str
    aliases: tuple[str, ...]
    tags: tuple[str, ...]
    description: str
    ftype: str
    vocab_type: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    """Bytes of the weights."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model with the server's defaults for it.

    `n_ctx` is the context of a slot in tokens, `max_jobs` how many completions the engine takes at once, `created` the
    Unix time of loading, `build` the `system_fingerprint`.
    """

    model: ModelFacts
    tokenizer: Tokenizer
    template: Template
    n_ctx: int
    n_slots: int
    max_jobs: int
    created: int
    build: str
    sampling: SamplingParams
    generation: GenerationParams
    prefill_assistant: bool
    template_kwargs: Mapping[str, object]
