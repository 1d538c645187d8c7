"""Values that are written otherwise than in JSON, held to a JSON schema: Python's, Gemma's.

Where a schema has nothing in it that is written otherwise, JSON's own grammar does the work. Else it is rebuilt here,
for the keywords that tools use; one that is not known is an error, as it could not be kept to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.format import json_text
from minka.chat.formats.schema import NOTES, Schema, resolved, schema_of
from minka.errors import RequestError
from minka.grammar.marks import literal, mark

MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written. `quote`: the tag before and after a text, in which nothing is escaped; empty for JSON's
    strings. `bare_keys`: keys of objects have no quotes. `colon` and `comma` are what stands between.
    """

    true: str = "true"
    false: str = "false"
    null: str = "null"
    quote: str = ""
    bare_keys: bool = False
    colon: str = ": "
    comma: str = ", "

    def body(self, schema: Schema, rules: lark.Rules) -> str:
        """The rule body of a value. The schema has the definitions that it refers to. Raises RequestError."""
        return self._body(schema, schema, rules, 0)

    def _body(self, schema: Schema, root: Schema, rules: lark.Rules, depth: int) -> str:
        schema = resolved(schema, root)
        if depth > MAX_DEPTH:
            raise RequestError("the parameters of a tool refer to themselves or are nested too deeply", param="tools")
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return lark.either(self.value(value) for value in values)
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list):
                self._only(schema, key)
                return lark.either(self._body(schema_of(option), root, rules, depth + 1) for option in options)
        types = schema.get("type", list(_ANY) if not {"properties", "items"} & set(schema) else _implied(schema))
        kinds = [types] if isinstance(types, str) else list(types) if isinstance(types, Sequence) else []
        if not kinds:
            raise RequestError(f"a tool's parameters have the type {types!r}, which is none of JSON's", param="tools")
        return lark.either(self._typed(str(kind), schema, root, rules, depth) for kind in kinds)

    def _typed(self, kind: str, schema: Schema, root: Schema, rules: lark.Rules, depth: int) -> str:
        match kind:
            case "boolean":
                return lark.either((literal(self.true), literal(self.false)))
            case "null":
                return literal(self.null)
            case "string":
                return self._text(schema, rules)
            case "array":
                return rules.rule(self._array(schema, root, rules, depth))
            case "object":
                return rules.rule(self._object(schema, root, rules, depth))
            case _:
                numeric = {key: value for key, value in schema.items() if key in _NUMERIC}
                self._only(schema, "type", *_NUMERIC, *_OF_OTHERS)
                return rules.rule(lark.json_value({"type": kind, **numeric}))

    def _text(self, schema: Schema, rules: lark.Rules) -> str:
        bounds = {key: value for key, value in schema.items() if key in _TEXTUAL}
        if not self.quote:
            return rules.rule(lark.json_value({"type": "string", **bounds}))
        if not bounds.keys() - {"format"}:
            return lark.sequence(mark(self.quote), rules.until(self.quote))
        return lark.sequence(mark(self.quote), lark.bounded_text(bounds, self.quote, rules), mark(self.quote))

    def _array(self, schema: Schema, root: Schema, rules: lark.Rules, depth: int) -> str:
        self._only(schema, "type", "items", "minItems", "maxItems", *_OF_OTHERS)
        item = self._body(schema_of(schema.get("items", {})), root, rules, depth + 1) if depth < MAX_DEPTH else ""
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(low, int) or not isinstance(high, int | None) or (high is not None and high < low):
            raise RequestError("'minItems' and 'maxItems' of a tool's parameters contradict each other", param="tools")
        if high == 0:
            return lark.sequence(literal("["), literal("]"))
        more = f"({literal(self.comma)} {item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        inner = lark.sequence(item, more)
        return lark.sequence(literal("["), inner if low else lark.maybe(inner), literal("]"))

    def _object(self, schema: Schema, root: Schema, rules: lark.Rules, depth: int) -> str:
        self._only(schema, "type", "properties", "required", "additionalProperties", *_OF_OTHERS)
        properties, required = schema.get("properties"), schema.get("required", ())
        if not isinstance(properties, Mapping):
            return self._map(schema, root, rules, depth)
        assert isinstance(required, Sequence), "checked when the request was read"
        members = [
            (lark.sequence(self._key(name), self._body(schema_of(value), root, rules, depth + 1)), name in required)
            for name, value in self.ordered(properties)
        ]
        return lark.sequence(literal("{"), lark.members(members, literal(self.comma), rules), literal("}"))

    def _map(self, schema: Schema, root: Schema, rules: lark.Rules, depth: int) -> str:
        """An object of any keys."""
        allowed = schema.get("additionalProperties", {})
        if allowed is False or depth >= _FREE_DEPTH:
            return literal("{}")
        quote = "" if self.bare_keys else '"'
        key = lark.sequence(lark.text(quote), "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/", literal(quote + self.colon))
        member = lark.sequence(key, self._body(schema_of(allowed), root, rules, depth + 1))
        return lark.sequence(literal("{"), f"({member} ({literal(self.comma)} {member})*)?", literal("}"))

    def ordered(self, properties: Mapping[str, object]) -> list[tuple[str, object]]:
        """The properties in the order in which they are written."""
        return list(properties.items())

    def _key(self, name: str) -> str:
        return literal((name if self.bare_keys else json.dumps(name, ensure_ascii=False)) + self.colon)

    def write(self, value: object) -> str:
        """The text of a value."""
        match value:
            case None:
                return self.null
            case bool():
                return self.true if value else self.false
            case str():
                return f"{self.quote}{value}{self.quote}" if self.quote else json_text(value)
            case Mapping():
                quote = "" if self.bare_keys else '"'
                pairs = (f"{quote}{key}{quote}{self.colon}{self.write(item)}" for key, item in self.ordered(value))
                return f"{{{self.comma.join(pairs)}}}"
            case list():
                return f"[{self.comma.join(map(self.write, value))}]"
            case _:
                return json_text(value)

    def value(self, value: object) -> str:
        """The rule body of exactly this value."""
        match value:
            case None:
                return literal(self.null)
            case bool():
                return literal(self.true if value else self.false)
            case str():
                if self.quote:
                    return lark.sequence(mark(self.quote), literal(value) if value else "", mark(self.quote))
                return literal(json.dumps(value, ensure_ascii=False))
            case list():
                inner = f" {literal(self.comma)} ".join(self.value(item) for item in value)
                return lark.sequence(literal("["), inner, literal("]"))
            case dict():
                members = (lark.sequence(self._key(key), self.value(item)) for key, item in value.items())
                return lark.sequence(literal("{"), f" {literal(self.comma)} ".join(members), literal("}"))
            case _:
                return literal(json.dumps(value))

    def _only(self, schema: Schema, *known: str) -> None:
        if unknown := sorted(set(schema) - set(known) - NOTES):
            raise RequestError(
                f"{unknown[0]!r} in the parameters of a tool cannot be kept to in the way this model writes calls",
                param="tools",
            )


_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTUAL = ("minLength", "maxLength", "pattern", "format")
_OF_OTHERS = (*_NUMERIC, *_TEXTUAL, "items", "minItems", "maxItems", "properties", "required", "additionalProperties")
"""Keywords of other types, which say nothing of this one."""
_ANY = ("string", "number", "boolean", "null", "array", "object")
_FREE_DEPTH = 4
"""How deep values may be nested that no schema describes."""


def _implied(schema: Schema) -> str:
    return "object" if "properties" in schema else "array"
