"""MiniMax M3: calls whose arguments are elements named after them, down to the last one, each tag behind a marker.

`{"filter": {"tags": ["a"]}}` is `<filter><tags><item>a</item></tags></filter>`, where every `<` has the marker before
it. What is text and what JSON, only the tool's schema says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import Tools, expect_loosely
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool, json_text
from minka.chat.formats.framed import Framed
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import TEXT, TYPES, Schema, is_free, object_schema, resolved, types_of
from minka.chat.formats.tagged import ArgumentTags
from minka.errors import RequestError
from minka.grammar.marks import literal, mark

NS = "]<]minimax[>["
THINK = ReasoningTags("<mm:think>", ("</mm:think>",))
TOKENS = (NS, "<tool_call>", "</tool_call>", "<mm:think>", "</mm:think>")
INVOKE_END = f"{NS}</invoke>"
ITEM = "item"
NAME = "/[a-zA-Z_][a-zA-Z0-9_.-]{0,63}>/"
MAX_DEPTH = 12
"""Nesting of arguments. A schema that goes on for ever has no grammar here."""


@dataclass(frozen=True, slots=True)
class ElementCall:
    """The name and the arguments as elements. Implements `calls.CallStyle`."""

    marks: Sequence[str] = TOKENS

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        schema = object_schema(tool)
        head = lark.text(f'{tool.name}">')
        if is_free(tool):
            return lark.sequence(head, f"({lark.sequence(mark(f'{NS}<'), NAME, rules.until(f'{NS}</'), NAME)})*")
        return lark.sequence(head, _members(rules, schema, schema, MAX_DEPTH))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        name = yield from reader.text_until('">')
        if name not in tools:
            raise BrokenCallError
        reader.start_call(name)
        schema = object_schema(tools[name])
        yield from _read_object(reader, schema, schema, INVOKE_END, MAX_DEPTH)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        return f'{call.name}">{_written(call.members)}'


def _written(value: object) -> str:
    """A value as elements, or as text."""
    if isinstance(value, list):
        return "".join(f"{NS}<{ITEM}>{_written(item)}{NS}</{ITEM}>" for item in value)
    if isinstance(value, Mapping):
        return "".join(f"{NS}<{name}>{_written(item)}{NS}</{name}>" for name, item in value.items())
    return value if isinstance(value, str) else json_text(value)


# -- grammar -----------------------------------------------------------------------------------------------------------


def _element(rules: lark.Rules, name: str, schema: Schema, root: Schema, depth: int) -> str:
    return lark.sequence(mark(f"{NS}<{name}>"), _value(rules, schema, root, f"{NS}</{name}>", depth - 1))


def _members(rules: lark.Rules, schema: Schema, root: Schema, depth: int) -> str:
    properties, required = _properties(schema), _names(schema.get("required"))
    elements = {name: _element(rules, name, _schema(part), root, depth) for name, part in properties.items()}
    return lark.sequence(*(body if name in required else lark.maybe(body) for name, body in elements.items()))


def _value(rules: lark.Rules, schema: Schema, root: Schema, close: str, depth: int) -> str:
    """The rule body of a value and of the tag that closes it."""
    if not depth:
        raise RequestError(
            f"the parameters of a tool nest more than {MAX_DEPTH} deep, or for ever, which this model's way of writing "
            "calls has no grammar for: describe them with less depth",
            param="tools",
        )
    schema = resolved(schema, root)
    types = types_of(schema, root)
    if "string" in types:
        return _text(rules, schema, close) if types == TEXT else rules.until(close)
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list):
        return lark.either(_value(rules, _schema(option), root, close, depth - 1) for option in options)
    if types == {"object"} and _properties(schema):
        return lark.sequence(_members(rules, schema, root, depth), mark(close))
    if types == {"array"} and isinstance(schema.get("items"), Mapping):
        item = _element(rules, ITEM, _schema(schema["items"]), root, depth)
        return lark.sequence(f"({item}){_times(schema)}", mark(close))
    return lark.sequence(rules.rule(lark.json_value({**schema, **_definitions(root)})), mark(close))


def _text(rules: lark.Rules, schema: Schema, close: str) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return lark.sequence(lark.either(literal(str(value)) for value in values), mark(close))
    bounds = {key: schema[key] for key in ("minLength", "maxLength", "pattern") if key in schema}
    return lark.sequence(lark.bounded_text(bounds, close, rules), mark(close)) if bounds else rules.until(close)


def _times(schema: Schema) -> str:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if not low and high is None:
        return "*"
    return f"{{{low},{'' if high is None else high}}}"


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_value(reader: Reader, schema: Schema, root: Schema, close: str, depth: int) -> Steps[None]:
    """Take a value and what closes it, and tell it as JSON."""
    if not depth:
        raise BrokenCallError
    schema = resolved(schema, root)
    types = types_of(schema, root)
    if "string" not in types or types == TYPES:
        if (yield from reader.comes_after_space(f"{NS}<{ITEM}>")) and "array" in types:
            yield from _read_array(reader, schema, root, close, depth)
            return
        opens = yield from reader.comes_after_space(f"{NS}<", f"{NS}</")
        if opens == f"{NS}<" or (opens and types == {"object"}):
            yield from _read_object(reader, schema, root, close, depth)
            return
        if opens and types == {"array"}:
            yield from _read_array(reader, schema, root, close, depth)
            return
    yield from ArgumentTags("", "", close)._read_value(reader, types)


def _read_object(reader: Reader, schema: Schema, root: Schema, close: str, depth: int) -> Steps[None]:
    properties, before = _properties(_option(schema, root, "properties")), "{"
    while not (yield from reader.comes_after_space(close)):
        yield from expect_loosely(reader, f"{NS}<")
        name = yield from reader.text_until(">")
        reader.arguments(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
        yield from _read_value(reader, _schema(properties.get(name)), root, f"{NS}</{name}>", depth - 1)
        before = ", "
    reader.arguments("{}" if before == "{" else "}")
    if close != INVOKE_END:
        yield from expect_loosely(reader, close)


def _read_array(reader: Reader, schema: Schema, root: Schema, close: str, depth: int) -> Steps[None]:
    items, before = _schema(_option(schema, root, "items").get("items")), "["
    while (yield from reader.comes_after_space(f"{NS}<{ITEM}>")):
        yield from expect_loosely(reader, f"{NS}<{ITEM}>")
        reader.arguments(before)
        yield from _read_value(reader, items, root, f"{NS}</{ITEM}>", depth - 1)
        before = ", "
    reader.arguments("[]" if before == "[" else "]")
    yield from expect_loosely(reader, close)


def _option(schema: Schema, root: Schema, key: str) -> Schema:
    """The schema, or the first of its options, that has the keyword."""
    options = schema.get("anyOf", schema.get("oneOf"))
    found = [resolved(_schema(option), root) for option in options] if isinstance(options, list) else []
    return next((option for option in (schema, *found) if key in option), schema)


def _definitions(root: Schema) -> Schema:
    return {key: root[key] for key in ("$defs", "definitions") if key in root}


def _properties(schema: Schema) -> Mapping[str, object]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _names(value: object) -> Sequence[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | tuple) else []


def _schema(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _make(source: str) -> Format | None:
    if NS not in source or "<invoke name=" not in source:
        return None
    return Framed(
        "minimax-m3",
        ElementCall(),
        open=f"{NS}<tool_call>\n",
        close=f"{NS}</tool_call>",
        call_open=f'{NS}<invoke name="',
        call_close=f"{INVOKE_END}\n",
        trigger=f"{NS}<tool_call>",
        reasoning=THINK,
        turn="</mm:think>",
        tokens=TOKENS,
    )


FAMILY = Family(rank=30, make=_make)
