"""The values that a schema does *not* allow, written as schemas that a grammar can hold.

Keyword by keyword: a value is invalid if one keyword rejects it. What comes out may be less than everything that is
invalid (arrays that differ in something else than their length, say), never more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from minka.errors import RequestError
from minka.grammar.formats import PATTERNS
from minka.grammar.keywords import ANNOTATIONS, ENFORCED, KNOWN, TYPES
from minka.grammar.narrow import Place
from minka.grammar.options import (
    ANY,
    KINDS,
    Options,
    as_schema,
    both,
    either,
    everything,
    kind_of,
    kinds_named,
    nothing,
    only,
)
from minka.grammar.refs import Refs

MAX_DEPTH = 12
"""Schemas and references inside of each other that are followed."""

MAX_NEGATED = 10_000
"""Schemas of one document that are negated, counted as often as that is done."""

MAX_ITEM = 8
"""Items of an array that are looked at one by one."""

MAX_EXCLUDED = 2_000
"""Characters of all texts together that a string may not be."""

MAX_EXCLUDED_EACH = 100

_REST = r"[\s\S]*"

JsonObject = Mapping[str, object]


class Negation:
    """Negates schemas of one document. `check` raises RequestError for keywords that nobody knows."""

    def __init__(self, refs: Refs, check: Callable[[JsonObject, Place], None]) -> None:
        self._refs, self._check, self._left = refs, check, MAX_NEGATED
        self._kinds: Mapping[str, Callable[[JsonObject, str, Place], Options]] = {
            "type": self._type,
            "const": self._values,
            "enum": self._values,
            "not": lambda schema, key, place: positive(schema[key], place.at(key)),
            "anyOf": self._any_of,
            "allOf": self._all_of,
            "oneOf": self._one_of,
            "if": self._condition,
            "$ref": self._reference,
            "minimum": self._bound,
            "maximum": self._bound,
            "exclusiveMinimum": self._bound,
            "exclusiveMaximum": self._bound,
            "minLength": self._count,
            "maxLength": self._count,
            "minItems": self._count,
            "maxItems": self._count,
            "minProperties": self._count,
            "maxProperties": self._count,
            "required": self._required,
            "properties": self._properties,
            "items": self._items,
            "prefixItems": self._prefix,
            "contains": self._contains,
            "dependentRequired": self._dependent,
        }

    def __call__(self, schema: object, place: Place, depth: int = MAX_DEPTH) -> Options:
        """What the schema rejects. Raises RequestError, which names the place and the keyword, if that is unknown."""
        if isinstance(schema, bool):
            return nothing() if schema else everything()
        if not isinstance(schema, Mapping):
            raise RequestError(f"a schema must be an object, true or false, but the one at {place.path} is not")
        self._check(schema, place)
        self._left -= 1
        if not depth or not self._left:
            raise RequestError(f"the schema at {place.path} is too large or nested too deeply to be negated")
        place = place._replace(depth=depth, base=self._refs.base_of(schema, place.base))
        found = nothing()
        for key in schema:
            read = self._kinds.get(key)
            if read is not None:
                found = either(found, read(schema, key, place))
            elif not _says_nothing(schema, key):
                raise RequestError(f'the keyword "{key}" at {place.path} is not supported where it is to be negated')
        return found

    def _inner(self, schema: object, place: Place, *parts: str) -> Options:
        return self(schema, place.at(*parts), place.depth - 1)

    # -- values --------------------------------------------------------------------------------------------------------

    def _type(self, schema: JsonObject, key: str, place: Place) -> Options:
        kinds = kinds_named(schema[key])
        if not kinds:
            raise RequestError(f'"type" at {place.path} must be one or several of {", ".join(TYPES)}')
        return {kind: () if kind in kinds else ANY for kind in KINDS}

    def _values(self, schema: JsonObject, key: str, place: Place) -> Options:
        values = schema[key] if key == "enum" else [schema[key]]
        if not isinstance(values, list):
            raise RequestError(f'"enum" at {place.path} must be a list of values')
        by_kind: dict[str, list[object]] = {kind: [] for kind in KINDS}
        for value in values:
            by_kind[kind_of(value)].append(value)
        found: dict[str, Sequence[object]] = {}
        for kind, those in by_kind.items():
            found[kind] = _others(kind, those) if those else ()
        return {kind: tuple((s,) for s in found[kind]) if by_kind[kind] else ANY for kind in KINDS}

    # -- combinations --------------------------------------------------------------------------------------------------

    def _any_of(self, schema: JsonObject, key: str, place: Place) -> Options:
        found = everything()
        for index, part in enumerate(_list(schema, key, place)):
            found = both(found, self._inner(part, place, key, str(index)))
        return found

    def _all_of(self, schema: JsonObject, key: str, place: Place) -> Options:
        parts = _list(schema, key, place)
        return either(*(self._inner(part, place, key, str(index)) for index, part in enumerate(parts)))

    def _one_of(self, schema: JsonObject, key: str, place: Place) -> Options:
        parts = _list(schema, key, place)
        none = self._any_of(schema, key, place)
        pairs = [
            both(positive(a, place.at(key, str(i))), positive(b, place.at(key, str(j))))
            for i, a in enumerate(parts)
            for j, b in enumerate(parts)
            if i < j
        ]
        return either(none, *pairs)

    def _condition(self, schema: JsonObject, key: str, place: Place) -> Options:
        yes, no = positive(schema[key], place.at(key)), self._inner(schema[key], place, key)
        return either(
            both(yes, self._inner(schema.get("then", True), place, "then")),
            both(no, self._inner(schema.get("else", True), place, "else")),
        )

    def _reference(self, schema: JsonObject, key: str, place: Place) -> Options:
        if not isinstance(schema[key], str):
            raise RequestError(f'"{key}" at {place.path} must be a string')
        target = self._refs.resolve(str(schema[key]), place.path, place.base)
        return self(target.schema, Place(target.pointer, 0, target.base), place.depth - 1)

    # -- the keywords of each type -------------------------------------------------------------------------------------

    def _bound(self, schema: JsonObject, key: str, place: Place) -> Options:
        value = schema[key]
        opposite = {
            "minimum": "exclusiveMaximum",
            "exclusiveMinimum": "maximum",
            "maximum": "exclusiveMinimum",
            "exclusiveMaximum": "minimum",
        }
        if isinstance(value, bool) or isinstance(schema.get("exclusiveMinimum", schema.get("exclusiveMaximum")), bool):
            raise RequestError(f'the keyword "{key}" at {place.path} is not supported where it is to be negated')
        return only("number", {opposite[key]: value})

    def _count(self, schema: JsonObject, key: str, place: Place) -> Options:
        value = schema[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise RequestError(f'"{key}" at {place.path} must be an integer of at least 0')
        what = key[3:]
        kind = {"Length": "string", "Items": "array", "Properties": "object"}[what]
        if key.startswith("max"):
            return only(kind, {f"min{what}": int(value) + 1})
        return only(kind, {f"max{what}": int(value) - 1}) if value > 0 else nothing()

    def _required(self, schema: JsonObject, key: str, place: Place) -> Options:
        names = schema[key]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestError(f'"required" at {place.path} must be a list of property names')
        return only("object", *(without(name) for name in names))

    def _properties(self, schema: JsonObject, key: str, place: Place) -> Options:
        return only("object", *(
            {"properties": {name: wrong}, "required": [name]}
            for name, part in _map(schema, key, place).items()
            if (wrong := self._wrong(part, place, key, name)) is not False
        ))  # fmt: skip

    def _wrong(self, schema: object, place: Place, key: str, name: str) -> object:
        """What a property must not be, as one schema."""
        options = self._inner(schema, place, key, name)
        told = [word for word in schema if word in ENFORCED] if isinstance(schema, Mapping) else []
        if told not in (["const"], ["enum"]) or not isinstance(schema, Mapping):
            return as_schema(options)
        values = schema[told[0]]
        return Excluded(values if told == ["enum"] and isinstance(values, list) else [values])

    def _items(self, schema: JsonObject, key: str, place: Place) -> Options:
        items, prefix = schema[key], schema.get("prefixItems", [])
        if isinstance(items, list) or not isinstance(prefix, list):
            raise RequestError(f'the keyword "{key}" at {place.path} is not supported where it is to be negated')
        wrong = as_schema(self._inner(items, place, key))
        return only("array", *(at_item(wrong, index) for index in range(len(prefix), len(prefix) + MAX_ITEM)))

    def _prefix(self, schema: JsonObject, key: str, place: Place) -> Options:
        wrong = [as_schema(self._inner(s, place, key, str(i))) for i, s in enumerate(_list(schema, key, place))]
        return only("array", *(at_item(s, index) for index, s in enumerate(wrong) if s is not False))

    def _contains(self, schema: JsonObject, key: str, place: Place) -> Options:
        if schema.keys() & {"minContains", "maxContains"}:
            raise RequestError(f'the keyword "{key}" at {place.path} is not supported where it is to be negated')
        return only("array", {"items": as_schema(self._inner(schema[key], place, key))})

    def _dependent(self, schema: JsonObject, key: str, place: Place) -> Options:
        pairs = [
            {"required": [name], "properties": {other: False}}
            for name, others in _map(schema, key, place).items()
            for other in (others if isinstance(others, list) else [])
            if other != name
        ]
        return only("object", *pairs)


class At(dict[str, object]):
    """A part of the author's schema that has been moved, with the place where it stood.

    `quiet`: it evaluates nothing, in the sense of `unevaluatedProperties`, because it is a part of a negation.
    """

    def __init__(self, schema: Mapping[str, object], place: Place, *, quiet: bool = False) -> None:
        super().__init__(schema)
        self.place, self.quiet = place, quiet


class Excluded(dict[str, object]):
    """`{"not": {"enum": [...]}}`, for values of one type or of any, which is written when everything else is done."""

    def __init__(self, values: Sequence[object], kind: str = "") -> None:
        super().__init__({"not": {"enum": list(values)}})
        self.values_, self.kind = tuple(values), kind

    def written(self, place: Place) -> object:
        """The same without `not`."""
        parts: list[object] = []
        for kind in (self.kind,) if self.kind else KINDS:
            those = [value for value in self.values_ if kind_of(value) == kind]
            if not those:
                parts.append({"type": kind})
            elif kind == "string":
                parts.append({"type": kind, "pattern": other_texts([str(text) for text in those], place)})
            else:
                ranges = other_numbers(those) if kind == "number" else _others(kind, those)
                parts += [{"type": kind, **told} for told in ranges if isinstance(told, dict)]
        return {"anyOf": parts} if parts else False


def positive(schema: object, place: Place) -> Options:
    """The values that a schema allows."""
    if isinstance(schema, bool):
        return everything() if schema else nothing()
    if not isinstance(schema, Mapping):
        raise RequestError(f"a schema must be an object, true or false, but the one at {place.path} is not")
    kinds = kinds_named(schema.get("type", list(KINDS))) or KINDS  # what is wrong with it is said where it is read
    way = ((schema if isinstance(schema, At) else At(schema, place),),)
    return {kind: way if kind in kinds else () for kind in KINDS}


def quiet(options: Options, place: Place) -> Options:
    """The options, none of which evaluates anything."""

    def silenced(schema: object) -> object:
        if not isinstance(schema, dict) or isinstance(schema, Excluded):
            return schema
        return At(schema, schema.place if isinstance(schema, At) else place, quiet=True)

    return {kind: tuple(tuple(map(silenced, way)) for way in ways) for kind, ways in options.items()}


def without(name: str) -> dict[str, object]:
    """An object that lacks a property."""
    return {"properties": {name: False}}


def at_item(schema: object, index: int) -> dict[str, object]:
    """An array with an item at this place that matches."""
    return {"prefixItems": [*[True] * index, schema], "minItems": index + 1}


def _others(kind: str, values: Sequence[object]) -> list[object]:
    """Schemas of the values of a type that are none of these: not of all of them, for arrays and objects."""
    match kind:
        case "null":
            return []
        case "boolean":
            return [{"const": value} for value in (True, False) if value not in values]
        case "string" | "number":
            return [Excluded(values, kind)]
        case "array":
            return [{"minItems": 1 + max(len(value) for value in values if isinstance(value, list))}]
    return [{"minProperties": 1}] if all(value == {} for value in values) else []


def other_numbers(values: Sequence[object]) -> list[dict[str, object]]:
    """The ranges between numbers."""
    ends = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    between = [{"exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(ends)]
    return [{"exclusiveMaximum": ends[0]}, *between, {"exclusiveMinimum": ends[-1]}]  # type: ignore[list-item]


def other_texts(texts: Sequence[str], place: Place) -> str:
    """A regular expression, anchored at both ends, for any text but these."""
    if sum(map(len, texts)) > MAX_EXCLUDED or max(map(len, texts)) > MAX_EXCLUDED_EACH:
        raise RequestError(f"the values at {place.path} are too long to be excluded")
    return f"^(?:{_unlike(sorted(set(texts)))})$"


def _unlike(texts: Sequence[str]) -> str:
    """Any text but these, which are in order and all different."""
    first, last = texts[0], texts[-1]
    n_shared = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    shared = first[:n_shared]
    options = [f"{_codes(shared[:n])}(?:[^{_code(shared[n])}]{_REST})?" for n in range(len(shared))]
    rests = [text[len(shared) :] for text in texts]
    firsts = sorted({rest[0] for rest in rests if rest})
    if not firsts:
        return "|".join([*options, f"{_codes(shared)}[\\s\\S]+"])
    further = [] if "" in rests else [""]
    further.append(f"[^{_codes(firsts)}]{_REST}")
    further += [f"{_code(char)}(?:{_unlike([r[1:] for r in rests if r.startswith(char)])})" for char in firsts]
    return "|".join([*options, f"{_codes(shared)}(?:{'|'.join(further)})"])


def _codes(chars: Sequence[str]) -> str:
    return "".join(map(_code, chars))


def _code(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _says_nothing(schema: JsonObject, key: str) -> bool:
    if key == "format":
        return not isinstance(schema[key], str) or schema[key] not in PATTERNS
    if key == "uniqueItems":
        return schema[key] is False
    return key in ANNOTATIONS or key not in KNOWN or key in {"then", "else"} or (key == "minContains")


def _list(schema: JsonObject, key: str, place: Place) -> list[object]:
    value = schema[key]
    if not isinstance(value, list) or not value:
        raise RequestError(f'"{key}" at {place.path} must be a list of schemas, and not an empty one')
    return value


def _map(schema: JsonObject, key: str, place: Place) -> dict[str, object]:
    value = schema[key]
    if not isinstance(value, dict):
        raise RequestError(f'"{key}" at {place.path} must be an object')
    return value
