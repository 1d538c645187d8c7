"""What an engine cannot do with its model or its flags, said before it is tried. It reads a config and a backend."""

from __future__ import annotations

from typing import Protocol

from minka.errors import NotSupportedError, RequestError
from minka.native.protocol import Backend

_FIXED = (
    "this model's text cannot be moved to other positions: it has several of them a token, its RoPE scales what it "
    "turns (YaRN), it drops what is outside a window, or its keys are kept as bf16"
)
_STATEFUL = "this model has a recurrent state, which cannot forget a part of a text"


class Config(Protocol):
    """What counts here of `engine.EngineConfig`."""

    @property
    def shifts(self) -> bool:
        """Whether full contexts are shifted."""

    @property
    def reuses(self) -> bool:
        """Whether jobs ask for parts of a text to be moved if nothing else is said."""

    @property
    def deterministic(self) -> bool:
        """Whether texts may not depend on other jobs."""

    @property
    def disk(self) -> object:
        """Where the disk tier is, None for nowhere."""


def check_config(config: Config, backend: Backend) -> None:
    """Raise NotSupportedError for an engine that cannot be."""
    if config.shifts and not backend.can_shift:
        raise NotSupportedError(f"--context-shift cannot be used: {_FIXED}")
    if config.reuses and (reason := _no_reuse(config, backend)):
        raise NotSupportedError(f"--cache-reuse cannot be used: {reason}")
    if not config.deterministic:
        return
    if config.shifts:
        raise NotSupportedError(
            "--deterministic and --context-shift exclude each other: a shifted text depends on what was there before"
        )
    if backend.kv_unified and backend.n_seq_max > 1:
        raise NotSupportedError(
            "--deterministic needs a KV buffer for each slot (--no-kv-unified): in a common one the order of the cells "
            "depends on other requests, and with it the last digits of every sum"
        )
    if config.disk is not None:
        raise NotSupportedError(
            "--deterministic and --cache-disk exclude each other: what a directory has may come from other settings"
        )


def check_reuse(config: Config, backend: Backend) -> None:
    """Raise RequestError for a job that wants parts of a text to be moved where that is not possible."""
    if reason := _no_reuse(config, backend):
        raise RequestError(f'"n_cache_reuse" must be 0: {reason}', param="n_cache_reuse")


def _no_reuse(config: Config, backend: Backend) -> str:
    if config.deterministic:
        return "--deterministic forbids text that was computed in another place"
    if not backend.can_shift:
        return _FIXED
    return "" if backend.can_splice else _STATEFUL
