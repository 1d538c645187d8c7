"""What the server says of itself: /v1/models, /props, /slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from minka.errors import NotFoundError
from minka.params import ServerParams
from minka.protocols.served import Served
from minka.protocols.settings import settings_object
from minka.types import Job, Pooling, SlotView

_CAPABILITIES = (
    "supports_string_content",
    "supports_typed_content",
    "supports_tools",
    "supports_tool_calls",
    "supports_parallel_tool_calls",
    "supports_system_role",
    "supports_preserve_reasoning",
    "supports_reasoning_effort",
    "supports_object_arguments",
)


def model_object(served: Served) -> dict[str, object]:
    """The model as an entry of OpenAI's list, with llama-server's additions."""
    model = served.model
    return {
        "id": model.name,
        "aliases": list(model.aliases),
        "tags": list(model.tags),
        "object": "model",
        "created": served.created,
        "owned_by": "minka",
        "meta": {
            "vocab_type": model.vocab_type,
            "n_vocab": served.tokenizer.n_tokens,
            "n_ctx": served.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size,
            "ftype": model.ftype,
        },
    }


def capabilities(served: Served) -> list[str]:
    """What the model is for, in Ollama's words; llama-server knows "completion" only."""
    embeddings = served.embeddings
    if embeddings is None or not embeddings.only:
        return ["completion"]
    return ["rerank" if embeddings.pooling is Pooling.RANK else "embedding"]


def models_object(served: Served) -> dict[str, object]:
    """The list of the one model, in OpenAI's shape and beside it in Ollama's."""
    name = served.model.name
    listed = {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": capabilities(served),
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
    return {"models": [listed], "object": "list", "data": [model_object(served)]}


def one_model_object(served: Served, name: str) -> dict[str, object]:
    """The model by its name or an alias."""
    if name not in (served.model.name, *served.model.aliases):
        raise NotFoundError(f"the model '{name}' is not served here; this server has '{served.model.name}'")
    return model_object(served)


def props_object(served: Served, server: ServerParams) -> dict[str, object]:
    """llama-server's `/props`."""
    generation = served.generation
    defaults = Job(id="", prompt=(), sampling=served.sampling, n_keep=generation.n_keep, n_discard=generation.n_discard)
    body: dict[str, object] = {
        "default_generation_settings": {
            "params": settings_object(defaults, stream=False, full=False)
            | {"chat_format": served.format.name, "reasoning_format": served.chat.reasoning_format},
            "n_ctx": served.n_ctx,
        },
        "total_slots": served.n_slots,
        "model_alias": served.model.name,
        "model_ftype": served.model.ftype,
        "model_path": served.model.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "<__media__>",
        "endpoint_slots": server.slots,
        "endpoint_props": server.props,
        "endpoint_metrics": server.metrics,
        "ui": server.ui,
        "ui_settings": {},
        "chat_template": served.template.source,
        "chat_template_caps": {name: bool(asdict(served.template.caps).get(name)) for name in _CAPABILITIES},
        "bos_token": served.tokenizer.text(served.tokenizer.bos),
        "eos_token": served.tokenizer.text(served.tokenizer.eos),
        "build_info": served.build,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }
    if served.template.tool_use_source:
        body["chat_template_tool_use"] = served.template.tool_use_source
    return body


def slots_object(slots: Sequence[SlotView], served: Served) -> list[dict[str, object]]:
    """llama-server's `/slots`, without any user text."""
    return [_slot_object(slot, served) for slot in slots]


def _slot_object(slot: SlotView, served: Served) -> dict[str, object]:
    body: dict[str, object] = {
        "id": slot.id,
        "n_ctx": served.n_ctx,
        "speculative": False,
        "is_processing": slot.busy,
    }
    if slot.job is None:
        return body
    limit = slot.job.n_predict
    return body | {
        "id_task": slot.order,
        "n_prompt_tokens": len(slot.job.prompt),
        "n_prompt_tokens_processed": slot.n_processed,
        "n_prompt_tokens_cache": slot.n_cached,
        "params": settings_object(slot.job, stream=False, full=False),
        "next_token": [
            {
                "has_next_token": slot.busy,
                "has_new_line": slot.has_new_line,
                "n_remain": limit - slot.n_generated if slot.busy and limit >= 0 else -1,
                "n_decoded": slot.n_generated,
            }
        ],
    }
