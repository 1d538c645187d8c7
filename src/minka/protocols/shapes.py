"""Outlines of what is sent: the objects that several answers share, by the names that the API's description gives them.

They say what a client can rely on; objects may have further members.
"""

from __future__ import annotations

from types import MappingProxyType

from minka.protocols.schema import (
    ANY,
    COUNT,
    FLAG,
    NULL,
    NUMBER,
    TEXT,
    TOKEN,
    Schema,
    either,
    listed,
    record,
    ref,
    word,
)

FINISH: Schema = either(word("stop", "length"), NULL)

ERROR = record(
    error={
        **record(message=TEXT, type=TEXT, param=either(TEXT, NULL), code=COUNT, n_prompt_tokens=COUNT, n_ctx=COUNT),
        "required": ["message", "type", "param", "code"],
        "description": "n_prompt_tokens and n_ctx come with exceed_context_size_error only",
    }
)

USAGE = record(
    completion_tokens=COUNT,
    prompt_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT),
)

TIMINGS = {
    **record(
        cache_n=COUNT,
        prompt_n=COUNT,
        prompt_ms=NUMBER,
        prompt_per_token_ms=NUMBER,
        prompt_per_second=NUMBER,
        predicted_n=COUNT,
        predicted_ms=NUMBER,
        predicted_per_token_ms=NUMBER,
        predicted_per_second=NUMBER,
    ),
    "description": "cache_n + prompt_n is the prompt's length; rates of the answer leave its first token out",
}

PROGRESS = {
    **record(total=COUNT, cache=COUNT, processed=COUNT, time_ms=NUMBER),
    "description": "tokens of the prompt: all, taken from the cache, done so far",
}

_PROB = record(id=TOKEN, token=TEXT, bytes=listed(COUNT), logprob=NUMBER)
LOGPROB = record(token=TEXT, bytes=listed(COUNT), logprob=NUMBER, top_logprobs=listed(_PROB))

MODEL = record(
    id=TEXT,
    object=word("model"),
    created=COUNT,
    owned_by=TEXT,
    aliases=listed(TEXT),
    tags=listed(TEXT),
    meta=record(
        vocab_type=COUNT,
        n_vocab=COUNT,
        n_ctx=COUNT,
        n_ctx_train=COUNT,
        n_embd=COUNT,
        n_params=COUNT,
        size=COUNT,
        ftype=TEXT,
    ),
)

SLOT = {
    **record(
        id=COUNT,
        n_ctx=COUNT,
        is_processing=FLAG,
        id_task=COUNT,
        n_prompt_tokens=COUNT,
        n_prompt_tokens_processed=COUNT,
        n_prompt_tokens_cache=COUNT,
        params=ANY,
        next_token=listed(record(has_next_token=FLAG, has_new_line=FLAG, n_remain=COUNT, n_decoded=COUNT)),
    ),
    "description": "a slot that has never worked has only its id, its context and is_processing",
}

PROPS = record(
    default_generation_settings=record(params=ANY, n_ctx=COUNT),
    total_slots=COUNT,
    model_alias=TEXT,
    model_path=TEXT,
    modalities=record(vision=FLAG, video=FLAG, audio=FLAG),
    chat_template=TEXT,
    chat_template_caps={"type": "object", "additionalProperties": FLAG},
    bos_token=TEXT,
    eos_token=TEXT,
    build_info=TEXT,
)

SHARED = MappingProxyType(
    {
        "Error": ERROR,
        "Usage": USAGE,
        "Timings": TIMINGS,
        "Progress": PROGRESS,
        "Logprob": LOGPROB,
        "Model": MODEL,
        "Slot": SLOT,
        "Props": PROPS,
    }
)
"""Schemas that others refer to by name."""

CHOICES_TAIL = MappingProxyType(
    {
        "created": COUNT,
        "model": TEXT,
        "system_fingerprint": TEXT,
        "id": TEXT,
        "usage": ref("Usage"),
        "timings": ref("Timings"),
    }
)
"""What stands beside `choices` in OpenAI's answers."""
