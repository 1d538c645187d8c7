"""Schemas that all hold for the same object, as one: with the properties in their order, and nothing left to merge.

The grammar compiler can merge schemas too, but it shuffles their properties, and it takes an object that is merged for
one that may have any further properties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from minka.errors import RequestError
from minka.grammar.disjoint import apart, key_of, overlap
from minka.grammar.keywords import ENFORCED
from minka.grammar.narrow import Place
from minka.grammar.negation import At, Excluded
from minka.grammar.options import kind_of
from minka.grammar.refs import Refs

MAX_DEPTH = 8
"""References and combinations inside of each other that are followed."""

MAX_ALTERNATIVES = 64
"""Objects that one schema may become."""

_BRANCHES = ("anyOf", "oneOf")

Part: TypeAlias = At


MAX_COST = 200_000
"""Properties and parts of one document that are looked at, counted as often as that is done; then nothing is merged."""

MAX_LISTED = 200
"""Values of an `enum` that is compared with others."""

MAX_COMPARED = 50
"""Parts of one object that are compared with each other."""


class Both(dict[str, object]):
    """Schemas of one property that have been found in several parts: `{"allOf": [...]}`."""

    @property
    def name(self) -> str:
        """What tells it from others, the same again where it leads back to itself; empty if it leads nowhere."""
        parts = self["allOf"]
        assert isinstance(parts, list)
        is_short = any(not isinstance(part, At) for part in parts) or not any("$ref" in part for part in parts)
        return "" if is_short else " & ".join(sorted({part.place.path for part in parts}))


class _Other(Exception):
    """Something in a schema that is no simple part of an object."""


class _Kind(NamedTuple):
    """The keywords of objects or arrays that can be merged, and the one for what no other keyword evaluates."""

    name: str
    own: frozenset[str]
    rest: str
    closing: Callable[[Sequence[Part], object], dict[str, object] | None]

    def closed(self, way: tuple[Part, ...], part: Part) -> tuple[Part, ...]:
        """The way with what the rest has to be."""
        rest = part[self.rest]
        place = part.place.at(self.rest)
        told = At(rest, place) if isinstance(rest, dict) and not isinstance(rest, At) else rest
        more = self.closing([one for one in way if not one.quiet], told)
        return way if more is None else (*way, At(more, part.place))


def _rest_of_object(way: Sequence[Part], rest: object) -> dict[str, object] | None:
    if any("additionalProperties" in part for part in way):
        return None
    names = dict.fromkeys((name for part in way for name in _map(part, "properties")), True)
    patterns = dict.fromkeys((name for part in way for name in _map(part, "patternProperties")), True)
    found: dict[str, object] = {"properties": names, "additionalProperties": rest}
    return {**found, "patternProperties": patterns} if patterns else found


def _rest_of_array(way: Sequence[Part], rest: object) -> dict[str, object] | None:
    if any("items" in part for part in way):
        return None
    return {"prefixItems": [True] * max((len(_list(part, "prefixItems")) for part in way), default=0), "items": rest}


_OBJECT = _Kind(
    "object",
    frozenset({"type", "properties", "patternProperties", "required", "additionalProperties"})
    | {"minProperties", "maxProperties"},
    "unevaluatedProperties",
    _rest_of_object,
)
_ARRAY = _Kind(
    "array", frozenset({"type", "items", "prefixItems", "minItems", "maxItems"}), "unevaluatedItems", _rest_of_array
)


class Merging:
    """Merges schemas of one document."""

    def __init__(self, refs: Refs) -> None:
        self._refs, self._left = refs, MAX_COST

    def objects(self, schema: Mapping[str, object], place: Place, *, free: bool) -> list[object] | None:
        """The objects that a schema with combinators allows, None if it says something that is not merged here.

        `free`: a schema that speaks of objects only means objects.
        """
        try:
            ways = self._ways(At(schema, place), _OBJECT, MAX_DEPTH)
            if not any(len(way) > 1 for way in ways):
                return None
            if free and all("type" not in part for way in ways for part in way):
                ways = [(At({"type": "object"}, place, quiet=True), *way) for way in ways]
            if not all(_is_typed(way, "object") for way in ways):
                return None
            self._spend(sum(len(_map(part, "properties")) + 1 for way in ways for part in way for _ in way))
            found = [one for way in ways if not self._contradict(way) and (one := _merged(way)) is not False]
        except _Other:
            return None
        return found or [False]

    def arrays(self, schema: Mapping[str, object], place: Place) -> object:
        """A schema with `unevaluatedItems` as one without. Raises RequestError, which names the place."""
        try:
            ways = self._ways(At(schema, place), _ARRAY, MAX_DEPTH)
        except _Other:
            raise RequestError(
                f'the keyword "unevaluatedItems" at {place.path} is not supported next to this combination of schemas'
            ) from None
        found = [{"allOf": list(way)} for way in ways]
        return found[0] if len(found) == 1 else {"anyOf": found}

    def values(self, parts: Sequence[object]) -> dict[str, object] | None:
        """The values that all of some schemas allow, None unless one of them lists a few and the others are simple."""
        several = [values for part in parts if (values := _listed(part)) is not None]
        if not several or max(map(len, several)) > MAX_LISTED:
            return None
        listed = several[0]
        kept = []
        for value in listed:
            answers = [_admits(part, value) for part in parts]
            if None in answers:
                return None
            if all(answers):
                kept.append(value)
        return {"enum": kept} if kept else None

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise _Other

    def _ways(self, part: Part, kind: _Kind, depth: int) -> list[tuple[Part, ...]]:
        """The lists of simple parts of which one has to hold."""
        if not depth or part.keys() & ENFORCED - kind.own - {kind.rest, "allOf", "$ref", *_BRANCHES}:
            raise _Other
        self._spend(1)
        place = part.place
        factors: list[list[tuple[Part, ...]]] = []
        own = {key: value for key, value in part.items() if key in kind.own}
        if own:
            factors.append([(At(own, place, quiet=part.quiet),)])
        for inner, at in self._parts(part):
            factors.append(self._inner(inner, at, kind, depth, part.quiet))
        for key in _BRANCHES:
            branches = _list(part, key)
            if key == "oneOf" and branches and overlap(branches, self._refs, place.path, [kind.name]) is not None:
                raise _Other
            places = [place.at(key, str(index)) for index in range(len(branches))]
            inside = [self._inner(b, at, kind, depth, part.quiet) for b, at in zip(branches, places, strict=True)]
            factors += [[way for ways in inside for way in ways]] if branches else []
        if math.prod(map(len, factors)) > MAX_ALTERNATIVES:
            raise _Other
        found = [tuple(one for way in chosen for one in way) for chosen in product(*factors)]
        return [kind.closed(way, part) for way in found] if kind.rest in part else found

    def _parts(self, part: Part) -> list[tuple[object, Place]]:
        """The schemas that hold too, and where they stand."""
        place = part.place
        found: list[tuple[object, Place]] = []
        if "$ref" in part:
            if not isinstance(part["$ref"], str):
                raise _Other
            target = self._refs.resolve(str(part["$ref"]), place.path, place.base)
            found.append((target.schema, Place(target.pointer, place.depth, target.base)))
        return found + [(inner, place.at("allOf", str(i))) for i, inner in enumerate(_list(part, "allOf"))]

    def _inner(self, schema: object, place: Place, kind: _Kind, depth: int, quiet: bool) -> list[tuple[Part, ...]]:
        if schema is True:
            return [()]
        if not isinstance(schema, dict) or isinstance(schema, Excluded):
            raise _Other
        if isinstance(schema, At):
            place, quiet = schema.place, quiet or schema.quiet
        base = self._refs.base_of(schema, place.base)
        return self._ways(At(schema, place._replace(base=base), quiet=quiet), kind, depth - 1)

    def _contradict(self, way: Sequence[Part]) -> bool:
        if len(way) > MAX_COMPARED:
            return False  # the compiler finds it out
        typed = [{"type": "object", **part} for part in way]
        return any(apart(a, b, self._refs, "#") for i, a in enumerate(typed) for b in typed[i + 1 :])


def _merged(way: Sequence[Part]) -> object:
    """One schema for all parts of an object; False if there is no such object."""
    names = dict.fromkeys(name for part in way for name in _map(part, "properties"))
    required = list(dict.fromkeys(name for part in way for name in _list(part, "required") if isinstance(name, str)))
    told = {name: _both([_property(part, name) for part in way]) for name in names}
    out: dict[str, object] = {"type": "object", "properties": told, "required": required}
    rest = [_placed(part, "additionalProperties") for part in way if "additionalProperties" in part]
    if rest:
        out["additionalProperties"] = _both(rest)
    patterns = _patterns(way)
    if patterns:
        out["patternProperties"] = patterns
    elif rest:
        told |= {name: out["additionalProperties"] for name in required if name not in told}
    out |= _counts(way)
    if any(told.get(name) is False for name in required):
        return False
    return At({key: value for key, value in out.items() if value not in ({}, [])}, way[0].place)


def _patterns(way: Sequence[Part]) -> dict[str, object]:
    patterns = dict.fromkeys(name for part in way for name in _map(part, "patternProperties"))
    for part in way:
        # What such a part says about the names of other parts' patterns cannot be written.
        if "additionalProperties" in part and patterns.keys() - _map(part, "patternProperties").keys():
            raise _Other
    told = {name: [part for part in way if name in _map(part, "patternProperties")] for name in patterns}
    return {name: _both([_placed(p, "patternProperties", name) for p in parts]) for name, parts in told.items()}


def _counts(way: Sequence[Part]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, pick in (("minProperties", max), ("maxProperties", min)):
        counts = [count for part in way if isinstance(count := part.get(key, ""), int) and not isinstance(count, bool)]
        if len(counts) < sum(key in part for part in way):
            raise _Other
        if counts:
            found[key] = pick(counts)
    return found


def _both(schemas: Sequence[object]) -> object:
    told = [schema for schema in schemas if schema is not True]
    if any(schema is False for schema in told):
        return False
    excluded = [schema for schema in told if isinstance(schema, Excluded) and not schema.kind]
    if len(excluded) > 1:
        told = [schema for schema in told if schema not in excluded]
        told.append(Excluded([value for schema in excluded for value in schema.values_]))
    different = [schema for index, schema in enumerate(told) if schema not in told[:index]]
    if len(different) < 2:
        return different[0] if different else True
    return Both({"allOf": different})


def _property(part: Part, name: str) -> object:
    """What a part says about a property."""
    if name in _map(part, "properties"):
        return _placed(part, "properties", name)
    return _placed(part, "additionalProperties") if "additionalProperties" in part else True


def _placed(part: Part, key: str, name: str | None = None) -> object:
    schema = _map(part, key)[name] if name is not None else part[key]
    place = part.place.at(key, name) if name is not None else part.place.at(key)
    return schema if not isinstance(schema, dict) or isinstance(schema, At | Excluded) else At(schema, place)


def _map(part: Mapping[str, object], key: str) -> dict[str, object]:
    value = part.get(key, {})
    if not isinstance(value, dict):
        raise _Other
    return value


def _list(part: Mapping[str, object], key: str) -> list[object]:
    value = part.get(key, [])
    if not isinstance(value, list) or (key in _BRANCHES and key in part and not value):
        raise _Other
    return value


def _is_typed(way: Sequence[Part], kind: str) -> bool:
    types = [part["type"] for part in way if "type" in part]
    return kind in types and all(told == kind for told in types)


# -- a few values ------------------------------------------------------------------------------------------------------


def _listed(schema: object) -> list[object] | None:
    if not isinstance(schema, dict) or isinstance(schema, Excluded):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _admits(schema: object, value: object) -> bool | None:
    """Whether a simple schema allows a value; None for one that is not that simple."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        return None
    answers: list[bool | None] = []
    for key in schema.keys() & ENFORCED:
        told = schema[key]
        match key:
            case "const":
                answers.append(key_of(told) == key_of(value))
            case "enum" if isinstance(told, list):
                answers.append(key_of(value) in {key_of(one) for one in told})
            case "type":
                answers.append(_has_type(value, told if isinstance(told, list) else [told]))
            case "not":
                inner = _admits(told, value)
                answers.append(None if inner is None else not inner)
            case "anyOf" | "allOf" if isinstance(told, list):
                answers.append(_combined([_admits(one, value) for one in told], is_any=key == "anyOf"))
            case _:
                answers.append(None)
    return _combined(answers, is_any=False)


def _combined(answers: Sequence[bool | None], *, is_any: bool) -> bool | None:
    if is_any in answers:
        return is_any
    return None if None in answers else not is_any


def _has_type(value: object, types: Sequence[object]) -> bool:
    kind = kind_of(value)
    if kind == "number" and "integer" in types and isinstance(value, int | float) and value == int(value):
        return True
    return kind in types
