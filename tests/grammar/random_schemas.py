"""Random JSON schemas: small, nested, often contradictory."""

from __future__ import annotations

import json
import random
from typing import Any

Schema = dict[str, Any]

_PATTERNS = ["^[a-z]+$", "\\d", "^a|b$", "^(x|yy){1,3}$", "[^abc]", "\\w\\s", "^.$", "^\\S+$", "a{2,}"]
_FORMATS = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "uri", "duration", "weird"]
_VALUES = ["a", "b\n", "é", 1, 2.5, None, True, {"x": 1}, [1, "2"], -3, "", 0]
_NAMES = ["a", "b", "c", "d e", "é", 'q"', "$ref"]


def random_schema(dice: random.Random) -> Schema:
    """A schema with three definitions, x, y and z."""
    schema = {"allOf": [_any(dice, 0)]} if dice.random() < 0.2 else _any(dice, 0)
    copied: Schema = json.loads(json.dumps(schema))
    return {**copied, "$defs": {name: _any(dice, 2) for name in "xyz"}}


def _any(dice: random.Random, depth: int) -> Schema:
    makers = [_string, _number, _plain, _values, _loose]
    if depth < 4:
        makers += [_object, _array, _object, _array, _combined, _combined, _reference, _conditional]
    return dice.choice(makers)(dice, depth)


def _string(dice: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    if dice.random() < 0.3:
        schema["minLength"] = dice.randint(0, 4)
    if dice.random() < 0.3:
        schema["maxLength"] = dice.randint(2, 9)
    if dice.random() < 0.25:
        schema["pattern"] = dice.choice(_PATTERNS)
    if dice.random() < 0.15:
        schema["format"] = dice.choice(_FORMATS)
    return schema


def _number(dice: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": dice.choice(["integer", "number"])}
    if dice.random() < 0.4:
        schema[dice.choice(["minimum", "exclusiveMinimum"])] = dice.choice([0, -5, 3, -1.5, 2.25, 1e-3, -1e20, 0.1])
    if dice.random() < 0.4:
        schema[dice.choice(["maximum", "exclusiveMaximum"])] = dice.choice([10, 7.5, 1e6, 12, 5.0, 1e19, 3.5])
    if dice.random() < 0.25:
        schema["multipleOf"] = dice.choice([2, 3, 0.5, 0.01, 7, 2.5, 10])
    return schema


def _plain(dice: random.Random, depth: int) -> Schema:
    return {"type": dice.choice(["boolean", "null"])}


def _values(dice: random.Random, depth: int) -> Schema:
    if dice.random() < 0.5:
        return {"const": dice.choice(_VALUES)}
    return {"enum": dice.sample(_VALUES, dice.randint(1, 4))}


def _loose(dice: random.Random, depth: int) -> Schema:
    several: Schema = {"type": dice.sample(["string", "integer", "null", "array", "object", "number"], 2), "minimum": 1}
    return dice.choice([{}, {"description": "x"}, {"minimum": 3}, {"pattern": "^a"}, {"required": ["a"]}, several])


def _object(dice: random.Random, depth: int) -> Schema:
    names = dice.sample(_NAMES, dice.randint(0, 4))
    schema: Schema = {"type": "object", "properties": {name: _any(dice, depth + 1) for name in names}}
    extras: list[tuple[float, str, Any]] = [
        (0.6, "required", dice.sample(names, dice.randint(0, len(names)))),
        (0.3, "additionalProperties", dice.choice([False, True, {"type": "integer"}])),
        (0.1, "patternProperties", {dice.choice(["^x", "b", "^[0-9]+$"]): _any(dice, depth + 1)}),
        (0.1, "minProperties", dice.randint(0, 3)),
        (0.1, "maxProperties", dice.randint(0, 3)),
        (0.1, "propertyNames", dice.choice([{"pattern": "^[a-c]$"}, {"maxLength": 2}, {"enum": ["a", "k"]}, True])),
    ]
    schema |= {key: value for chance, key, value in extras if dice.random() < chance}
    if dice.random() < 0.1:
        del schema["type"]
    return schema


def _array(dice: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array"}
    if dice.random() < 0.7:
        schema["items"] = _any(dice, depth + 1)
    if dice.random() < 0.3:
        schema["prefixItems"] = [_any(dice, depth + 1) for _ in range(dice.randint(1, 3))]
    if dice.random() < 0.3:
        schema["minItems"] = dice.randint(0, 3)
    if dice.random() < 0.4:
        schema["maxItems"] = dice.randint(0, 4)
    return schema


def _reference(dice: random.Random, depth: int) -> Schema:
    return {"$ref": "#/$defs/" + dice.choice("xyz"), **({"minLength": 1} if dice.random() < 0.2 else {})}


def _conditional(dice: random.Random, depth: int) -> Schema:
    """A schema with a keyword that depends on something else."""

    def inner() -> Schema:
        return _any(dice, depth + 2)

    name, other = dice.sample(_NAMES, 2)
    pairs: list[tuple[Schema, Schema]] = [
        (_object(dice, depth + 1), {"if": _test(dice, depth), "then": _test(dice, depth), "else": inner()}),
        (_object(dice, depth + 1), {"if": _test(dice, depth), "then": {"required": [other]}}),
        (_object(dice, depth + 1), {"dependentRequired": {name: [other]}}),
        (_object(dice, depth + 1), {"dependentSchemas": {name: _test(dice, depth)}}),
        (_object(dice, depth + 1), {"not": _test(dice, depth)}),
        (_object(dice, depth + 1), {"anyOf": [_test(dice, depth), _test(dice, depth)]}),
        (_object(dice, depth + 1), {"oneOf": [_test(dice, depth), _test(dice, depth)]}),
        (
            _object(dice, depth + 1),
            {"unevaluatedProperties": False, "allOf": [_test(dice, depth), _object(dice, 3)]},
        ),
        (_array(dice, depth + 1), {"contains": inner()}),
        (_array(dice, depth + 1), {"contains": _number(dice, depth), "maxContains": dice.randint(0, 2)}),
        ({"type": "array", "items": {"enum": dice.sample(_VALUES, 3)}}, {"uniqueItems": True}),
        (_string(dice, depth), {"not": _values(dice, depth)}),
        (_number(dice, depth), {"not": _values(dice, depth)}),
        ({}, {"not": inner()}),
        ({}, {"if": inner(), "then": inner(), "else": inner()}),
    ]
    schema, extra = dice.choice(pairs)
    return {**schema, **extra}


def _test(dice: random.Random, depth: int) -> Schema:
    """What a condition usually looks at: a property, and what it is."""
    name, other = dice.sample(_NAMES, 2)
    return dice.choice(
        [
            {"properties": {name: _values(dice, depth)}},
            {"properties": {name: _values(dice, depth)}, "required": [name]},
            {"required": [name]},
            {"required": [name, other]},
            {"properties": {name: _any(dice, depth + 2), other: _plain(dice, depth)}},
            {"not": {"required": [name]}},
            {"$ref": "#/$defs/x"},
        ]
    )


def _combined(dice: random.Random, depth: int) -> Schema:
    key = dice.choice(["anyOf", "allOf", "oneOf"])
    schema: Schema = {key: [_any(dice, depth + 1) for _ in range(dice.randint(1, 3))]}
    if dice.random() < 0.3:
        schema["type"] = dice.choice(["object", "string", "integer"])
    return schema


def explicit(schema: Any) -> Any:
    """The schema with everything said that would be narrowed otherwise: types, further properties, their order."""
    if isinstance(schema, list):
        return [explicit(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    told: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "dependentSchemas", "patternProperties"):
            told[key] = {name: explicit(value[name]) for name in sorted(value)}
        else:
            told[key] = value if key in ("const", "enum", "required", "dependentRequired") else explicit(value)
    if "properties" in told or told.get("type") == "object":
        told.setdefault("additionalProperties", True)
    kinds = {"minimum": "number", "pattern": "string"}
    objects = {"required", "properties", "additionalProperties", "minProperties", "maxProperties", "propertyNames"}
    if told.keys() & objects:
        told.setdefault("type", "object")
    elif len(told.keys() - {"$defs"}) == 1 and (kind := next((kinds[key] for key in told if key in kinds), "")):
        told["type"] = kind
    return told
