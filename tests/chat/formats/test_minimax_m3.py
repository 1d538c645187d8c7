from __future__ import annotations

import pytest

from minka.chat.formats.format import Ask, Calls, Tool
from minka.errors import RequestError
from tests.chat.formats.samples import Sample, check, family, refuses

M3 = family(']<]minimax[>[ <invoke name="')
NS = "]<]minimax[>["
FIND = Tool(
    "find",
    "Find things",
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "entries": {
                "type": "array",
                "items": {"type": "object", "properties": {"id": {"type": "integer"}, "label": {"type": "string"}}},
                "maxItems": 2,
            },
            "limit": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"max": {"type": "integer"}}}]},
            "label": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}}]},
            "where": {"$ref": "#/$defs/place"},
            "amount": {"type": ["number", "null"]},
            "any": {},
        },
        "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
    },
)
ASK = Ask((FIND,), Calls.AUTO)


def call(xml: str) -> str:
    """A call of find, with the marker before each tag."""
    inner = xml.replace("</", "\0/").replace("<", f"{NS}<").replace("\0/", f"{NS}</")
    return f'{NS}<tool_call>\n{NS}<invoke name="find">{inner}{NS}</invoke>\n{NS}</tool_call>'


@pytest.mark.parametrize(
    ("xml", "arguments"),
    [
        ("<tags><item>alpha</item><item>b c\n</item></tags>", {"tags": ["alpha", "b c\n"]}),
        ("<tags></tags>", {"tags": []}),
        (
            "<entries><item><id>1</id><label>one</label></item><item></item></entries>",
            {"entries": [{"id": 1, "label": "one"}, {}]},
        ),
        ("<limit>5</limit>", {"limit": 5}),
        ("<limit><max>10</max></limit>", {"limit": {"max": 10}}),
        ("<label>hi</label>", {"label": "hi"}),
        ("<label>7</label>", {"label": "7"}),
        ("<where><lat>-2.5</lat></where>", {"where": {"lat": -2.5}}),
        ("<amount>null</amount>", {"amount": None}),
        ("", {}),
    ],
)
def test_values(xml: str, arguments: object) -> None:
    check(M3, Sample(call(xml), calls=[("find", arguments)], ask=ASK))


@pytest.mark.parametrize(
    ("xml", "arguments"),
    [
        ("<any><a>1</a><b>x</b></any>", {"any": {"a": 1, "b": "x"}}),
        ("<any><item>1</item><item>x</item></any>", {"any": [1, "x"]}),
        ("\n<tags>\n<item>a</item>\n</tags>\n", {"tags": ["a"]}),
        ("<extra>1</extra>", {"extra": 1}),
    ],
)
def test_what_is_forgiven(xml: str, arguments: object) -> None:
    check(M3, Sample(call(xml), calls=[("find", arguments)], ask=ASK, accepted=None))


def test_wrong_values_are_refused() -> None:
    wrong = (
        "<limit>five</limit>",
        "<limit><max>x</max></limit>",
        "<where></where>",
        "<entries><item></item><item></item><item></item></entries>",
        "<tags><item>a</tags>",
        "<amount>x</amount>",
        "<extra>1</extra>",
    )
    refuses(M3, *map(call, wrong), ask=Ask((FIND,), Calls.REQUIRED))


def test_schema_without_an_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    tool = Tool(
        "walk", "", {"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    )
    with pytest.raises(RequestError, match="for ever"):
        M3.grammar(Ask((tool,), Calls.REQUIRED))
