"""Which narrowed schemas are known to compile in time that grows with their size, and no faster."""

from __future__ import annotations

from collections.abc import Mapping

MAX_NODES = 50_000
"""Schemas and values."""

_RISKY = frozenset({"allOf", "pattern", "patternProperties", "maxProperties", "minProperties"})
_SAME_VALUE = frozenset({"$ref", "anyOf", "type", "const", "enum"})


def is_plain(narrowed: Mapping[str, object]) -> bool:
    """Whether nothing in a schema is merged with something else, nor is a pattern of its author's in it.

    Properties may have the names of keywords: then the answer can be no where yes was possible.
    """
    open_values: list[object] = [narrowed]
    n_nodes = 0
    while open_values:
        value = open_values.pop()
        n_nodes += 1
        if n_nodes > MAX_NODES:
            return False
        if isinstance(value, Mapping):
            if _RISKY & value.keys() or len(_SAME_VALUE & value.keys()) > 1:
                return False
            open_values += value.values()
        elif isinstance(value, list):
            open_values += value
    return True
