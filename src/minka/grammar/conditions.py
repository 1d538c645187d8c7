"""Keywords that depend on something else (`not`, `if`, `contains`, `oneOf`, ...), written with those that do not.

A schema with one of them becomes one without, that allows the same values or fewer of them: the ways in which its
conditions can be met are listed (`options`), those that contradict each other are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, permutations, product

from minka.errors import RequestError
from minka.grammar.disjoint import apart, key_of, overlap
from minka.grammar.keywords import BY_TYPE, CONDITIONS, ENFORCED, TYPES
from minka.grammar.narrow import Place
from minka.grammar.negation import At, Excluded, Negation, positive, quiet, without
from minka.grammar.options import (
    KINDS,
    Apart,
    Options,
    TooManyWays,
    as_schema,
    besides,
    both,
    chosen,
    either,
    everything,
    kind_of,
    only,
    within,
)
from minka.grammar.refs import Refs

MAX_ITEM = 8
"""Items among which one that `contains` asks for is, where there can be more."""

MAX_ARRAYS = 2_000
"""Arrays of different values that are written out for `uniqueItems`."""

MAX_COMPARED = 50_000
"""Pairs of schemas that are compared for one document: about a second."""

MAX_TRIED = 4 * MAX_ARRAYS

_LISTED = frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"})
"""What need not be said any more where the arrays are listed."""

JsonObject = Mapping[str, object]


class Conditions:
    """Rewrites schemas of one document."""

    def __init__(self, refs: Refs, check: Callable[[JsonObject, Place], None]) -> None:
        self._refs = refs
        self._n_compared = 0
        self.contradictions: list[str] = []
        """Places of schemas that allow no value, because their conditions contradict each other."""
        self._negated = Negation(refs, check)

    def has(self, schema: JsonObject) -> bool:
        """Whether there is anything to rewrite in a schema."""
        parts = schema.get("allOf")
        return bool(CONDITIONS & schema.keys()) or (isinstance(parts, list) and any(map(_is_condition, parts)))

    def rewritten(self, schema: JsonObject, place: Place, *, free: bool) -> object:
        """The schema without conditions. `free`: a schema that speaks of objects only means objects.

        Raises RequestError, which names the place.
        """
        rest = {key: value for key, value in schema.items() if key not in CONDITIONS and key != "$id"}
        base, parts = self._lifted(rest, place)
        if "uniqueItems" in schema and schema.get("type") == "array" and self.arrays(schema, place):
            base = {key: value for key, value in base.items() if key not in _LISTED}
        if free and "type" not in base and base.keys() & ENFORCED and base.keys() & ENFORCED <= BY_TYPE["object"]:
            base["type"] = "object"
        met = _typed(base, everything())
        excluded = self._apart(base, place)
        try:
            # Conditions that are parts of allOf belong together: those of one property exclude each other.
            for part, at in [(schema, place), *parts]:
                met = self._chosen(met, part, at, excluded)
                for condition in self._of(part, at):
                    met = both(met, condition, excluded)
        except TooManyWays:
            raise RequestError(f"the conditions of the schema at {place.path} can be met in too many ways") from None
        met = {kind: tuple(w for w in ways if not any(excluded(base, s) for s in w)) for kind, ways in met.items()}
        extra = as_schema(met)
        if extra is False:
            self.contradictions.append(place.path)
            return False
        if met == _typed(base, everything()):
            return base
        merged = base.get("allOf", [])
        return {**base, "allOf": [*(merged if isinstance(merged, list) else []), extra]}

    def exclusive(self, branches: Sequence[object], place: Place, types: Sequence[str]) -> object:
        """A `oneOf` of which several branches can match the same value, None for one of which none can.

        Raises RequestError where a branch cannot be negated.
        """
        pair = overlap(branches, self._refs, place.path, types)
        if pair is None:
            return None
        try:
            return as_schema(self._exactly_one(branches, place))
        except TooManyWays:
            reason = "it can be met in too many ways"
        except RequestError as error:
            reason = error.message
        raise RequestError(
            f'"oneOf" at {place.path}: a value could match number {pair[0]} and number {pair[1]} of it, and that '
            f'cannot be excluded ({reason}); make them differ in type or in a constant property, or use "anyOf"'
        )

    def _exactly_one(self, branches: Sequence[object], place: Place) -> Options:
        places = [place.at("oneOf", str(index)) for index in range(len(branches))]
        wrong = [self._not(branch, at) for branch, at in zip(branches, places, strict=True)]
        ways = []
        for index, (branch, at) in enumerate(zip(branches, places, strict=True)):
            way = positive(branch, at)
            for other, no in enumerate(wrong):
                if other != index and not apart(branch, branches[other], self._refs, at.path):
                    way = both(way, no, self._apart(branch, at))
            ways.append(way)
        return either(*ways)

    def _apart(self, schema: object, place: Place) -> Apart:
        """Whether two schemas share no value that also matches `schema`, as far as its type and `required` go."""
        told = schema if isinstance(schema, Mapping) else {}
        required = told.get("required")
        names = required if isinstance(required, list) else []
        kinds = told.get("type", list(TYPES))

        def compare(a: object, b: object) -> bool:
            self._n_compared += 1
            if self._n_compared > MAX_COMPARED:
                raise TooManyWays
            if isinstance(a, dict) and isinstance(a.get("required", []), list):
                a = {"type": kinds, **a, "required": [*a.get("required", []), *names]}
            if isinstance(b, dict):
                b = {"type": kinds, **b}
            return apart(a, b, self._refs, place.path)

        return compare

    def _lifted(
        self, base: dict[str, object], place: Place
    ) -> tuple[dict[str, object], list[tuple[JsonObject, Place]]]:
        parts = base.get("allOf")
        if not isinstance(parts, list):
            return base, []
        lifted, kept = [], []
        for index, part in enumerate(parts):
            at = place.at("allOf", str(index))
            if _is_condition(part):
                lifted.append((part, at))
            else:
                kept.append(At(part, at) if isinstance(part, Mapping) else part)
        rest = {key: value for key, value in base.items() if key != "allOf"}
        return ({**rest, "allOf": kept} if kept else rest), lifted

    def _not(self, schema: object, place: Place) -> Options:
        return quiet(self._negated(schema, place), place)

    # -- keyword by keyword --------------------------------------------------------------------------------------------

    def _of(self, schema: JsonObject, place: Place) -> Iterator[Options]:
        """What each special keyword of a schema asks for."""
        if "not" in schema:
            yield self._not(schema["not"], place.at("not"))
        for name, others in _map(schema, "dependentRequired", place).items():
            yield self._names_too(name, others, place.at("dependentRequired", name))
        for name, other in _map(schema, "dependentSchemas", place).items():
            yield _if_there(name, positive(other, place.at("dependentSchemas", name)))
        for name, other in _map(schema, "dependencies", place).items():
            at = place.at("dependencies", name)
            yield self._names_too(name, other, at) if isinstance(other, list) else _if_there(name, positive(other, at))
        if "contains" in schema:
            yield quiet(besides(["array"], self._contains(schema, place)), place)
        if schema.get("uniqueItems", False) is not False:
            yield besides(["array"], self._unique(schema, place))

    def _chosen(self, met: Options, schema: JsonObject, place: Place, excluded: Apart) -> Options:
        """What is left of the ways when `if` has decided."""
        if "if" not in schema or not schema.keys() & {"then", "else"}:
            return met
        yes, no = _by_presence(schema["if"], place.at("if")), self._not(schema["if"], place.at("if"))
        then = positive(schema.get("then", True), place.at("then"))
        return chosen(met, yes, then, no, positive(schema.get("else", True), place.at("else")), excluded)

    def _names_too(self, name: str, others: object, place: Place) -> Options:
        if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
            raise RequestError(f"the schema at {place.path} must be a list of property names")
        return _if_there(name, only("object", {"required": others}))

    def _contains(self, schema: JsonObject, place: Place) -> Options:
        least, most = _count(schema, "minContains", place), _count(schema, "maxContains", place)
        least = 1 if least is None else least
        right, at = schema["contains"], place.at("contains")
        items = schema.get("maxItems")
        n = max(min(items, MAX_ITEM) if isinstance(items, int) else MAX_ITEM, least)
        here: object = At(right, at) if isinstance(right, Mapping) else right
        if most is None:
            if least > 4:
                return only("array", {"prefixItems": [here] * least, "minItems": least})
            ways = [_items_at(places, here, elsewhere=True) for places in combinations(range(n), least)]
            return only("array", *(ways if least else [{}]))
        if most < least:
            raise RequestError(f'"minContains" at {place.path} is larger than "maxContains"')
        wrong = as_schema(self._negated(right, at))
        chosen = [c for size in range(least, min(most, least + 3) + 1) for c in combinations(range(n), size)]
        return only(
            "array", *({**_items_at(places, here, elsewhere=wrong), "items": wrong} for places in chosen[:MAX_ARRAYS])
        )

    def _unique(self, schema: JsonObject, place: Place) -> Options:
        """Arrays without a value that comes twice: of few values, or of items that cannot be equal."""
        if schema["uniqueItems"] is not True:
            raise RequestError(f'"uniqueItems" at {place.path} must be true or false')
        most = schema.get("maxItems")
        if isinstance(most, int) and most <= 1:
            return everything()
        prefix, rest = _items(schema)
        if rest is False and len(prefix) <= MAX_ITEM and not overlap(prefix, self._refs, place.path):
            return everything()
        arrays = self.arrays(schema, place)
        if arrays is None:
            raise RequestError(
                f'the keyword "uniqueItems" at {place.path} is only supported for items of a few values ("enum")'
            )
        return only("array", {"enum": arrays})

    def arrays(self, schema: JsonObject, place: Place) -> list[list[object]] | None:
        """The arrays of different values that a schema with `uniqueItems` allows, None if these are too many.

        In any order if they can all be listed so, in the order of the values otherwise.
        """
        prefix, rest = _items(schema)
        least, most = schema.get("minItems", 0), schema.get("maxItems", MAX_ARRAYS)
        low, high = least if isinstance(least, int) else 0, most if isinstance(most, int) else 0
        told = [_values(self._resolved(item, place)) for item in (prefix if rest is False else [rest])]
        values = [listed for listed in told if listed is not None]
        if len(values) < len(told) or (prefix and rest is not False):
            return None
        several: list[list[Iterator[tuple[object, ...]]]]
        if rest is False:
            several = [[product(*values[:n]) for n in range(low, min(high, len(values)) + 1)]]
        else:
            sizes = range(low, min(high, len(values[0])) + 1)
            several = [[choose(values[0], n) for n in sizes] for choose in (permutations, combinations)]
        for ways in several:
            listed = [list(way) for way in islice(chain.from_iterable(ways), MAX_TRIED) if _are_different(way)]
            if 0 < len(listed) <= MAX_ARRAYS:
                return listed
        return None

    def _resolved(self, schema: object, place: Place) -> object:
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and len(schema) == 1:
            return self._refs.resolve(str(schema["$ref"]), place.path, place.base).schema
        return schema


def _is_condition(part: object) -> bool:
    """Whether a part of allOf is nothing but conditions."""
    if not isinstance(part, dict) or isinstance(part, Excluded):
        return False
    asserted = part.keys() & ENFORCED
    return bool(asserted) and asserted <= {"if", "then", "else", "not", "dependentRequired"}


def _by_presence(schema: object, place: Place) -> Options:
    """The values that a condition allows; objects without its only property apart from those that have it.

    So conditions on one property exclude each other, whether or not it is required.
    """
    found = positive(schema, place)
    told = schema.get("properties") if isinstance(schema, Mapping) else None
    required = schema.get("required", []) if isinstance(schema, Mapping) else []
    names = (
        [name for name in told if name not in required] if isinstance(told, dict) and isinstance(required, list) else []
    )
    if len(names) != 1 or not isinstance(schema, Mapping):
        return found
    there = positive(At({**schema, "required": [*required, *names]}, place), place)
    lacking = both(only("object", without(names[0])), within(["object"], found))
    return {**found, "object": either(there, lacking)["object"]}


def _if_there(name: str, then: Options) -> Options:
    """Objects that lack a property, or have it and are valid in this way; and any other value."""
    there = both(only("object", {"required": [name]}), within(["object"], then))
    return besides(["object"], either(only("object", without(name)), there))


def _items_at(places: Sequence[int], here: object, *, elsewhere: object) -> dict[str, object]:
    n = max(places, default=-1) + 1
    return {"prefixItems": [here if index in places else elsewhere for index in range(n)], "minItems": n}


def _items(schema: JsonObject) -> tuple[list[object], object]:
    """The schemas of the first items, and the one of all others."""
    items = schema.get("items", True)
    prefix, rest = schema.get("prefixItems", []), items
    if isinstance(items, list):
        prefix, rest = items, schema.get("additionalItems", True)
    return (prefix if isinstance(prefix, list) else []), rest


def _are_different(values: Sequence[object]) -> bool:
    return len({key_of(value) for value in values}) == len(values)


def _values(schema: object) -> list[object] | None:
    """The values of a schema that has only a few, each once."""
    if not isinstance(schema, Mapping):
        return None
    told = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if told is None and schema.get("type") in ("boolean", "null"):
        told = [True, False] if schema["type"] == "boolean" else [None]
    if not isinstance(told, list) or schema.keys() & ENFORCED - {"enum", "const", "type"}:
        return None
    types = _typed(schema, everything())
    different: list[object] = []
    for value in told:
        if types[kind_of(value)] and not any(value == v and kind_of(value) == kind_of(v) for v in different):
            different.append(value)
    return different


def _typed(schema: JsonObject, options: Options) -> Options:
    """The options of the types that a schema names."""
    told = schema.get("type")
    if isinstance(told, str):
        told = [told]
    if not isinstance(told, list):
        values = schema.get("enum")
        told = [kind_of(value) for value in values] if isinstance(values, list) else list(KINDS)
    return within(("number" if name == "integer" else str(name) for name in told), options)


def _map(schema: JsonObject, key: str, place: Place) -> dict[str, object]:
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise RequestError(f'"{key}" at {place.path} must be an object')
    return value


def _count(schema: JsonObject, key: str, place: Place) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise RequestError(f'"{key}" at {place.path} must be an integer of at least 0')
    if value > 100:
        raise RequestError(f'"{key}" at {place.path} must be at most 100')
    return int(value)
