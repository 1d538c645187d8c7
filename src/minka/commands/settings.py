"""What every command that runs a model has in common: the parameters that decide how it is loaded and used."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import resolve
from minka.errors import UsageError
from minka.params import (
    CacheParams,
    ChatParams,
    ContextParams,
    GenerationParams,
    ModelParams,
    SamplingParams,
    ServerParams,
)

if TYPE_CHECKING:
    from minka.engine.engine import EngineConfig
    from minka.runtime import Settings

GROUPS = (ModelParams, ContextParams, CacheParams, SamplingParams, GenerationParams, ChatParams)
"""Groups that `settings` reads."""


def settings(args: Namespace, server: ServerParams | None = None) -> Settings:
    """The settings of a command line and the environment."""
    from minka.runtime import Settings

    cache, generation = resolve(args, CacheParams, os.environ), _generation(args)
    context = resolve(args, ContextParams, os.environ)
    return Settings(
        model=resolve(args, ModelParams, os.environ),
        context=_one_buffer_a_slot(context, server) if cache.deterministic else context,
        sampling=resolve(args, SamplingParams, os.environ),
        generation=generation,
        chat=resolve(args, ChatParams, os.environ),
        engine=_engine(cache, generation, server),
    )


def _one_buffer_a_slot(params: ContextParams, server: ServerParams | None) -> ContextParams:
    """What --deterministic needs. Without a server there is one user, who gets the whole context."""
    if params.kv_unified:
        raise UsageError("--deterministic and --kv-unified exclude each other: each slot needs a KV buffer of its own")
    return replace(params, kv_unified=False, parallel=params.parallel if server else 1)


def _generation(args: Namespace) -> GenerationParams:
    """With `-v`, OpenAI answers carry the native one as well, as llama-server's do."""
    params = resolve(args, GenerationParams, os.environ)
    return replace(params, verbose=True) if getattr(args, "verbose", False) else params


def _engine(cache: CacheParams, generation: GenerationParams, server: ServerParams | None) -> EngineConfig:
    from minka.engine.engine import EngineConfig
    from minka.engine.memory import MemoryConfig

    return EngineConfig(
        queue_size=server.queue_size if server else 0,
        max_gap_ms=cache.max_gap_ms,
        memory=MemoryConfig(
            limit=_cache_bytes(cache.cache_ram),
            step=cache.checkpoint_min_step,
            n_snapshots=cache.ctx_checkpoints,
            clear_idle=cache.cache_idle_slots,
        ),
        disk=Path(cache.cache_disk).expanduser() if cache.cache_disk else None,
        disk_limit=cache.cache_disk_size << 20,
        shifts=cache.context_shift,
        reuses=generation.n_cache_reuse > 0,
        deterministic=cache.deterministic,
    )


def _cache_bytes(mebibytes: int) -> int:
    """What --cache-ram means here: never more than a quarter of the machine's memory unless there is no limit."""
    from minka.native.machine import total_memory

    if mebibytes < 0:
        return sys.maxsize
    total = total_memory()
    return min(mebibytes << 20, total // 4) if total is not None else mebibytes << 20
