"""Random values for a schema: many are valid, and those that are not tell as much."""

from __future__ import annotations

import random
from typing import Any

_TEXTS = ["", "a", "b", "ab", "x1", "b\n", "é", "abcd", "xyy", "2024-02-29", "1.2.3.4", "a b", "0", "yyx", "😀"]
_NUMBERS = [0, 1, 3, -3, 4, 2.5, 7, 10, -5, 0.5, 12, 1.25, 100]
_NAMES = ["a", "b", "c", "d e", "é", 'q"', "$ref", "x1", "9", "k"]


def random_value(dice: random.Random, schema: Any, root: Any, depth: int = 0) -> Any:
    """A value that has been made with a look at the schema, its properties in the schema's order."""
    if not isinstance(schema, dict) or depth > 5 or dice.random() < 0.05:
        return _anything(dice, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    schema = _flat(dice, schema, root)
    kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else None)
    if isinstance(kind, list):
        kind = dice.choice(kind)
    if "const" in schema or "enum" in schema:
        return random_value(dice, {key: schema[key] for key in ("const", "enum") if key in schema}, root, depth)
    return _of_kind(dice, kind, schema, root, depth)


def _of_kind(dice: random.Random, kind: Any, schema: dict[str, Any], root: Any, depth: int) -> Any:
    match kind:
        case "object":
            return _object(dice, schema, root, depth)
        case "array":
            prefix = schema.get("prefixItems", [])
            n = dice.choice([len(prefix), schema.get("minItems", 0), dice.randint(0, 4)])
            items = [*prefix, *[schema.get("items", True)] * n][:n]
            return [random_value(dice, item, root, depth + 1) for item in items]
        case "string":
            return dice.choice(_TEXTS)
        case "integer" | "number":
            return dice.choice([*_NUMBERS, *(schema[key] for key in ("minimum", "maximum") if key in schema)])
        case "boolean" | "null":
            return dice.choice([True, False]) if kind == "boolean" else None
    return _anything(dice, depth)


def _flat(dice: random.Random, schema: dict[str, Any], root: Any) -> dict[str, Any]:
    """The schema with one way through its combinators laid over it."""
    for _ in range(4):
        layers = [schema[key] for key in ("then", "else") if key in schema and dice.random() < 0.5]
        if "$ref" in schema:
            layers.append(root["$defs"].get(schema["$ref"].rpartition("/")[2], {}))
        layers += schema.get("allOf", [])
        layers += [dice.choice(schema[key]) for key in ("anyOf", "oneOf") if key in schema]
        layers = [layer for layer in layers if isinstance(layer, dict)]
        if not layers:
            break
        over: dict[str, Any] = {
            key: value
            for key, value in schema.items()
            if key not in ("$ref", "allOf", "anyOf", "oneOf", "then", "else")
        }
        for layer in layers:
            properties = {**over.get("properties", {}), **layer.get("properties", {})}
            required = [*over.get("required", []), *layer.get("required", [])]
            over = {**layer, **over, "properties": properties, "required": required}
        schema = over
    return schema


def _object(dice: random.Random, schema: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    names = [name for name in properties if name in required or dice.random() < 0.4]
    names += [name for name in required if name not in properties]
    if dice.random() < 0.3:
        names.append(dice.choice(_NAMES))
    rest = schema.get("additionalProperties", True)
    return {name: random_value(dice, properties.get(name, rest), root, depth + 1) for name in dict.fromkeys(names)}


def _anything(dice: random.Random, depth: int) -> Any:
    if depth < 2 and dice.random() < 0.2:
        return {dice.choice(_NAMES): _anything(dice, depth + 1)}
    if depth < 2 and dice.random() < 0.2:
        return [_anything(dice, depth + 1) for _ in range(dice.randint(0, 3))]
    return dice.choice([*_TEXTS[:8], *_NUMBERS[:6], None, True, False, {}, []])
