"""From keyword arguments to the settings of a model: the names and ranges of the parameter table.

A parameter has the same name here as its row there (`n_ctx`, `n_gpu_layers`, `cache_type_k`, ...). Environment
variables do not count: a program says what it wants.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from minka.errors import UsageError
from minka.params import (
    BadValueError,
    CacheParams,
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    HardwareParams,
    Kind,
    LoraParams,
    ModelParams,
    Row,
    SamplingParams,
    Syntax,
    check_items,
    limit,
    rows,
)
from minka.runtime import Settings, engine_config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")

GROUPS = (
    *(ModelParams, ContextParams, CacheParams, SamplingParams, GenerationParams, ChatParams),
    *(EmbeddingParams, HardwareParams),
)

Adapter = str | Path | tuple[str | Path, float]
"""A LoRA adapter: its file, or the file with a factor."""

QUEUE = 2**20
"""Jobs that may wait: who submits bounds them."""

_TYPES: Mapping[Kind, tuple[type, ...]] = {
    Kind.BOOL: (bool,),
    Kind.INT: (int,),
    Kind.FLOAT: (int, float),
    Kind.STR: (str, Path),
}


def keyword_settings(model: str | Path | None, given: Mapping[str, object], lora: Sequence[Adapter] = ()) -> Settings:
    """The settings of a call. Raises UsageError for a name the table does not have, or a value it does not take."""
    known = _owners()
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"there is no parameter {name}" + (f"; did you mean {near[0]}?" if near else ""))
    context, cache, generation = _made(ContextParams, given), _made(CacheParams, given), _made(GenerationParams, given)
    found = _made(ModelParams, given)
    if cache.deterministic:
        if context.kv_unified:
            raise UsageError("deterministic and kv_unified exclude each other: each slot needs a KV buffer of its own")
        context = replace(context, kv_unified=False)
    return Settings(
        model=replace(found, model=str(model)) if model is not None else found,
        context=context,
        sampling=_made(SamplingParams, given),
        generation=generation,
        chat=_made(ChatParams, given),
        engine=engine_config(cache, generation, QUEUE),
        lora=LoraParams(files=tuple(map(_adapter, lora))),
        embedding=_made(EmbeddingParams, given),
        hardware=_made(HardwareParams, given),
    )


def _adapter(lora: Adapter) -> tuple[str, float]:
    path, scale = lora if isinstance(lora, tuple) else (lora, 1.0)
    return str(path), float(scale)


def _made(group: type[D], given: Mapping[str, object]) -> D:
    values = {}
    for row in rows(group):
        if row.name in given and _owners()[row.name] is group:
            try:
                values[row.name] = _value(row, given[row.name])
            except BadValueError as error:
                raise UsageError(f"{row.name} {error}") from None
    return group(**values)


@cache
def _owners() -> Mapping[str, type]:
    """The group of each name; of two that have it, the one that comes first."""
    return {row.name: group for group in reversed(GROUPS) for row in rows(group)}


def _value(row: Row, value: object) -> object:
    """A value as the table has it. Raises BadValueError."""
    if value is None or (value == row.default and type(value) is type(row.default)):
        return row.default
    if row.param.syntax is Syntax.JSON_OBJECT and isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, str) and value in dict(row.param.named):
        return dict(row.param.named)[value]
    if row.type not in _TYPES:
        return _items(row, value)
    wrong = isinstance(value, bool) and row.type is not Kind.BOOL
    if wrong or not isinstance(value, _TYPES[row.type]):
        raise BadValueError(f"must be of type {row.type}, but is {value!r}")
    if isinstance(value, Path):
        return str(value)
    if row.param.choices and value not in row.param.choices:
        raise BadValueError(f"must be one of {', '.join(row.param.choices)}, but is {value!r}")
    return limit(row, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _items(row: Row, value: object) -> tuple[object, ...]:
    """A list as the table has it. Of pairs, the first half is taken as it is and the second is a number in range."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadValueError(f"must be a list or tuple, but is {value!r}")
    return check_items(row, tuple(_item(row, item) for item in value))


def _item(row: Row, item: object) -> object:
    match row.type, item:
        case Kind.STRS, str():
            if row.param.choices and item not in row.param.choices:
                raise BadValueError(f"has no {item!r}; there are {', '.join(row.param.choices)}")
            return item
        case Kind.FLOATS | Kind.INTS, int() | float() if not isinstance(item, bool):
            return limit(row, item)
        case Kind.BIASES | Kind.FILES | Kind.ADAPTERS, (int() | str() as first, int() | float() as factor):
            return first, float(limit(row, factor))
        case _:
            raise BadValueError(f"must have {row.type}, but has {item!r}")
