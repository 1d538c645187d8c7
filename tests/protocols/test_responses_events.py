from __future__ import annotations

import json

import pytest

from minka.chat.formats.format import CallArguments, CallBroken, CallEnd, CallStart, Content, Delta, Reasoning
from minka.protocols.responses_events import InputText, Output, Style
from minka.protocols.responses_items import unsealed
from minka.protocols.responses_tools import decode_tools
from tests.protocols.vendor import DELTAS, Json, openai_events, openai_response

TOOLS = decode_tools(
    [
        {"type": "function", "name": "weather", "parameters": {}},
        {"type": "custom", "name": "sql"},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    ]
)


def made(*deltas: Delta, style: Style | None = None, whole: bool = False) -> tuple[list[Json], list[Json]]:
    output = Output(style or Style(), {tool.name: tool for tool in TOOLS})
    events = [*output.add(deltas, whole=whole), *output.stop("completed")]
    items = output.items()
    base = {"id": "r", "object": "response", "created_at": 1, "model": "m", "tools": [], "tool_choice": "auto"}
    openai_response({**base, "parallel_tool_calls": True, "output": items})
    return openai_events(events, numbered=False), items


def types(events: list[Json]) -> list[str]:
    return [str(event["type"]).removeprefix("response.") for event in events]


def test_the_events_of_everything() -> None:
    events, items = made(*DELTAS)
    assert types(events) == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[2]["arguments"] == '{"city": "Lima"}'
    assert items[2]["call_id"] == "call_1"
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == items


def test_every_event_of_an_item_names_it() -> None:
    events, items = made(*DELTAS)
    for event in events:
        index = event["output_index"]
        assert isinstance(index, int)
        named = event.get("item_id") or event["item"]["id"]  # type: ignore[index]
        assert named == items[index]["id"]


def test_pieces_join_to_what_is_done() -> None:
    events, _ = made(*DELTAS)
    for kind, key in (("output_text", "text"), ("reasoning_text", "text"), ("function_call_arguments", "arguments")):
        for done in (event for event in events if event["type"] == f"response.{kind}.done"):
            pieces = [
                str(event["delta"])
                for event in events
                if event["type"] == f"response.{kind}.delta" and event["item_id"] == done["item_id"]
            ]
            assert "".join(pieces) == done[key]


def test_reasoning_as_a_summary() -> None:
    events, items = made(*DELTAS[:3], style=Style(summary=True, seals=True))
    assert types(events)[:7] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Let me look."}]
    assert unsealed(str(items[0]["encrypted_content"])) == "Let me look."
    assert "content" not in items[0]


def test_a_free_form_call() -> None:
    arguments = json.dumps({"input": 'SELECT "ñ"\n\U0001f40d;'})
    pieces = [CallArguments(0, char) for char in arguments]
    events, items = made(CallStart(0, "sql", "call_9"), *pieces, CallEnd(0))
    assert items[0] | {"id": ""} == {
        "id": "",
        "type": "custom_tool_call",
        "call_id": "call_9",
        "name": "sql",
        "input": 'SELECT "ñ"\n\U0001f40d;',
        "status": "completed",
    }
    assert types(events)[-2:] == ["custom_tool_call_input.done", "output_item.done"]
    deltas = [str(event["delta"]) for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == items[0]["input"]
    assert "" not in deltas


def test_a_call_into_a_namespace() -> None:
    _, items = made(CallStart(0, "spawn", "c"), CallArguments(0, "{}"), CallEnd(0))
    assert items[0]["namespace"] == "agents"


def test_a_broken_call_is_text_in_the_whole_and_incomplete_in_a_stream() -> None:
    deltas = (Content("a"), CallStart(0, "f", "c"), CallArguments(0, "{"), CallBroken(0), Content("<c>{b"))
    _, items = made(*deltas, whole=True)
    assert [item["type"] for item in items] == ["message"]
    assert items[0]["content"][0]["text"] == "a<c>{b"  # type: ignore[index]
    _, items = made(*deltas)
    assert [(item["type"], item["status"]) for item in items] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    assert items[2]["content"][0]["text"] == "<c>{b"  # type: ignore[index]


def test_log_probabilities_stand_with_the_text_of_their_token() -> None:
    entry = {"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": []}
    output = Output(Style(), {})
    events = [*output.add([Content("a")], [entry]), *output.stop("completed")]
    openai_events(events, numbered=False)
    assert events[2]["logprobs"] == [entry]
    assert events[3]["logprobs"] == [entry]
    assert output.items()[0]["content"][0]["logprobs"] == [entry]  # type: ignore[index]


def test_what_is_open_at_the_end_is_incomplete() -> None:
    output = Output(Style(), {})
    list(output.add([Reasoning("x")]))
    assert output.items() == []
    list(output.stop("incomplete"))
    assert output.items()[0]["status"] == "incomplete"
    assert list(output.stop("completed")) == []


@pytest.mark.parametrize("text", ["", "plain", 'q"u\\o/te', "\n\r\t\b\f", "\U0001f40d é 漢", "\ud83d", "a\u0000b"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("space", ["", " \n"])
def test_the_input_of_a_free_form_call_in_any_pieces(text: str, ascii_only: bool, space: str) -> None:
    arguments = f'{{{space}"input"{space}:{space}{json.dumps(text, ensure_ascii=ascii_only)}{space}}}'
    for size in (1, 2, 3, 7, len(arguments)):
        reader = InputText()
        pieces = [reader.feed(arguments[at : at + size]) for at in range(0, len(arguments), size)]
        expected = text if text != "\ud83d" else "".join(pieces)
        assert "".join(pieces) == expected
