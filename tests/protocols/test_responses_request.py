from __future__ import annotations

import pytest

from minka.errors import NotFoundError, RequestError, UnsupportedError
from minka.protocols.responses_items import chat_messages, sealed, unsealed
from minka.protocols.responses_request import Asked, decode_request
from minka.protocols.responses_store import Kept, ResponseStore, Shelf
from minka.protocols.responses_tools import decode_choice, decode_tools

FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def asked(shelf: Shelf | None = None, /, **fields: object) -> Asked:
    return decode_request({"input": "hi", **fields}, shelf)


def messages(*items: object, **fields: object) -> object:
    return asked(None, input=[*items], **fields).chat["messages"]


def message(role: str, *texts: str) -> dict[str, object]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


# -- items -------------------------------------------------------------------------------------------------------------


def test_a_text_and_instructions() -> None:
    assert asked(instructions="Be brief.").chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_messages_of_one_side_in_a_row_are_one() -> None:
    made = messages(
        {"role": "developer", "content": "a"},
        message("system", "b"),
        message("user", "c", "d"),
        {"role": "user", "content": "e"},
        message("assistant", "f"),
        message("developer", "g"),
        instructions="i",
    )
    assert made == [
        {"role": "system", "content": "i\n\na\n\nb"},
        {"role": "user", "content": "c\nd\n\ne"},
        {"role": "assistant", "content": "f"},
        {"role": "user", "content": "<system-reminder>\ng\n</system-reminder>"},
    ]


def test_a_whole_tool_turn() -> None:
    made = messages(
        message("user", "hi"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        message("assistant", "I look."),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "sql", "input": "SELECT 1"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "1"}]},
        message("user", "so?"),
    )
    assert made == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"type": "function", "id": "c2", "function": {"name": "sql", "arguments": '{"input": "SELECT 1"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": "1"},
        {"role": "user", "content": "so?"},
    ]


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        (
            {"summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "c"}]},
            "c",
        ),
        ({"summary": [], "encrypted_content": sealed("ñ")}, "ñ"),
        ({"summary": [], "encrypted_content": "gAAAAfromsomebodyelse"}, None),
        ({"summary": [], "encrypted_content": "minka:%%%"}, None),
    ],
)
def test_reasoning_that_comes_back(item: dict[str, object], thought: str | None) -> None:
    made = messages({"type": "reasoning", **item}, message("assistant", "x"), message("user", "y"))
    assert made[0].get("reasoning_content") == thought  # type: ignore[index]


def test_a_seal_hides_nothing_and_loses_nothing() -> None:
    assert unsealed(sealed("a\n\U0001f40d")) == "a\n\U0001f40d"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (1, "input[0]"),
        ({}, "input[0].type"),
        ({"type": "message", "role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": 1}, "input[0].content"),
        ({"role": "user", "content": [1]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "web_search_call"}, "input[0].type"),
    ],
)
def test_a_wrong_item_is_named(item: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages(item)
    assert caught.value.param == param


def test_images_are_refused() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    with pytest.raises(UnsupportedError, match="image input is not supported") as caught:
        messages({"role": "user", "content": [{"type": "input_text", "text": "x"}, image]})
    assert caught.value.param == "input[0].content[1]"


def test_an_error_in_what_is_kept_does_not_blame_the_input() -> None:
    with pytest.raises(RequestError) as caught:
        chat_messages("", [{"type": "odd"}, message("user", "x")], first=1)
    assert str(caught.value.param).startswith("previous_response_id")


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    made = asked(
        tools=[
            FUNCTION,
            {"type": "function", "name": "g", "parameters": None, "strict": None},
            {"type": "web_search", "external_web_access": False},
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "strict": False}]},
        ]
    )
    assert made.chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}},
        {"type": "function", "function": {"name": "spawn", "description": "", "parameters": {}}},
    ]
    assert made.tools["spawn"].namespace == "agents"


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}, "^(?:[0-9]+)$"),
        ({"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}, "^(?:(?:a)+)$"),
    ],
)
def test_free_form_tools(form: object, pattern: str | None) -> None:
    (tool,) = decode_tools([{"type": "custom", "name": "sql", "description": "d", "format": form}])
    assert tool.is_custom
    parameters = tool.function["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["properties"]["input"].get("pattern") == pattern
    assert parameters["required"] == ["input"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ([1], "tools[0]"),
        ([{"type": "function"}], "tools[0].name"),
        ([{**FUNCTION, "parameters": "x"}], "tools[0].parameters"),
        ([FUNCTION, {"type": "file_search"}], "tools[1].type"),
        ([{"type": "mcp"}], "tools[0].type"),
        ([FUNCTION, FUNCTION], "tools"),
        ([{"type": "custom", "name": "c", "format": {"type": "xml"}}], "tools[0].format.type"),
        ([{"type": "custom", "name": "c", "format": {"type": "grammar"}}], "tools[0].format.definition"),
        (
            [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "g4", "definition": "x"}}],
            "tools[0].format.syntax",
        ),
        (
            [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}],
            "tools[0].format.definition",
        ),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
    ],
)
def test_wrong_tools_are_named(tools: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_tools(tools)
    assert caught.value.param == param


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, {}),
        ("auto", {"tool_choice": "auto"}),
        ("required", {"tool_choice": "required"}),
        ({"type": "function", "name": "f"}, {"tool_choice": NAMED}),
        ({"type": "custom", "name": "f"}, {"tool_choice": NAMED}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
        ),
    ],
)
def test_tool_choice(choice: object, made: object) -> None:
    assert decode_choice(choice, decode_tools([FUNCTION])) == made


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("any", "tool_choice"),
        (1, "tool_choice"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "function", "name": "g"}, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "never", "tools": [NAMED]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}, "tool_choice.tools[0].name"),
    ],
)
def test_a_wrong_tool_choice_is_named(choice: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_choice(choice, decode_tools([FUNCTION]))
    assert caught.value.param == param


def test_a_choice_of_tools_that_are_not_there() -> None:
    assert decode_choice("auto", []) == {}
    with pytest.raises(RequestError):
        decode_choice("required", [])


# -- other fields ------------------------------------------------------------------------------------------------------


def test_what_goes_on_to_the_chat_request() -> None:
    made = asked(
        max_output_tokens=9, temperature=0.5, seed=3, stream=True, return_progress=True, parallel_tool_calls=False
    ).chat
    rest = {"temperature": 0.5, "seed": 3, "stream": True, "return_progress": True, "parallel_tool_calls": False}
    assert {name: value for name, value in made.items() if name != "messages"} == {"max_tokens": 9, **rest}


@pytest.mark.parametrize(
    ("form", "made"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_text_format(form: object, made: object) -> None:
    assert asked(text={"format": form, "verbosity": "low"}).chat.get("response_format") == made


@pytest.mark.parametrize(
    ("effort", "word"), [("none", "none"), ("minimal", "low"), ("medium", "medium"), ("xhigh", "high")]
)
def test_reasoning_effort(effort: str, word: str) -> None:
    assert asked(reasoning={"effort": effort}).chat["reasoning_effort"] == word


def test_how_reasoning_is_told() -> None:
    assert not asked().style.summary
    assert asked(reasoning={"summary": "auto"}).style.summary
    assert asked(include=["reasoning.encrypted_content"]).style.seals


def test_log_probabilities() -> None:
    assert asked().n_top is None
    assert asked(include=["message.output_text.logprobs"]).n_top == 0
    assert asked(top_logprobs=3).n_top == 3


def test_what_the_response_repeats() -> None:
    echo = asked(tools=[FUNCTION], metadata={"a": "b"}, truncation="auto", tool_choice="none", instructions="i").echo
    assert echo["tools"] == [FUNCTION]
    assert echo["metadata"] == {"a": "b"}
    assert echo["truncation"] == "auto"
    assert echo["tool_choice"] == "none"
    assert echo["instructions"] == "i"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"instructions": []}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"include": "x"}, "include"),
        ({"store": 1}, "store"),
        ({"background": True, "store": False}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": 1}, "reasoning"),
        ({"reasoning": {"effort": "wild"}}, "reasoning.effort"),
        ({"text": 1}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(None, **fields)
    assert caught.value.param == param


# -- what is kept ------------------------------------------------------------------------------------------------------


def kept(id: str, text: str, answer: str, previous: str = "", status: str = "completed") -> Kept:
    body = {"id": id, "status": status, "output": [{"id": f"msg_{id}", **message("assistant", answer)}]}
    return Kept(id, body, [{"id": f"in_{id}", **message("user", text)}], previous)


def test_going_on_from_a_response() -> None:
    shelf = ResponseStore().of("")
    shelf.save(kept("r1", "one", "1"))
    shelf.save(kept("r2", "two", "2", "r1"))
    made = asked(shelf, previous_response_id="r2", input="three", instructions="i")
    assert made.chat["messages"] == [
        {"role": "system", "content": "i"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "three"},
    ]
    assert len(made.items) == 1
    assert made.previous == "r2"


def test_a_response_that_is_not_there_or_another_tenants() -> None:
    store = ResponseStore()
    store.of("a").save(kept("r1", "one", "1"))
    for shelf in (store.of("b"), None):
        with pytest.raises(NotFoundError) as caught:
            asked(shelf, previous_response_id="r1")
        assert caught.value.param == "previous_response_id"


def test_a_response_that_failed_is_nothing_to_go_on_from() -> None:
    shelf = ResponseStore().of("")
    shelf.save(kept("r1", "one", "1", status="failed"))
    with pytest.raises(RequestError, match="failed"):
        asked(shelf, previous_response_id="r1")


def test_a_reference_to_an_item() -> None:
    shelf = ResponseStore().of("")
    shelf.save(kept("r1", "one", "1"))
    made = asked(shelf, input=[{"type": "item_reference", "id": "in_r1"}, {"type": "item_reference", "id": "msg_r1"}])
    assert made.chat["messages"] == [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
    with pytest.raises(NotFoundError) as caught:
        asked(shelf, input=[{"type": "item_reference", "id": "msg_r9"}])
    assert caught.value.param == "input[0].id"


def test_items_get_ids_and_texts_become_parts() -> None:
    items = asked(input=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]).items
    assert items[0]["content"] == [{"type": "input_text", "text": "x"}]
    assert items[1]["content"] == [{"type": "output_text", "text": "y", "annotations": []}]
    assert all(str(item["id"]).startswith("msg_") for item in items)
