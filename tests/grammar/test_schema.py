"""Schemas keyword by keyword: what is held, what is narrowed on purpose, what is refused and where."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from minka.errors import RequestError
from minka.grammar.bodies import json_schema, source
from minka.grammar.compiler import Grammars
from minka.types import Constraint
from tests.fake_vocab import FakeVocab
from tests.grammar.matching import GRAMMARS, accepts, allowed, body_accepts, schema_accepts, started

TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
            "required": ["v", "kids"],
        }
    },
    "$ref": "#/$defs/n",
}
SHAPES = {
    "oneOf": [
        {"$ref": "#/$defs/cat"},
        {"$ref": "#/$defs/dog"},
    ],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name}, "age": {"type": "integer"}},
            "required": ["kind", "age"],
        }
        for name in ("cat", "dog")
    },
}

KIND = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}, "y": {"type": "string"}},
    "required": ["kind"],
}

HELD: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("types", {"type": ["string", "null"]}, ["a", None], [1, [], {}]),
    ("integers", {"type": "integer"}, [0, -7, 10**17], [1.5, "1"]),
    ("integer range", {"type": "integer", "minimum": -5, "maximum": 12}, [-5, 0, 12], [-6, 13]),
    ("exclusive", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, [1, 2], [0, 3]),
    ("draft 4 exclusive", {"type": "integer", "minimum": 0, "exclusiveMinimum": True}, [1], [0]),
    ("number range", {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2}, [0.5, 1.99], [0.49, 2]),
    ("multiples", {"type": "number", "multipleOf": 0.25}, [0.25, -1.25, 3], [0.3]),
    ("length", {"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    ("pattern is searched", {"type": "string", "pattern": "\\S"}, ["a", " a "], ["", "  "]),
    ("anchored inside", {"properties": {"a": {"type": "string", "pattern": "^a+$"}}}, [{"a": "aa"}], [{"a": "ab"}]),
    ("escaped punctuation", {"type": "string", "pattern": "^a\\!$"}, ["a!"], ["a"]),
    ("pattern and length", {"type": "string", "pattern": "^[a-z]*$", "maxLength": 3}, ["abc"], ["abcd", "A"]),
    ("pattern and format", {"type": "string", "format": "date", "pattern": "^2"}, ["2024-02-29"], ["1999-01-01"]),
    ("date", {"type": "string", "format": "date"}, ["2024-02-29", "2023-12-31"], ["2023-02-29", "2023-13-01", "x"]),
    ("date-time", {"type": "string", "format": "date-time"}, ["2024-01-31T23:59:59Z"], ["2024-01-31 23:59:59Z"]),
    ("uuid", {"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
    (
        "uuid4",
        {"type": "string", "format": "uuid4"},
        ["2eb8aa08-aa98-41ea-b4aa-73b441d16380"],
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08-aa98-41ea-c4aa-73b441d16380"],
    ),
    ("base64", {"type": "string", "format": "base64"}, ["", "TWlu", "TWk=", "TQ=="], ["T", "TWk", "TW=k", "TQ==TQ=="]),
    ("email", {"type": "string", "format": "email"}, ["joe.bloggs@example.com"], ["2962"]),
    ("ipv4", {"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["256.1.1.1", "1.1.1"]),
    ("unknown format", {"type": "string", "format": "shoe-size"}, ["any"], [1]),
    ("enum", {"enum": ["a", 1, None, {"x": [True]}]}, ["a", 1, None, {"x": [True]}], ["b", 2, False]),
    ("const null", {"const": None}, [None], [0, "null"]),
    ("enum behind a reference", {"$ref": "#/$defs/e", "$defs": {"e": {"enum": ["a", "b"]}}}, ["a"], ["c"]),
    ("array", {"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], [1, "a"]]),
    ("array bounds", {"type": "array", "minItems": 2, "maxItems": 2}, [[1, "a"]], [[1], [1, 2, 3]]),
    ("tuple", {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, [[1, "a"], [1]], [["a"]]),
    ("older tuple", {"items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, [[1, "a"]], [[1, 1]]),
    ("empty properties", {"type": "object", "properties": {}}, [{}, {"a": 1}], [[]]),
    ("closed", {"properties": {"a": {"type": "null"}}, "additionalProperties": False}, [{}, {"a": None}], [{"b": 1}]),
    ("further properties", {"type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "b"}]),
    ("required is not declared", {"type": "object", "required": ["a"]}, [{"a": 1}, {"a": []}], [{}, {"b": 1}]),
    ("pattern properties", {"patternProperties": {"^x": {"type": "null"}}}, [{"x1": None}], [{"x1": 1}]),
    ("property names", {"type": "object", "propertyNames": {"enum": ["a"]}}, [{"a": 1}, {}], [{"b": 1}]),
    ("property names by pattern", {"propertyNames": {"pattern": "^[ab]$"}}, [{"a": 1, "b": 2}], [{"c": 1}]),
    ("counted properties", {"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}]),
    (
        "allOf",
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        [3, 5],
        [2, 6],
    ),
    ("anyOf next to a type", {"type": "string", "anyOf": [{"minLength": 3}, {"const": "a"}]}, ["a", "abc"], ["ab", 1]),
    ("oneOf by type", {"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [1.5]),
    (
        "oneOf next to a type",
        {"type": "object", "oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"]} for n in (1, 2)]},
        [{"k": 1}, {"k": 2}],
        [{"k": 3}, {}, 5],
    ),
    ("oneOf by range", {"oneOf": [{"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 5}]}, [1, 5], [3]),
    ("oneOf by constant", SHAPES, [{"kind": "dog", "age": 1}], [{"kind": "cow", "age": 1}, {"kind": "cat"}]),
    ("recursion", TREE, [{"v": 1, "kids": [{"v": 2, "kids": []}]}], [{"v": 1}, {"v": 1, "kids": [1]}]),
    ("anchor", {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, [None], [1]),
    ("reference into an array", {"$ref": "#/$defs/a/anyOf/1", "$defs": {"a": {"anyOf": [{}, {"const": 1}]}}}, [1], [2]),
    ("own id", {"$id": "https://x/y", "$ref": "https://x/y#/$defs/a", "$defs": {"a": {"const": 1}}}, [1], [2]),
    ("escaped pointer", {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"const": 1}}}, [1], [2]),
    (
        "siblings of a reference",
        {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}},
        ["a"],
        ["ab", 1],
    ),
    ("the empty schema", {}, [1, "a", None, [{"a": [1.5]}]], []),
    ("not a type", {"not": {"type": "string"}}, [1, None, {}, [1]], ["a"]),
    ("not a text", {"type": "string", "not": {"enum": ["a", "ab", "b"]}}, ["", "c", "abc", "ba"], ["a", "ab", "b"]),
    ("not a number", {"type": "number", "not": {"const": 3}}, [2.5, 4], [3]),
    ("not not", {"not": {"not": {"type": "integer"}}}, [1], ["a"]),
    ("no property", {"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ("a forbidden property", {"type": "object", "properties": {"a": {"not": {}}}}, [{}], [{"a": 1}]),
    (
        "if",
        {
            **KIND,
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
        },
        [{"kind": "a", "x": 1}, {"kind": "b", "y": "z"}, {"kind": "a", "x": 1, "y": ""}],
        [{"kind": "a"}, {"kind": "a", "y": ""}, {"kind": "b", "x": 1}, {"kind": "c"}],
    ),
    (
        "many ifs",
        {
            **KIND,
            "properties": {"kind": {"enum": [f"k{i}" for i in range(40)]}},
            "allOf": [
                {
                    "if": {"properties": {"kind": {"const": f"k{i}"}}},
                    "then": {"properties": {f"r{i}": {"type": "null"}}, "required": [f"r{i}"]},
                }
                for i in range(39)
            ],
        },
        [{"kind": "k1", "r1": None}, {"kind": "k39"}],
        [{"kind": "k1"}, {"kind": "k1", "r1": 1}, {"kind": "k40"}],
    ),
    (
        "dependent names",
        {**KIND, "dependentRequired": {"x": ["y"]}},
        [{"kind": "a"}, {"kind": "a", "x": 1, "y": ""}],
        [{"kind": "a", "x": 1}],
    ),
    (
        "dependent schemas",
        {**KIND, "dependentSchemas": {"x": {"properties": {"x": {"minimum": 5}}}}},
        [{"kind": "a"}, {"kind": "a", "x": 5}],
        [{"kind": "a", "x": 4}],
    ),
    ("dependencies", {**KIND, "dependencies": {"x": ["y"]}}, [{"kind": "a", "y": ""}], [{"kind": "a", "x": 1}]),
    ("contains", {"type": "array", "contains": {"type": "integer"}}, [[1], ["a", 1, 2]], [[], ["a"]]),
    (
        "contains some",
        {"type": "array", "contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
        [[1, 2], ["a", 1, 2, "b"]],
        [[1], [1, 2, 3]],
    ),
    (
        "unique values",
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
        [["b", "a"], ["c", "a", "b"]],
        [[], ["a", "a"], ["d"]],
    ),
    (
        "a unique tuple",
        {"type": "array", "prefixItems": [{"type": "boolean"}] * 2, "items": False, "uniqueItems": True},
        [[True, False], [True], []],
        [[True, True]],
    ),
    (
        "oneOf that overlaps",
        {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    ("oneOf of numbers", {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [1, 0], [2, 1.5]),
    (
        "nothing else with allOf",
        {
            "type": "object",
            "allOf": [{"properties": {"a": {"type": "null"}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"b": 1}, {"b": 1, "a": None}],
        [{"c": 1}, {"a": 1}],
    ),
    (
        "nothing else with anyOf",
        {
            "type": "object",
            "anyOf": [{"required": ["a"], "properties": {"a": {}}}, {"properties": {"b": {}}}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"b": 1}],
        [{"c": 1}],
    ),
    (
        "no more items",
        {"type": "array", "allOf": [{"prefixItems": [{"type": "null"}]}], "unevaluatedItems": False},
        [[], [None]],
        [[1], [None, 1]],
    ),
    (
        "a dynamic reference",
        {
            "$dynamicRef": "#n",
            "$defs": {"n": {"$dynamicAnchor": "n", "type": "object", "properties": {"k": {"$dynamicRef": "#n"}}}},
        },
        [{"k": {"k": {}}}],
        [{"k": 1}],
    ),
    (
        "a part with a URI",
        {
            "$id": "http://x/a/",
            "$ref": "b/c",
            "$defs": {
                "d": {"$id": "b/", "$defs": {"e": {"$id": "c", "$ref": "#/$defs/f", "$defs": {"f": {"const": 1}}}}}
            },
        },
        [1],
        [2],
    ),
    ("bounds without end", {"type": "number", "maximum": 10**400}, [1.5], ["a"]),
    (
        "names with signs",
        {
            "type": "object",
            "properties": {'"': {"type": "null"}, "\\\n": {"type": "null"}, "é😀": {"type": "null"}},
            "required": ['"', "\\\n"],
        },
        [{'"': None, "\\\n": None}, {'"': None, "\\\n": None, "é😀": None}],
        [{'"': None}],
    ),
    ("annotations", {"title": "t", "default": 1, "x-order": 3, "nullable": False, "type": "null"}, [None], [1]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), [case[1:] for case in HELD], ids=[case[0] for case in HELD])
def test_what_is_valid_can_be_written_and_nothing_else(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not schema_accepts(schema, value)] == []
    assert [value for value in bad if schema_accepts(schema, value)] == []


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"not": {"pattern": "a"}}}}, '"pattern"', "#/properties/a/not"),
    ({"items": {"if": {"multipleOf": 2}, "then": {}}}, '"multipleOf"', "#/items/if"),
    ({"properties": {"a": {"if": {}, "then": {"max_length": 1}}}}, '"maxLength"', "#/properties/a/then"),
    ({"properties": {"a": {"not": {}}}, "required": ["a"], "type": "object"}, "contradicts itself", "#/properties/a"),
    ({"not": {}}, "contradict", "#"),
    ({"uniqueItems": True}, '"uniqueItems"', "#"),
    ({"type": "array", "contains": {}, "minContains": 2, "maxContains": 1}, '"minContains"', "#"),
    ({"dependentRequired": {"a": "b"}}, "list of property names", "#/dependentRequired/a"),
    ({"unevaluatedItems": False, "anyOf": [{"pattern": "a"}]}, '"unevaluatedItems"', "#"),
    ({"$dynamicRef": "#a"}, '"#a"', "#"),
    ({"$dynamicRef": "#a", "$defs": {n: {"$id": n, "$dynamicAnchor": "a"} for n in "bc"}}, '"#a"', "#"),
    ({"max_length": 3, "type": "string"}, '"maxLength"', "#"),
    ({"properties": {"foo": "bar"}}, "must be an object, true or false", "#/properties/foo"),
    ({"type": 123}, '"type"', "#"),
    ({"type": "hiccup"}, '"type"', "#"),
    ({"required": True}, '"required"', "#"),
    ({"minLength": -1}, '"minLength"', "#"),
    ({"minLength": 3, "maxLength": 2}, '"minLength"', "#"),
    ({"enum": []}, '"enum"', "#"),
    ({"const": "\x00"}, '"const"', "#"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "bounds", "#"),
    ({"type": "integer", "minimum": 3, "maximum": 5, "multipleOf": 7}, '"multipleOf"', "#"),
    ({"type": "integer", "minimum": 10**19}, "10^18", "#"),
    ({"$ref": "https://example.com/x.json"}, '"$ref"', "#"),
    ({"items": {"$ref": "#/$defs/none"}}, '"$ref"', "#/items"),
    ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, '"oneOf"', "#"),
    ({"enum": [f"v{i}" for i in range(10_001)]}, '"enum"', "#"),
    ({"const": "x" * 10_001}, '"const"', "#"),
    ({"properties": {"x" * 10_001: {}}}, '"properties"', "#"),
    ({"type": "array", "minItems": 100, "items": {"const": "x" * 1_000}}, "less than 30000 characters", "#"),
    ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "less than 30000 characters", "#"),
    ({"type": "integer", "multipleOf": 9_999}, '"multipleOf"', "#"),
    ({"type": "object", "minProperties": 3}, '"minProperties"', "#"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}, "requires itself", "#"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "requires itself", "#"),
    ({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "look-around", "#/properties/a"),
    ({"type": "object", "properties": {"a": {"allOf": [{"type": "null"}, {"type": "string"}]}}, "required": ["a"]},
     "incompatible types", "#/properties/a"),
    (False, "allows no value", "#"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "said", "place"), REFUSED, ids=[str(case[0])[:60] for case in REFUSED])
def test_what_cannot_be_held_is_refused_with_its_place(schema: Any, said: str, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        GRAMMARS.compile(Constraint(source(json_schema(schema, param="response_format"))), param="response_format")
    message = caught.value.message
    assert caught.value.param == "response_format"
    assert message.startswith('"response_format": ')
    assert said in message
    assert f" {place}" in message.replace(":", " ") + " "


def test_only_a_strict_schema_refuses_an_unknown_format() -> None:
    with pytest.raises(RequestError, match="strict"):
        json_schema({"type": "string", "format": "shoe-size"}, strict=True)
    assert json_schema({"type": "string", "format": "date"}, strict=True)
    for any_text in ("binary", "password", "path"):
        assert json_schema({"type": "string", "format": any_text}, strict=True)


def test_a_pattern_says_what_an_unknown_format_means() -> None:
    body = json_schema({"type": "string", "format": "e164", "pattern": "^[+][0-9]{3}$"}, strict=True)
    assert body_accepts(body, '"+123"')
    assert not body_accepts(body, '"+12"')
    parts = [{"pattern": "^[a-z]+$"}, {"pattern": "^p"}]
    body = json_schema({"type": "string", "format": "starts_with", "allOf": parts}, strict=True)
    assert body_accepts(body, '"par"')
    assert not body_accepts(body, '"bar"')


def test_what_is_merged_keeps_its_order_and_gets_no_other_properties() -> None:
    base = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}, "required": ["b"]}
    schema = {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"c": {"type": "null"}, "b": {"minimum": 5}}}],
              "$defs": {"base": base}}  # fmt: skip
    assert schema_accepts(schema, {"b": 6, "a": None, "c": None})
    assert not schema_accepts(schema, {"b": 4})
    assert not schema_accepts(schema, {"a": None, "b": 6})
    assert not schema_accepts(schema, {"b": 6, "d": 1})


def test_what_is_merged_may_lead_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}, "x": {"type": "integer"}}}
    schema = {
        "$ref": "#/$defs/b",
        "$defs": {
            "a": node,
            "b": {
                "allOf": [
                    {"$ref": "#/$defs/a"},
                    {"type": "object", "properties": {"next": {"$ref": "#/$defs/b"}}, "required": ["x"]},
                ]
            },
        },
    }
    assert schema_accepts(schema, {"next": {"next": {"x": 1}, "x": 2}, "x": 3})
    assert not schema_accepts(schema, {"next": {"next": {}, "x": 2}, "x": 3})


def test_what_could_never_end_is_not_begun() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {
        "x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}}}  # fmt: skip
    assert schema_accepts(schema, [None])
    matcher = started(source(json_schema(schema)))
    for byte in b"[null":
        matcher.accept(byte)
    assert allowed(matcher) == [ord("]")]
    dead = {"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}, "$defs": {"no": False}}
    assert schema_accepts(dead, {})
    assert not schema_accepts(dead, {"a": 1})


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["a", "b"]}
    assert schema_accepts(schema, {"b": None, "a": None})
    assert not schema_accepts(schema, {"a": None, "b": None})


def test_there_is_no_white_space_but_one_space_behind_a_separator() -> None:
    body = json_schema({"type": "object"})
    assert body_accepts(body, '{"a": [1, 2]}')
    for text in ('{ "a": 1}', '{"a":  1}', '{"a": [1,\n2]}', '{"a": 1} ', '\n{"a": 1}'):
        assert not body_accepts(body, text)


def test_white_space_can_be_asked_for() -> None:
    body = json_schema({"type": "object"}, whitespace="[ \\n]{1,2}")
    assert body_accepts(body, '{ \n"a":1 }')
    assert not body_accepts(body, '{   "a":1}')


def test_numbers_are_bounded_in_length() -> None:
    body = json_schema({})
    assert body_accepts(body, "9" * 18)
    assert not body_accepts(body, "9" * 20)
    assert not body_accepts(body, "0." + "3" * 11)
    assert not body_accepts(json_schema({"type": "array", "items": {}}), f"[{'1' * 20}]")


def test_a_text_ends_with_its_root_value() -> None:
    from tests.grammar.matching import started

    matcher = started(source(json_schema({"type": "object", "properties": {"a": {"type": "null"}}})))
    for byte in b'{"a": null':
        assert not matcher.finished
        matcher.accept(byte)
    matcher.accept(ord("}"))
    assert matcher.finished


def test_a_property_cannot_come_again_in_another_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    assert accepts(source(json_schema(schema)), '{"a": 1, "b": 2}')
    assert not accepts(source(json_schema(schema)), '{"a": 1, "a": 2}')
    assert not accepts(source(json_schema(schema)), '{"a": 1, "\\u0061": 2}')


@pytest.mark.parametrize("n", [1_999, 2_000, 2_001, 10_000, 100_000])
def test_long_bounds_compile_at_once(n: int) -> None:
    grammars = Grammars(FakeVocab())
    grammars.compile(Constraint(source(json_schema({"type": "null"}))))
    strings = {"type": "array", "maxItems": n, "items": {"type": "string", "minLength": min(n, 3_000), "maxLength": n}}
    constraint = Constraint(source(json_schema({"type": "object", "properties": {"a": strings}})))
    before = time.perf_counter()
    grammars.compile(constraint)
    assert time.perf_counter() - before < 1
    long = "x" * min(n, 3_000)
    assert schema_accepts({"type": "string", "minLength": len(long), "maxLength": len(long)}, long)
    assert not schema_accepts({"type": "string", "maxLength": len(long)}, long + "x")


def test_the_same_schema_is_the_same_grammar() -> None:
    assert json_schema(json.loads(json.dumps(TREE))) == json_schema(TREE)
