"""`messages` arrays: what is read, and the path of what is wrong."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.chat.messages import Message, TextPart, ToolCall, decode_messages
from minka.errors import RequestError, UnsupportedError

USER = {"role": "user", "content": "hi"}


def call(**changes: object) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **changes}


def test_a_whole_conversation() -> None:
    value = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call()], "reasoning_content": "hm", "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "developer", "content": "x"},
        {"role": "function", "name": "f", "content": ""},
    ]
    assert decode_messages(value) == (
        Message("system", "be brief"),
        Message("user", (TextPart("a"), TextPart("b")), name="ann"),
        Message("assistant", None, tool_calls=(ToolCall("c1", "f", "{}"),), reasoning_content="hm"),
        Message("tool", "42", tool_call_id="c1"),
        Message("developer", "x"),
        Message("function", "", name="f"),
    )


def test_messages_are_frozen() -> None:
    (message,) = decode_messages([USER])
    with pytest.raises(FrozenInstanceError):
        message.role = "system"  # type: ignore[misc]


def test_text_joins_parts() -> None:
    message = Message("user", (TextPart("a"), TextPart("b")))
    assert message.text() == "a\nb"
    assert message.text("\n\n") == "a\n\nb"
    assert Message("assistant").text() == ""


def test_arguments_that_come_as_an_object_are_kept_as_json() -> None:
    function = {"name": "f", "arguments": {"city": "Zürich"}}
    message = decode_messages([USER, {"role": "assistant", "tool_calls": [call(function=function)]}])[1]
    assert message.tool_calls[0].arguments == '{"city": "Zürich"}'


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},  # llama-server takes null as empty text
        {"role": "user", "content": []},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": None},
        {"role": "assistant", "reasoning_content": "thought"},
        {"role": "assistant", "tool_calls": [call(id=None)]},
        {"role": "user", "content": "x", "unknown": {"deep": 1}},
        {"role": "user", "content": "x", "function_call": None},
    ],
)
def test_accepted(message: dict[str, object]) -> None:
    assert decode_messages([message])


@pytest.mark.parametrize(
    ("value", "param", "text"),
    [
        (None, "messages", "required"),
        ("hi", "messages", "array"),
        ({}, "messages", "array"),
        ([], "messages", "at least one"),
        (["hi"], "messages[0]", "object"),
        ([USER, None], "messages[1]", "object, got null"),
        ([{"content": "x"}], "messages[0].role", "Missing 'role'"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", '"robot"'),
        ([{"role": 7, "content": "x"}], "messages[0].role", "a number"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role", "an array"),
        ([{"role": "user"}], "messages[0].content", "All non-assistant messages must contain 'content'"),
        ([{"role": "tool", "tool_call_id": "x"}], "messages[0].content", "must contain 'content'"),
        ([{"role": "assistant"}], "messages[0]", "must contain either 'content' or 'tool_calls'"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0]", "must contain either"),
        ([{"role": "user", "content": 5}], "messages[0].content", "a number"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content", "an object"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "object"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "Missing content part type"),
        (
            [USER, {"role": "user", "content": [{"type": "blob"}]}],
            "messages[1].content[0].type",
            "unsupported content[]",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "Missing 'text'"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text", "string"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content", "surrogate"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name", "string"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "messages[0].tool_call_id", "string"),
        ([{"role": "assistant", "content": "", "tool_calls": {}}], "messages[0].tool_calls", "array"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]", "object"),
        ([{"role": "assistant", "tool_calls": [call(type="custom")]}], "messages[0].tool_calls[0].type", "custom"),
        ([{"role": "assistant", "tool_calls": [call(function=1)]}], "messages[0].tool_calls[0].function", "object"),
        (
            [{"role": "assistant", "tool_calls": [call(function={"name": "", "arguments": "{}"})]}],
            "messages[0].tool_calls[0].function.name",
            "non-empty",
        ),
        (
            [{"role": "assistant", "tool_calls": [call(function={"name": "f"})]}],
            "messages[0].tool_calls[0].function.arguments",
            "JSON",
        ),
        (
            [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            "messages[2]",
            "Cannot have 2 or more assistant messages at the end of the list.",
        ),
    ],
)
def test_refused(value: object, param: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_messages(value)
    assert caught.value.param == param
    assert text in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "medium"),
    [("image_url", "image"), ("input_audio", "audio"), ("video_url", "video"), ("input_image", "image")],
)
def test_media_are_not_supported_yet(kind: str, medium: str) -> None:
    value = [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "x"}}]}]
    with pytest.raises(UnsupportedError, match=f"{medium} input is not supported") as caught:
        decode_messages(value)
    assert caught.value.param == "messages[0].content[1].type"


def test_function_call_is_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="tool_calls") as caught:
        decode_messages([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}])
    assert caught.value.param == "messages[0].function_call"


def test_two_assistant_messages_in_the_middle_are_fine() -> None:
    turns = [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER]
    assert len(decode_messages(turns)) == 4


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["user", "assistant", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values | st.lists(json_values, max_size=3))
def test_any_json_is_messages_or_a_request_error(value: object) -> None:
    try:
        messages = decode_messages(value)
    except RequestError as error:
        assert error.param is not None  # noqa: PT017
        assert error.param.startswith("messages")  # noqa: PT017
    else:
        assert all(isinstance(message.text(), str) for message in messages)
