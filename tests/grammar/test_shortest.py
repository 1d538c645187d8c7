"""What only matches long texts is known before anything is compiled."""

from __future__ import annotations

import pytest

from minka.errors import RequestError
from minka.grammar.bodies import choice, gbnf, json_schema, regex
from minka.grammar.shortest import of_regex, of_schema


@pytest.mark.parametrize(
    ("pattern", "n"),
    [
        ("", 0),
        ("abc", 3),
        ("^a*b+c?$", 1),
        ("(abc|d){3}", 3),
        ("(?:ab|cde){2,}x", 5),
        ("[abc]{4}[^\\]]\\d\\x41\\p{Greek}", 8),
        ("((a{10}){10}){10}", 1_000),
        ("a{3}{4}", 12),
        ("(|a)b", 1),
        ("(?i)ab", 2),
        ("a)b(", 2),
    ],
)
def test_the_shortest_text_of_a_pattern(pattern: str, n: int) -> None:
    assert of_regex(pattern) == n


def test_the_shortest_text_of_a_schema() -> None:
    item = {"type": "object", "properties": {"name": {"const": "abc"}, "b": {"const": "x" * 99}}, "required": ["name"]}
    assert of_schema(item) == 4 + 6 + 5
    assert of_schema({"type": "array", "items": item, "minItems": 10}) == 160
    assert of_schema({"anyOf": [item, {"enum": ["a", "bb"]}]}) == 3
    assert of_schema({"$ref": "#/$defs/0", "$defs": {"0": {"$ref": "#/$defs/1"}, "1": item}}) == 15
    assert of_schema({"$ref": "#/$defs/0", "$defs": {"0": {"required": ["a"], "properties": {
        "a": {"$ref": "#/$defs/0"}}}}}) == 7  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex("a{1000000}"),
        lambda: regex("(x{1000}){1000}"),
        lambda: gbnf('root ::= "a"{100000}'),
        lambda: gbnf('root ::= ("ab"{1000}){1000}'),
        lambda: gbnf("root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(40)) + 'a40 ::= "x"'),
        lambda: choice(["x" * 10_001]),
        lambda: json_schema({"required": [f"property {i}" for i in range(4_000)]}),
    ],
)
def test_what_matches_no_short_text_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(RequestError):
        make()


def test_what_may_be_long_may_be_short() -> None:
    assert regex("[a-z]{1,100000}")
    assert gbnf('root ::= "a"{0,100000}')
    assert json_schema({"type": "string", "maxLength": 100_000})
