"""JSON Schema as the API's description needs it: a few constructors, and the schema of a row of the parameter table.

Knows no route. Every field takes null, which is the same as leaving it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from minka.params import Kind, Row, Syntax

Schema = Mapping[str, object]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
TOKEN: Schema = {"type": "integer", "minimum": 0}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body that a protocol reads itself, with its schema and its doc line."""

    name: str
    schema: Schema
    doc: str
    required: bool = False


def ref(name: str) -> Schema:
    """The schema of that name among the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(item: Schema, **limits: int) -> Schema:
    """An array; `limits` are minItems and maxItems."""
    return {"type": "array", "items": item, **limits}


def either(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": list(schemas)}


def word(*words: str) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(words)}


def between(low: int, high: int) -> Schema:
    """An integer in a range, ends included."""
    return {"type": "integer", "minimum": low, "maximum": high}


def record(**members: Schema) -> Schema:
    """An object of an answer. Members that are not always there are told of in the text, not here."""
    return {"type": "object", "properties": members}


def body_of(fields: tuple[Field, ...]) -> Schema:
    """The object that a request's body has to be."""
    schema: dict[str, object] = {"type": "object", "properties": {field.name: _property(field) for field in fields}}
    if required := [field.name for field in fields if field.required]:
        schema["required"] = required
    return schema


def _property(field: Field) -> Schema:
    schema = field.schema if field.required else or_null(field.schema)
    return {**schema, "description": field.doc}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    match schema:
        case {"enum": list(words)}:
            return {"enum": [*words, None]}
        case {"type": str(kind)}:
            return {**schema, "type": [kind, "null"]}
        case {"anyOf": list(choices)}:
            return {**schema, "anyOf": [*choices, NULL]}
        case _:
            return {"anyOf": [schema, NULL]} if schema else schema


# -- the parameter table -----------------------------------------------------------------------------------------------


def row_properties(row: Row, default: object) -> dict[str, Schema]:
    """A row's request fields by name, the first one with the text and the others pointing to it.

    `default` is the server's. `x-range` is the range for a person; `minimum` and `maximum` are there only where a value
    outside is refused, not where it is limited.
    """
    schema = or_null(_row_schema(row))
    if not row.param.http:
        return {}
    name, *others = row.param.http
    told = {"description": row.param.doc, "default": _sent(default)}
    if row.range:
        told["x-range"] = row.range
    return {
        name: {**schema, **told},
        **{other: {**schema, "description": f"another name of {name}"} for other in others},
    }


def _sent(value: object) -> object:
    """A value of the table as a request has it: lists, and false for the bias that bans a token."""
    if isinstance(value, tuple):
        return [_sent(item) for item in value]
    return False if value == -inf else value


_ITEMS = {Kind.FLOATS: NUMBER, Kind.INTS: COUNT, Kind.FILES: TEXT}


def _row_schema(row: Row) -> Schema:
    match row.type:
        case Kind.BOOL:
            return FLAG
        case Kind.INT:
            return {"type": "integer", **_range(row)}
        case Kind.FLOAT:
            return {"type": "number", **_range(row)}
        case Kind.STRS:
            return _strings(row)
        case Kind.FLOATS | Kind.INTS | Kind.FILES:
            return listed(_ITEMS[row.type], maxItems=row.param.max_items)
        case Kind.BIASES:
            bias = either({"type": "number", **_range(row)}, {"const": False})
            pair = {"type": "array", "prefixItems": [either(TOKEN, TEXT), bias], "minItems": 2, "maxItems": 2}
            return either({"type": "object", "additionalProperties": bias}, listed(pair))
        case Kind.ADAPTERS:
            entry = record(id=TOKEN, scale={"type": "number", **_range(row)})
            return listed({**entry, "required": ["id"]}, maxItems=row.param.max_items)
        case Kind.STR:
            return word(*row.param.choices) if row.param.choices else TEXT


def _range(row: Row) -> dict[str, float]:
    """The bounds outside of which a value is refused."""
    param = row.param
    if param.low is None or param.high is None or param.clamp:
        return {}
    high = {"maximum": max((param.high, *param.besides))}
    return high if param.reset else {"minimum": min((param.low, *param.besides)), **high}


def _strings(row: Row) -> Schema:
    param = row.param
    limits = {"maxItems": param.max_items} | ({"minItems": param.min_items} if param.min_items else {})
    many = listed(TEXT, **limits)
    return either(TEXT, many) if param.lone or param.syntax is Syntax.SAMPLERS else many
