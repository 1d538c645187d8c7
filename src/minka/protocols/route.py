"""How a protocol says which paths it serves: every module of this package that has ROUTES is served.

`fields`, `example`, `result` and `chunk` tell of a route in the API's description and decide nothing: the fields that
it reads itself besides the parameter table's, a body to try, the answer, and the JSON of a streamed event.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

import minka.protocols
from minka.protocols.body import JsonObject
from minka.protocols.exchange import OPENAI, Decode, Wire
from minka.protocols.schema import Field, Schema
from minka.protocols.served import Served
from minka.protocols.vectors import DecodeTexts


@dataclass(frozen=True, slots=True)
class Completion:
    """`POST` routes whose requests the engine works on."""

    paths: tuple[str, ...]
    decode: Decode
    summary: str
    fields: tuple[Field, ...]
    example: Mapping[str, object]
    result: Schema
    chunk: Schema
    wire: Wire = OPENAI
    aside: frozenset[str] = frozenset()
    """Fields that it reads, refuses or leaves aside without describing them."""


@dataclass(frozen=True, slots=True)
class Computed:
    """`POST` routes that are answered from the body and the vocabulary alone."""

    paths: tuple[str, ...]
    answer: Callable[[JsonObject, Served], object]
    summary: str
    fields: tuple[Field, ...]
    example: Mapping[str, object]
    result: Schema
    wire: Wire = OPENAI


@dataclass(frozen=True, slots=True)
class Prefill:
    """`POST` routes whose prompt the engine computes and nothing more; none takes the parameter table's fields."""

    paths: tuple[str, ...]
    decode: Decode
    summary: str
    fields: tuple[Field, ...]
    example: Mapping[str, object]
    result: Schema


@dataclass(frozen=True, slots=True)
class Embedding:
    """`POST` routes whose texts the engine turns into vectors."""

    paths: tuple[str, ...]
    decode: DecodeTexts
    summary: str
    fields: tuple[Field, ...]
    example: Mapping[str, object]
    result: Schema


Route = Completion | Computed | Prefill | Embedding


def discover() -> tuple[Route, ...]:
    """The routes of all protocol modules. Raises ValueError if two claim one path."""
    found: list[Route] = []
    for info in pkgutil.iter_modules(minka.protocols.__path__, "minka.protocols."):
        found += getattr(import_module(info.name), "ROUTES", ())
    paths = [path for route in found for path in route.paths]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ValueError(f"two protocols serve {sorted(twice)}")
    return tuple(found)
