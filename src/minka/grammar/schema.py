"""A JSON schema as a grammar can hold it: checked keyword by keyword, and narrowed where that keeps it exact.

What comes out allows nothing that the schema forbids; what cannot be held is refused, with its place. Narrower than
the schema are: numbers (no exponent, 18 digits in front of the point and 10 behind it), objects that declare properties
and say nothing about others (none are added), and schemas that only speak of one type without naming it (that type).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from minka.errors import RequestError
from minka.grammar.conditions import Conditions
from minka.grammar.keywords import BY_TYPE, COMBINATORS, ENFORCED, KNOWN, MEANT, TYPES, UNSUPPORTED, fold
from minka.grammar.merging import Both, Merging
from minka.grammar.narrow import Place, Rules, narrow_array, narrow_number, narrow_object, narrow_string, narrow_values
from minka.grammar.negation import At, Excluded
from minka.grammar.refs import Refs, Target
from minka.grammar.shortest import MAX_FIXED, of_schema

MAX_DEPTH = 60
"""Schemas inside of each other; libraries that read JSON stop at about a hundred levels."""

MAX_SCHEMAS = 20_000
"""Schemas in one document, counted where they are used."""

JsonObject = Mapping[str, object]


class Mode(NamedTuple):
    """What may be narrowed at a place.

    `free`: nothing else has a say about the value, so that a type may be implied and further properties left out, and
    digits may be limited. In a schema that is merged with others (allOf, siblings of a $ref) that would contradict.
    """

    free: bool


_ANY_NAME = "any"
_ANY = {"$ref": f"#/$defs/{_ANY_NAME}"}


def narrow(schema: object, *, param: str, strict: bool = False) -> dict[str, object]:
    """The schema in the words that the grammar compiler knows exactly. `strict`: an unknown `format` is an error.

    Raises RequestError, which names `param`, the place as a JSON pointer, and the keyword.
    """
    try:
        return _Walk(schema, strict=strict).whole()
    except RequestError as error:
        raise RequestError(f'"{param}": {error.message}', param=param) from None


class _Walk:
    """One pass over a schema. Definitions are visited when something refers to them."""

    def __init__(self, root: object, *, strict: bool) -> None:
        self._root, self._strict = root, strict
        self._refs = Refs(root)
        self._conditions = Conditions(self._refs, _check_keywords)
        self._merging = Merging(self._refs)
        self._names: dict[tuple[str, Mode], str] = {}
        self._open: list[tuple[str, object, Place, Mode]] = []
        self._definitions: dict[str, object] = {}
        self._places: dict[str, str] = {}
        self._n_schemas = 0
        self._steps: dict[Fraction, str] = {}

    def whole(self) -> dict[str, object]:
        """The narrowed root with all definitions that it needs."""
        root = self.visit(self._root, Place("#", 0, self._refs.base), Mode(free=True))
        while self._open:
            name, schema, place, mode = self._open.pop()
            self._definitions[name] = self.visit(schema, place, mode)
        if root is False:
            raise RequestError("the schema at # allows no value, or its conditions contradict each other")
        if _mentions_any(root) or any(map(_mentions_any, self._definitions.values())):
            self._definitions[_ANY_NAME] = _any_schema()
        whole = {"$ref": f"#/$defs/{_ANY_NAME}"} if root is True else dict(root)  # type: ignore[call-overload]
        if self._definitions:
            whole["$defs"] = self._definitions
        _check_steps(self._steps)
        if of_schema(whole) > MAX_FIXED:
            raise RequestError(f"the schema at # allows no text of less than {MAX_FIXED} characters")
        dead = _without_end(whole, self._places, self._conditions.contradictions)
        return {key: _pruned(value, dead) for key, value in whole.items()} if dead else whole

    def visit(self, schema: object, place: Place, mode: Mode) -> object:
        """One schema, narrowed: an object or a boolean."""
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise RequestError(f"the schema has more than {MAX_SCHEMAS} schemas in it")
        if place.depth > MAX_DEPTH:
            raise RequestError(f"the schema at {place.path} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, bool):
            return dict(_ANY) if schema and mode.free else schema
        if not isinstance(schema, dict):
            raise RequestError(f"a schema must be an object, true or false, but the one at {place.path} is not")
        if isinstance(schema, Excluded):
            return self.visit(schema.written(place), place, Mode(free=False))
        if isinstance(schema, Both) and schema.name:
            return self._named(Target(schema.name, dict(schema), place.base), mode)
        if isinstance(schema, At):
            place = schema.place._replace(depth=place.depth)
        place = place._replace(base=self._refs.base_of(schema, place.base))
        _check_keywords(schema, place)
        simpler = self._simpler(schema, place, mode)
        return self._narrowed(schema, place, mode) if simpler is None else self.visit(simpler, place, mode)

    def _simpler(self, schema: JsonObject, place: Place, mode: Mode) -> object:
        """The schema without conditions, or with its combinators merged into it; None if there is nothing to do."""
        if self._conditions.has(schema):
            return self._conditions.rewritten(schema, place, free=mode.free)
        if "unevaluatedItems" in schema:
            return self._merging.arrays(schema, place)
        asserted = [key for key in schema if key in ENFORCED]
        if asserted in (["$ref"], ["anyOf"], ["oneOf"]) or not schema.keys() & COMBINATORS:
            return None
        objects = self._merging.objects(schema, place, free=mode.free)
        if objects is not None:
            return objects[0] if len(objects) == 1 else {"anyOf": objects}
        parts = schema.get("allOf")
        return self._merging.values(parts) if asserted == ["allOf"] and isinstance(parts, list) else None

    def _narrowed(self, schema: JsonObject, place: Place, mode: Mode) -> object:
        """A schema for which nothing simpler is known."""
        asserted = [key for key in schema if key in ENFORCED]
        if not asserted:
            return dict(_ANY) if mode.free else True
        if len(asserted) == 1 and asserted[0] in COMBINATORS:
            return self._sole(asserted[0], schema, place, mode)
        if any(key in COMBINATORS for key in asserted):
            mode = Mode(free=False)
        return self._merged(schema, place, mode)

    def _sole(self, key: str, schema: JsonObject, place: Place, mode: Mode) -> object:
        """A schema that consists of one combinator: its parts stand for themselves."""
        parts = schema[key]
        if key == "allOf" and isinstance(parts, list) and len(parts) == 1:
            return self.visit(parts[0], place.at(key, "0"), mode)
        return self._combinator(key, parts, place, Mode(free=False) if key == "allOf" else mode)

    def _combinator(
        self, key: str, value: object, place: Place, mode: Mode, within: Sequence[str] = TYPES
    ) -> dict[str, object]:
        """One combinator; `within` are the types that its keywords' neighbours leave."""
        if key in {"$ref", "$dynamicRef", "$recursiveRef"}:
            return self._reference(key, value, place, mode)
        if not isinstance(value, list) or not value:
            raise RequestError(f'"{key}" at {place.path} must be a list of schemas, and not an empty one')
        if key == "oneOf":
            exclusive = self._conditions.exclusive(value, place, within or TYPES)
            if exclusive is not None:
                return {"allOf": [self.visit(exclusive, place, Mode(free=False))]}
        parts = [self.visit(part, place.at(key, str(index)), mode) for index, part in enumerate(value)]
        return {"anyOf" if key == "oneOf" else key: parts}

    def _reference(self, key: str, value: object, place: Place, mode: Mode) -> dict[str, object]:
        if not isinstance(value, str):
            raise RequestError(f'"{key}" at {place.path} must be a string')
        resolve = self._refs.resolve if key == "$ref" else self._refs.resolve_dynamic
        target = resolve(value, place.path, place.base)
        return self._named(target, mode)

    def _named(self, target: Target, mode: Mode) -> dict[str, object]:
        """A reference to a definition, which is visited later if that has not been done."""
        known = (target.pointer, mode)
        name = self._names.get(known)
        if name is None:
            name = self._names[known] = str(len(self._names))
            self._places[name] = target.pointer
            self._open.append((name, target.schema, Place(target.pointer, 0, target.base), mode))
        return {"$ref": f"#/$defs/{name}"}

    def _merged(self, schema: JsonObject, place: Place, mode: Mode) -> dict[str, object]:
        """A schema with keywords of its own."""
        out: dict[str, object] = {}
        types = _types(schema, place)
        if not types and mode.free and "enum" not in schema and "const" not in schema:
            spoken = [name for name, words in BY_TYPE.items() if words & schema.keys()]
            types = spoken if len(spoken) == 1 else []
        if types:
            out["type"] = types[0] if len(types) == 1 else types
        narrow_values(schema, place, out)
        rules = Rules(free=mode.free, strict=self._strict, types=frozenset(types or TYPES), visit=self._child)
        for key in (key for key in schema if key in COMBINATORS):
            out |= self._with(out, self._combinator(key, schema[key], place, mode, within=types))
        if "enum" not in schema and "const" not in schema:
            narrow_string(schema, place, rules, out)
            narrow_number(schema, place, rules, out)
        else:
            narrow_string(schema, place, rules._replace(free=False), out)
            narrow_number(schema, place, rules._replace(free=False, types=frozenset()), out)
        if not mode.free and isinstance(step := out.get("multipleOf"), int | float):
            self._steps.setdefault(Fraction(repr(step)), place.path)
        narrow_array(schema, place, rules, out)
        narrow_object(schema, place, rules, out)
        return out

    def _child(self, schema: object, place: Place, *, free: bool) -> object:
        return self.visit(schema, place, Mode(free))

    @staticmethod
    def _with(out: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
        """Two combinators of the same name (anyOf next to oneOf) become parts of allOf."""
        if not out.keys() & more.keys():
            return dict(more)
        have = out.get("allOf", [])
        assert isinstance(have, list)
        extra = more["allOf"] if "allOf" in more else [dict(more)]
        assert isinstance(extra, list)
        return {"allOf": [*have, *extra]}


def _check_keywords(schema: JsonObject, place: Place) -> None:
    for key in schema:
        if key in UNSUPPORTED:
            raise RequestError(f'the keyword "{key}" at {place.path} is not supported')
        if key not in KNOWN and (meant := MEANT.get(fold(key))) is not None:
            raise RequestError(f'the keyword "{key}" at {place.path} is unknown; "{meant}" is what it looks like')


def _types(schema: JsonObject, place: Place) -> list[str]:
    value = schema.get("type")
    if value is None and "type" not in schema:
        return []
    types = value if isinstance(value, list) else [value]
    if not types or any(not isinstance(name, str) or name not in TYPES for name in types):
        raise RequestError(f'"type" at {place.path} must be one or several of {", ".join(TYPES)}')
    return list(dict.fromkeys(types))


def _check_steps(steps: Mapping[Fraction, str]) -> None:
    """Where schemas are merged, the compiler takes the least common multiple of two steps, in 32 bits."""
    scale = math.lcm(*(step.denominator for step in steps))
    if len(steps) > 1 and math.lcm(*(int(step * scale) for step in steps)) * scale >= 65_536:
        raise RequestError(
            f'"multipleOf" at {" and ".join(list(steps.values())[:2])}: the values that are combined have too many '
            "digits to be supported"
        )


def _mentions_any(schema: object) -> bool:
    """Whether a narrowed schema refers to the definition of any value."""
    open_values = [schema]
    while open_values:
        match open_values.pop():
            case dict() as value:
                if value == _ANY:
                    return True
                open_values.extend(value.values())
            case list() as values:
                open_values.extend(values)
    return False


def _any_schema() -> dict[str, object]:
    """Any JSON value, its numbers bounded in length."""
    number: dict[str, object] = {"type": "number"}
    place = Place("#", 0)

    def visit(schema: object, place: Place, *, free: bool) -> object:
        return schema

    narrow_number(number, place, Rules(free=True, strict=False, types=frozenset({"number"}), visit=visit), number)
    return {
        "anyOf": [
            {"type": ["null", "boolean", "string"]},
            number,
            {"type": "array", "items": dict(_ANY)},
            {"type": "object", "additionalProperties": dict(_ANY)},
        ]
    }


# -- recursion that can never end --------------------------------------------------------------------------------------


def _without_end(whole: JsonObject, places: Mapping[str, str], contradictions: Sequence[str]) -> set[str]:
    """The definitions of which every value would have to hold another one inside, without end.

    Raises RequestError for a schema that cannot do without them.
    """
    definitions = whole.get("$defs", {})
    assert isinstance(definitions, dict)
    users: dict[str, set[str]] = {name: set() for name in definitions}
    for name, schema in definitions.items():
        for used in _referred(schema) & users.keys():
            users[used].add(name)
    done: set[str] = set()
    open_names = list(definitions)
    while open_names:
        name = open_names.pop()
        if name not in done and _ends(definitions[name], done):
            done.add(name)
            open_names += users[name] - done
    if not _ends(whole, done):
        stuck = (places[name] for name in definitions if name not in done and name in places)
        place = [*contradictions, *stuck, "#"][0]
        raise RequestError(
            f"no value can satisfy the schema at {place}: it is false, contradicts itself, or requires itself again"
        )
    return definitions.keys() - done


def _pruned(schema: object, dead: set[str]) -> object:
    """A narrowed schema in which references to some definitions are `false`."""
    if isinstance(schema, list):
        return [_pruned(part, dead) for part in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.rpartition("/")[2] in dead:
        return False
    return {key: value if key in {"const", "enum"} else _pruned(value, dead) for key, value in schema.items()}


def _referred(schema: object) -> set[str]:
    """The definitions that a narrowed schema refers to."""
    found: set[str] = set()
    open_values = [schema]
    while open_values:
        match open_values.pop():
            case dict() as value:
                reference = value.get("$ref")
                if isinstance(reference, str):
                    found.add(reference.rpartition("/")[2])
                open_values.extend(value.values())
            case list() as values:
                open_values.extend(values)
    return found


def _ends(schema: object, done: set[str]) -> bool:
    """Whether a value of the narrowed schema can be finite, given the definitions that have finite values."""
    if not isinstance(schema, dict):
        return bool(schema)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.rpartition("/")[2] not in done:
        return False
    if not all(_ends(part, done) for part in _list(schema, "allOf")):
        return False
    choices = _list(schema, "anyOf")
    if choices and not any(_ends(part, done) for part in choices):
        return False
    kinds = schema.get("type")
    if kinds == "object":
        return _object_ends(schema, done)
    if kinds == "array":
        return _array_ends(schema, done)
    return True


def _object_ends(schema: JsonObject, done: set[str]) -> bool:
    properties = schema.get("properties")
    declared = properties if isinstance(properties, dict) else {}
    return all(
        _ends(declared[name] if name in declared else schema.get("additionalProperties", True), done)
        for name in _list(schema, "required")
        if isinstance(name, str) and (name in declared or "patternProperties" not in schema)
    )


def _array_ends(schema: JsonObject, done: set[str]) -> bool:
    least = schema.get("minItems", 0)
    prefix = _list(schema, "prefixItems")
    if not isinstance(least, int) or not least:
        return True
    needed = [*prefix[:least], *([schema.get("items", True)] if least > len(prefix) else [])]
    return all(_ends(item, done) for item in needed)


def _list(schema: JsonObject, key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
