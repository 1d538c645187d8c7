"""What every command that runs a model has in common: the parameters that decide how it is loaded and used."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from minka.commands.arguments import resolve
from minka.errors import UsageError
from minka.params import (
    CacheParams,
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    HardwareParams,
    LogParams,
    LoraParams,
    ModelParams,
    SamplingParams,
    ServerParams,
)

if TYPE_CHECKING:
    from minka.runtime import Settings

GROUPS = (
    *(ModelParams, HardwareParams, LoraParams, ContextParams, CacheParams),
    *(SamplingParams, GenerationParams, ChatParams),
)
"""Groups that `settings` reads."""


def settings(args: Namespace, server: ServerParams | None = None) -> Settings:
    """The settings of a command line and the environment."""
    from minka.runtime import Settings, engine_config

    cache, generation = resolve(args, CacheParams, os.environ), _generation(args)
    context = resolve(args, ContextParams, os.environ)
    return Settings(
        model=resolve(args, ModelParams, os.environ),
        context=_one_buffer_a_slot(context, server) if cache.deterministic else context,
        sampling=resolve(args, SamplingParams, os.environ),
        generation=generation,
        chat=resolve(args, ChatParams, os.environ),
        engine=engine_config(cache, generation, server.queue_size if server else 0),
        lora=resolve(args, LoraParams, os.environ),
        embedding=resolve(args, EmbeddingParams, os.environ) if server else None,
        hardware=resolve(args, HardwareParams, os.environ),
    )


def _one_buffer_a_slot(params: ContextParams, server: ServerParams | None) -> ContextParams:
    """What --deterministic needs. Without a server there is one user, who gets the whole context."""
    if params.kv_unified:
        raise UsageError("--deterministic and --kv-unified exclude each other: each slot needs a KV buffer of its own")
    return replace(params, kv_unified=False, parallel=params.parallel if server else 1)


def _generation(args: Namespace) -> GenerationParams:
    """With `-v`, OpenAI answers carry the native one as well, as llama-server's do."""
    params = resolve(args, GenerationParams, os.environ)
    return replace(params, verbose=True) if resolve(args, LogParams, os.environ).verbose else params
