"""Every kind of constraint as a body that stands alone or inside of a larger grammar."""

from __future__ import annotations

from typing import Any

import pytest

from minka.errors import RequestError
from minka.grammar import bodies
from minka.grammar.bodies import choice, gbnf, json_object, json_schema, lark, regex, source
from minka.grammar.marks import literal, mark, until
from minka.grammar.tags import structural_tag
from tests.grammar.matching import accepts, body_accepts, started


def test_a_body_can_be_a_part() -> None:
    call = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    rest = [gbnf("root ::= [0-9]+"), choice(["yes", "no"]), regex("[xy]"), lark("start: b\nb: /z/")]
    grammar = source(f'"<call>" ({call}) "</call>" {" ".join(rest)}')
    assert accepts(grammar, '<call>{"a": 1}</call>12noyz')
    assert not accepts(grammar, '<call>{"a": "b"}</call>12noyz')


def test_literals_and_schemas_hold_no_marks() -> None:
    text = f"say {mark('x')} and {until('y')}"
    assert body_accepts(literal(text), text)
    assert body_accepts(json_schema({"const": text}), f'"{text}"')
    assert body_accepts(regex(mark("x")), mark("x"))


@pytest.mark.parametrize("text", ['"', "\\", "\n", "/", "é\x7f", "<think>", "{}%json", "", "a" * 5_000])
def test_a_literal_is_exactly_its_text(text: str) -> None:
    assert body_accepts(f"{literal(text)} /!/", text + "!")
    assert not body_accepts(f"{literal(text)} /!/", text + "?!")


def test_text_until_a_tag() -> None:
    body = f"{until('</a>', '</b>')} /[0-9]/"
    assert body_accepts(body, "any < text </b>1")
    assert body_accepts(body, "</a>1")
    assert not body_accepts(body, "x</a>y</b>1")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[a-c]{3}", ["abc"], ["ab", "abcd"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        ("^\\$", ["$"], [""]),
        ("a/b", ["a/b"], ["ab"]),
        ("", [""], ["a"]),
        ("\\d+é*", ["12é"], ["é"]),
    ],
)
def test_a_regex_matches_the_whole_text(pattern: str, good: list[str], bad: list[str]) -> None:
    assert all(body_accepts(regex(pattern), text) for text in good)
    assert not any(body_accepts(regex(pattern), text) for text in bad)


@pytest.mark.parametrize("pattern", ["(a", "(?<=a)b", "a\\", "(a)\\1", "[", "a" * 20_000])
def test_a_bad_regex_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError):
        started(source(regex(pattern)))


def test_a_choice_may_begin_with_another() -> None:
    body = choice(["a", "ab", 'x"y'])
    assert all(body_accepts(body, text) for text in ["a", "ab", 'x"y'])
    assert not body_accepts(body, "b")
    for options in ([], [""], ["a"] * 20_000):
        with pytest.raises(RequestError):
            choice(options)


@pytest.mark.parametrize(
    "text", ['start: "a" }\nx: {', 'start: {"a"', "start: <|no-such-token|>", "begin: /a/", "start: x", ""]
)
def test_bad_lark_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        started(source(lark(text)))


def test_lark_may_have_braces() -> None:
    body = lark('// a } comment\nstart: A{1,2} "}" %json {"const": "}"}\nA: /[{]/\n')
    assert body_accepts(body, '{{}"}"')


def test_json_object_is_an_object() -> None:
    assert body_accepts(json_object(), '{"a": [1, null]}')
    assert not body_accepts(json_object(), "[]")


STRUCTURES = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=add>", "schema": {"type": "array", "items": {"type": "integer"}}, "end": "</f>"},
        {"begin": "<f=say>", "schema": {"type": "string"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
ADD = {"type": "tag", "begin": "<f=add>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
       "end": "</f>"}  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (STRUCTURES, ["", "free text", 'so <f=add>[1]</f> and <f=say>"x"</f>!', "<f"], ["<f=sub>", "<f=add>x</f>"]),
        ({"format": {"type": "const_string", "value": "hi"}}, ["hi"], ["ho"]),
        ({"format": {"type": "any_text"}}, ["", "x\ny"], []),
        ({"format": {"type": "regex", "pattern": "a+"}}, ["aa"], [""]),
        ({"format": {"type": "grammar", "grammar": "root ::= [0-9]"}}, ["1"], ["a"]),
        (
            {"format": {"type": "sequence", "elements": [ADD, {"type": "or", "elements": [
                {"type": "const_string", "value": "x"}, {"type": "const_string", "value": "y"}]}]}},
            ["<f=add>1</f>y"], ["<f=add>1</f>", "x"],
        ),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [ADD], "at_least_one": True,
                        "stop_after_first": True}},
            ["x <f=add>1</f>"], ["", "<f=add>1</f>x"],
        ),
        (
            {"format": {"type": "tags_with_separator", "tags": [ADD], "separator": ","}},
            ["", "<f=add>1</f>", "<f=add>1</f>,<f=add>2</f>"], ["<f=add>1</f><f=add>2</f>"],
        ),
        (
            {"format": {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}},
            ["<t>any</t>"], ["<t>any", "<t>a</t>b"],
        ),
        ({"format": {"type": "any_text", "excludes": ["bad", "<x>"]}}, ["", "ba d\n<x"], ["a bad one", "<x>"]),
        ({"format": {"type": "sequence", "elements": [{"type": "optional", "content": ADD},
                                                      {"type": "plus", "content": {"type": "regex", "pattern": "b"}}]}},
         ["b", "<f=add>1</f>bb"], ["<f=add>1</f>", ""]),
        ({"format": {"type": "star", "content": ADD}}, ["", "<f=add>1</f><f=add>2</f>"], ["x"]),
        ({"format": {"type": "repeat", "content": {"type": "const_string", "value": "ab"}, "min": 1, "max": 2}},
         ["ab", "abab"], ["", "ababab"]),
        ({"format": {"type": "repeat", "content": {"type": "const_string", "value": "ab"}, "min": 2, "max": -1}},
         ["abab", "ababab"], ["ab"]),
    ],
)  # fmt: skip
def test_structural_tags(tag: dict[str, Any], good: list[str], bad: list[str]) -> None:
    body = structural_tag(tag)
    assert [text for text in good if not body_accepts(body, text)] == []
    assert [text for text in bad if body_accepts(body, text)] == []


@pytest.mark.parametrize(
    ("tag", "place"),
    [
        ({}, '"structural_tag"'),
        ("x", '"structural_tag"'),
        ({"structures": []}, "structures"),
        ({**STRUCTURES, "triggers": ["<g="]}, "triggers"),
        ({"format": {"type": "poem"}}, "format.type"),
        ({"format": {"type": "sequence", "elements": [{"type": "regex"}]}}, "format.elements[0].pattern"),
        ({"format": {"type": "json_schema", "json_schema": {"extends": {}}}}, '"extends"'),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "format.style"),
        ({"format": {"type": "any_text", "exclude": ["x"]}}, "format.exclude"),
        ({"format": {"type": "regex", "pattern": "a", "excludes": ["x"]}}, "format.excludes"),
        ({"format": {"type": "repeat", "content": ADD, "min": 3, "max": 2}}, "format.max"),
    ],
)
def test_a_bad_structural_tag_is_refused_with_its_place(tag: object, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        structural_tag(tag)
    assert place in caught.value.message


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(RequestError, match="larger"):
        json_schema({"description": "x" * 1_100_000})
    with pytest.raises(RequestError, match="larger"):
        bodies.lark("x" * 1_100_000)
    with pytest.raises(RequestError, match="no JSON value"):
        json_schema({"const": float("nan")})
