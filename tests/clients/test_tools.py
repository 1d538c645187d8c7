"""The official OpenAI client calls tools: a loop of two steps, typed arguments, streams."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.server.site import Live

pytestmark = pytest.mark.model

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}
TIME: ChatCompletionToolParam = {"type": "function", "function": {"name": "get_time", "description": "The time now"}}
ASK: ChatCompletionMessageParam = {"role": "user", "content": "What is the weather in Paris?"}


class Weather(BaseModel):
    """Weather of a city."""

    unit: Literal["celsius", "fahrenheit"]
    days: int


@pytest.fixture
def client(demo_server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="any", max_retries=0, timeout=300)


def test_a_loop_of_two_steps(client: openai.OpenAI) -> None:
    messages = [ASK]
    first = client.chat.completions.create(
        model="any", messages=messages, tools=[WEATHER, TIME], tool_choice="required", max_tokens=60
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name in ("get_weather", "get_time")
    messages.append(choice.message.to_dict())  # type: ignore[arg-type]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'})
    second = client.chat.completions.create(
        model="any", messages=messages, tools=[WEATHER, TIME], tool_choice="none", max_tokens=12
    )
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None


def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=[ASK],
        tools=[WEATHER, TIME],
        tool_choice={"type": "function", "function": {"name": "get_time"}},
        parallel_tool_calls=False,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {})


def test_typed_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="any",
        messages=[ASK],
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_stream_of_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="any", messages=[ASK], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=60
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
