"""Whether two schemas can share a value: what makes `oneOf` the same as `anyOf`.

Says "maybe" whenever it does not know, and looks at types, constants, bounds and required properties.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations

from minka.errors import RequestError
from minka.grammar.keywords import TYPES
from minka.grammar.options import kind_of, kinds_named
from minka.grammar.refs import Refs

MAX_BRANCHES = 200
MAX_PAIRS_APART = 40
"""Branches that are compared pair by pair, where no property tells them apart."""

_MAX_DEPTH = 6


def overlap(branches: Sequence[object], refs: Refs, path: str, within: Sequence[str] = TYPES) -> tuple[int, int] | None:
    """The first two branches that may share a value of one of the types `within`, None if no two do.

    Raises RequestError for too many branches.
    """
    if len(branches) > MAX_BRANCHES:
        raise RequestError(f'"oneOf" at {path} has more than {MAX_BRANCHES} schemas')
    known = [_typed(_resolved(branch, refs, path), within) for branch in branches]
    if _told_apart(known):
        return None
    if len(known) > MAX_PAIRS_APART:
        raise RequestError(
            f'"oneOf" at {path}: more than {MAX_PAIRS_APART} schemas need a property that tells them apart'
        )
    for (i, a), (j, b) in combinations(enumerate(known), 2):
        if not _disjoint(a, b, refs, path, _MAX_DEPTH):
            return i, j
    return None


def apart(a: object, b: object, refs: Refs, path: str) -> bool:
    """Whether two schemas are known to share no value."""
    return _disjoint(a, b, refs, path, _MAX_DEPTH)


def _typed(schema: object, types: Sequence[str]) -> object:
    """A schema that names no type, with these."""
    if not isinstance(schema, dict) or "type" in schema:
        return schema
    return {**schema, "type": types[0] if len(types) == 1 else list(types)}


def _told_apart(branches: Sequence[object]) -> bool:
    """Whether all are objects that must have the same property, with values of its own for each."""
    objects = [b for b in branches if isinstance(b, dict) and b.get("type") == "object"]
    if len(objects) < len(branches):
        return False
    shared = set.intersection(*(set(_names(b.get("required"))) for b in objects))
    return any(_are_distinct([_property(b, name) for b in objects]) for name in sorted(shared))


def _are_distinct(schemas: Sequence[object]) -> bool:
    values = [_values(schema) if isinstance(schema, dict) else None for schema in schemas]
    keys = [{key_of(value) for value in told} for told in values if told is not None]
    return len(keys) == len(schemas) and len(set().union(*keys)) == sum(map(len, keys))


def _resolved(schema: object, refs: Refs, path: str) -> object:
    """The schema behind references that have nothing next to them."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            break
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str) and not refs.is_one:
            break  # what it means depends on where it stands
        if isinstance(reference, str):
            schema = refs.resolve(reference, path).schema
        elif isinstance(parts, list) and len(parts) == 1 and "type" not in schema and "properties" not in schema:
            schema = parts[0]
        else:
            break
    return schema


def _disjoint(a: object, b: object, refs: Refs, path: str, depth: int) -> bool:
    a, b = _resolved(a, refs, path), _resolved(b, refs, path)
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or not depth:
        return False
    return (
        not _types(a) & _types(b)
        or _differ(a, b)
        or _ranges_apart(a, b)
        or _branches_apart(a, b, refs, path, depth)
        or _branches_apart(b, a, refs, path, depth)
        or _properties_apart(a, b, refs, path, depth)
    )


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    """The types that a value may have; integers count as numbers."""
    told = schema.get("type")
    types = set(kinds_named(told) or TYPES)
    values = _values(schema)
    if values is not None:
        types = {kind_of(value) for value in values} & {"number" if t == "integer" else t for t in types}
    return frozenset("number" if name == "integer" else str(name) for name in types)


def _values(schema: Mapping[str, object]) -> list[object] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _differ(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    mine, theirs = _values(a), _values(b)
    if mine is None or theirs is None:
        return _excludes(a, theirs) or _excludes(b, mine)
    return not {key_of(value) for value in mine} & {key_of(value) for value in theirs}


def _excludes(schema: Mapping[str, object], values: list[object] | None) -> bool:
    """Whether a schema says `not` to all of the values."""
    told = schema.get("not")
    excluded = _values(told) if isinstance(told, dict) and len(told) == 1 else None
    if values is None or excluded is None:
        return False
    return {key_of(value) for value in values} <= {key_of(value) for value in excluded}


def key_of(value: object) -> str:
    """A text that is equal for equal JSON values; 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _ranges_apart(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    """Two schemas of numbers whose bounds do not meet."""
    if _types(a) & _types(b) != {"number"}:
        return False
    return _below(a, b) or _below(b, a)


def _below(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    for high in ("maximum", "exclusiveMaximum"):
        for low in ("minimum", "exclusiveMinimum"):
            top, bottom = a.get(high), b.get(low)
            if not _is_number(top) or not _is_number(bottom):
                continue
            assert isinstance(top, int | float)
            assert isinstance(bottom, int | float)
            if top < bottom or (top == bottom and (high, low) != ("maximum", "minimum")):
                return True
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _branches_apart(a: Mapping[str, object], b: object, refs: Refs, path: str, depth: int) -> bool:
    """A choice shares nothing with `b` if none of its branches does; a merge, if one of its parts does not."""
    for key, decide in (("anyOf", all), ("oneOf", all), ("allOf", any)):
        parts = a.get(key)
        if not isinstance(parts, list) or not 0 < len(parts) <= 20:
            continue
        if decide(_disjoint(part, b, refs, path, depth - 1) for part in parts):
            return True
    return False


def _properties_apart(a: Mapping[str, object], b: Mapping[str, object], refs: Refs, path: str, depth: int) -> bool:
    """Two schemas of objects with a property that one of them requires and that cannot satisfy both."""
    if _types(a) & _types(b) != {"object"}:
        return False
    required = dict.fromkeys(name for schema in (a, b) for name in _names(schema.get("required")))
    return any(_disjoint(_property(a, name), _property(b, name), refs, path, depth - 1) for name in list(required)[:50])


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _property(schema: Mapping[str, object], name: str) -> object:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    if "patternProperties" in schema:
        return True
    return schema.get("additionalProperties", True)
