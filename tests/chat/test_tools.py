from __future__ import annotations

from typing import Any

import pytest

from minka.chat.formats.format import Calls
from minka.chat.tools import MAX_TOOLS, decode_tools
from minka.errors import RequestError

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


TOOLS = [tool("get_weather", description="Weather", parameters=SCHEMA), tool("get_time")]


def test_tools_become_values() -> None:
    choice = decode_tools({"tools": TOOLS})
    assert [known.name for known in choice.tools] == ["get_weather", "get_time"]
    assert choice.tools[0].parameters == SCHEMA
    assert choice.tools[1].parameters == {}
    assert (choice.calls, choice.names, choice.parallel) == (Calls.AUTO, None, True)
    assert choice.callable == choice.tools


def test_templates_get_every_tool_with_a_schema() -> None:
    described = decode_tools({"tools": TOOLS, "tool_choice": "none"}).described()
    assert described == [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]


@pytest.mark.parametrize(
    ("wanted", "calls", "names"),
    [
        (None, Calls.AUTO, ["get_weather", "get_time"]),
        ("auto", Calls.AUTO, ["get_weather", "get_time"]),
        ("required", Calls.REQUIRED, ["get_weather", "get_time"]),
        ("none", Calls.NONE, []),
        ({"type": "function", "function": {"name": "get_time"}}, Calls.REQUIRED, ["get_time"]),
        ({"type": "function", "name": "get_time"}, Calls.REQUIRED, ["get_time"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("get_time")]}},
            Calls.REQUIRED,
            ["get_time"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "get_weather"}]}, Calls.AUTO, ["get_weather"]),
    ],
)
def test_tool_choice(wanted: object, calls: Calls, names: list[str]) -> None:
    choice = decode_tools({"tools": TOOLS, "tool_choice": wanted})
    assert choice.calls is calls
    assert [known.name for known in choice.callable] == names


def test_no_tools_is_no_choice() -> None:
    bodies: list[dict[str, object]] = [
        {},
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tool_choice": "none"},
    ]
    for body in bodies:
        assert decode_tools(body).callable == ()


def test_calls_that_are_not_parsed_are_not_asked_for() -> None:
    choice = decode_tools({"tools": TOOLS, "tool_choice": "required", "parse_tool_calls": False})
    assert choice.calls is Calls.NONE
    assert len(choice.tools) == 2


def test_parallel_calls() -> None:
    assert decode_tools({"tools": TOOLS, "parallel_tool_calls": False}).parallel is False
    assert decode_tools({"tools": TOOLS}, parallel=False).parallel is False


def test_older_clients_have_functions() -> None:
    body = {"functions": [{"name": "get_time"}], "function_call": {"name": "get_time"}}
    choice = decode_tools(body)
    assert (choice.calls, choice.names, choice.parallel) == (Calls.REQUIRED, frozenset({"get_time"}), False)
    assert decode_tools({"functions": [{"name": "f"}], "function_call": "none"}).calls is Calls.NONE


CHOICE = "tool_choice"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": "x"}, "tools"),
    ({"tools": ["x"]}, "tools[0]"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [tool("")]}, "tools[0].function.name"),
    ({"tools": [tool("f", description=7)]}, "tools[0].function.description"),
    ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool("f", parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool("f", parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
    ({"tools": [tool("f", parameters={"required": "city"})]}, "tools[0].function.parameters.required"),
    ({"tools": [tool("f"), tool("f")]}, "tools[1]"),
    ({"tools": [tool(f"f{i}") for i in range(MAX_TOOLS + 1)]}, "tools"),
    ({"tools": TOOLS, "tool_choice": "any"}, CHOICE),
    ({"tools": TOOLS, "tool_choice": 7}, CHOICE),
    ({"tools": TOOLS, "tool_choice": {"type": "x"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_news"}}}, CHOICE),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.allowed_tools.tools"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": TOOLS}},
        "tool_choice.allowed_tools.mode",
    ),
    ({"tool_choice": "required"}, CHOICE),
    ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": TOOLS, "parse_tool_calls": "no"}, "parse_tool_calls"),
    ({"functions": [{"name": "f"}], "tools": TOOLS}, "functions"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "function_call": 7}, "function_call"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_request_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_tools(body)
    assert caught.value.param == param
