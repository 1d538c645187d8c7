"""All templates of a directory, named by MINKA_TEMPLATES: llama.cpp's models/templates, or your own collection."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minka.chat.messages import Message, TextPart, ToolCall
from minka.chat.prefill import decode_prefill
from minka.chat.template import ChatTemplate
from minka.errors import RequestError
from tests.chat.sources import WEATHER, template

DIRECTORY = os.environ.get("MINKA_TEMPLATES", "")
FILES = sorted(Path(DIRECTORY).glob("*.jinja")) if DIRECTORY else []

SYSTEM, USER, ANSWER, AGAIN = (
    Message("system", "word-system"),
    Message("user", "word-user"),
    Message("assistant", "word-answer"),
    Message("user", "word-again"),
)
CALL = Message("assistant", None, tool_calls=(ToolCall("call_1a2b3c", "get_weather", '{"city": "word-city"}'),))
CALL_2 = ToolCall("call_4d5e6f", "get_weather", '{"city": "word-town"}')
RESULT = Message("tool", "word-result", tool_call_id="call_1a2b3c")
RESULT_2 = Message("tool", "word-outcome", tool_call_id="call_4d5e6f")
PARTS = Message("user", (TextPart("word-one"), TextPart("word-two")))
PARTS_SYSTEM = Message("system", (TextPart("word-three"), TextPart("word-four")))
PARTS_ANSWER = Message("assistant", (TextPart("word-five"), TextPart("word-six")))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def chosen(request: pytest.FixtureRequest) -> ChatTemplate:
    return template(request.param.read_text(encoding="utf-8"))


def test_directory_is_given() -> None:
    if not FILES:
        pytest.skip("set MINKA_TEMPLATES to a directory of *.jinja files to try them all")


def test_plain_conversation(chosen: ChatTemplate) -> None:
    text = chosen.render([SYSTEM, USER, ANSWER, AGAIN])
    assert all(word in text for word in ("word-system", "word-user", "word-answer", "word-again"))
    assert "word-user" in chosen.render([USER])
    assert "word-system" in chosen.render([Message("developer", "word-system"), USER])


def test_parts(chosen: ChatTemplate) -> None:
    text = chosen.render([PARTS_SYSTEM, PARTS, PARTS_ANSWER, USER])
    assert all(f"word-{number}" in text for number in ("one", "two", "three", "four", "five", "six"))
    assert "'type'" not in text


def test_tools_calls_and_results(chosen: ChatTemplate) -> None:
    text = chosen.render([SYSTEM, USER], tools=[WEATHER])
    assert all(word in text for word in ("word-system", "word-user", "get_weather", "Weather of a city"))
    text = chosen.render([USER, CALL, RESULT], tools=[WEATHER])
    assert all(word in text for word in ("word-user", "get_weather", "word-city", "word-result"))
    text = chosen.render([USER, CALL, RESULT, ANSWER, AGAIN])
    assert all(word in text for word in ("word-city", "word-result", "word-answer", "word-again"))
    assert "{'city': 'word-city'}" not in text


def test_parallel_calls(chosen: ChatTemplate) -> None:
    if not chosen.caps.supports_parallel_tool_calls and chosen.caps.supports_tool_calls:
        pytest.skip("this template takes one call at a time")
    both = Message("assistant", None, tool_calls=(*CALL.tool_calls, CALL_2))
    text = chosen.render([USER, both, RESULT, RESULT_2], tools=[WEATHER])
    assert all(word in text for word in ("word-city", "word-town", "word-result", "word-outcome"))


def test_prefill(chosen: ChatTemplate) -> None:
    messages = [USER, Message("assistant", "word-begun")]
    text = decode_prefill({}, messages, automatic=True).render(chosen, messages)
    assert text.endswith("word-begun")


def test_thinking_off(chosen: ChatTemplate) -> None:
    assert "word-user" in chosen.render([USER], kwargs={"enable_thinking": False})


def test_alternation_is_the_only_refusal(chosen: ChatTemplate) -> None:
    try:
        text = chosen.render([USER, USER, USER])
    except RequestError as error:
        assert "failed" not in error.message  # noqa: PT017
    else:
        assert "word-user" in text
