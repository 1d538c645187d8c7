"""What a format has to know of a tool's JSON schema: its arguments, which are required, which are plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats.format import Tool
from minka.errors import RequestError

Schema = Mapping[str, object]

NOTES = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "examples", "default"})
_FLAT = frozenset({"type", "properties", "required", "additionalProperties"}) | NOTES
MAX_REFS = 32


TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
TEXT = frozenset({"string"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool. `schema` stands on its own: it has the definitions that it refers to.

    `types` are the JSON types that a value may have; only strings are written without quotes.
    """

    name: str
    schema: Schema
    types: frozenset[str]
    required: bool

    @property
    def is_loose(self) -> bool:
        """Whether every text is a valid value: the schema says types and no more, the string among them."""
        return "string" in self.types and _is_loose(self.schema, self.schema, MAX_REFS)


def object_schema(tool: Tool) -> Schema:
    """The schema of all arguments. What it does not say of further ones is no: models fill in what they may."""
    schema = tool.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    is_plain = set(schema) <= _FLAT and "properties" in schema
    return {**schema, "additionalProperties": False} if is_plain and "additionalProperties" not in schema else schema


def arguments(tool: Tool) -> tuple[Argument, ...]:
    """The arguments one by one, in order, for formats that write them so.

    Raises RequestError for a schema that says more than what each argument is: it could not be kept to.
    """
    root = resolved(tool.parameters, tool.parameters)
    if extra := sorted(set(root) - _FLAT):
        raise RequestError(
            f"the parameters of the tool {tool.name!r} have {extra[0]!r} at their top, which this model's way of "
            "writing calls has no place for: describe the arguments by 'properties' and 'required' alone",
            param=tool.path,
        )
    properties, required = root.get("properties", {}), root.get("required", ())
    assert isinstance(properties, Mapping), "checked when the request was read"
    assert isinstance(required, Sequence), "checked when the request was read"
    defs = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return tuple(
        Argument(name, {**schema_of(schema), **defs}, types_of(schema_of(schema), tool.parameters), name in required)
        for name, schema in properties.items()
    )


def is_free(tool: Tool) -> bool:
    """Whether the tool takes any arguments, as it names none and does not say that it has none."""
    return bool(tool.parameters) and "properties" not in resolved(tool.parameters, tool.parameters)


def argument_types(tool: Tool) -> Mapping[str, frozenset[str]]:
    """The types that each argument of the tool may have."""
    properties = resolved(tool.parameters, tool.parameters).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: types_of(schema_of(schema), tool.parameters) for name, schema in properties.items()}


def types_of(schema: Schema, root: Schema) -> frozenset[str]:
    """The JSON types that a value of this schema may have, as far as it says."""
    return frozenset(_types(schema, root, MAX_REFS))


def type_of(value: object) -> str:
    """The JSON type of a value; a whole number is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def is_of(value: object, types: frozenset[str]) -> bool:
    """Whether a value has one of the types."""
    return bool({type_of(value)} & types) or (type_of(value) == "integer" and "number" in types)


def _types(schema: Schema, root: Schema, depth: int) -> set[str]:
    schema = resolved(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {type_of(value) for value in values}
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list) and depth:
            return set().union(*(_types(schema_of(option), root, depth - 1) for option in options))
    types = schema.get("type")
    if isinstance(types, str):
        return {types}
    if isinstance(types, list):
        return {type_ for type_ in types if isinstance(type_, str)}
    if {"properties", "additionalProperties"} & set(schema):
        return {"object"}
    return {"array"} if {"items", "prefixItems"} & set(schema) else set(TYPES)


def _is_loose(schema: Schema, root: Schema, depth: int) -> bool:
    schema = resolved(schema, root)
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list) and depth:
        return set(schema) <= {"anyOf"} | NOTES and all(_is_loose(schema_of(o), root, depth - 1) for o in options)
    return set(schema) <= {"type"} | NOTES


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema itself, or what it refers to."""
    for _ in range(MAX_REFS):
        ref = schema.get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#"):
            return schema
        place: object = root
        for step in ref[1:].split("/")[1:]:
            place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
        if not isinstance(place, Mapping):
            return schema
        schema = {**place, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {}


def schema_of(value: object) -> Schema:
    """A subschema; true is any value."""
    return value if isinstance(value, Mapping) else {}
