"""The official OpenAI client with pydantic models and whole loops over tools, against a model that plays its part."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import uuid
from collections.abc import Iterator
from enum import Enum
from typing import Literal

import pytest
from openai import OpenAI, pydantic_function_tool
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolParam,
    ParsedChoice,
)
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import UUID4, BaseModel, SecretStr

from tests.clients.scripted import Told, call_of, scripted_runtime, told
from tests.server.site import Live


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    """It is recursive."""

    value: int
    kids: list[Tree]


class Everything(BaseModel):
    """What pydantic has schemas for and clients send as strict."""

    name: str
    age: int
    height: float
    colour: Colour
    kind: Literal["a", "b"]
    partner: str | None
    tags: list[str]
    tree: Tree
    either: int | Tree
    day: dt.date
    moment: dt.datetime
    took: dt.timedelta
    id: uuid.UUID
    id4: UUID4
    file: pathlib.Path
    secret: SecretStr


class GetWeather(BaseModel):
    """Weather of a city."""

    city: str


class GetTime(BaseModel):
    """The time."""

    zone: str


TOOLS: list[ChatCompletionToolParam] = [pydantic_function_tool(GetTime), pydantic_function_tool(GetWeather)]
WEATHER = call_of("GetWeather", city="Paris")
TIME = call_of("GetTime", zone="CET")
NAMED: ChatCompletionNamedToolChoiceParam = {"type": "function", "function": {"name": "GetWeather"}}

Choice = Literal["auto", "required"] | ChatCompletionNamedToolChoiceParam


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(scripted_runtime(Told())) as made:
        yield made


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def user(*answers: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": told(*answers)}]


# -- pydantic models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Everything, Tree])
def test_a_chat_is_parsed(client: OpenAI, model: type[BaseModel]) -> None:
    answer = client.chat.completions.parse(model="m", messages=user("~"), response_format=model)
    assert isinstance(answer.choices[0].message.parsed, model)
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_is_parsed(client: OpenAI) -> None:
    with client.chat.completions.stream(model="m", messages=user("~"), response_format=Everything) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert isinstance(choice.message.parsed, Everything)
    assert kinds[-1] == "content.done"
    assert kinds.count("content.delta") > 10


@pytest.mark.parametrize("model", [Everything, Tree])
def test_a_response_is_parsed(client: OpenAI, model: type[BaseModel]) -> None:
    assert isinstance(client.responses.parse(model="m", input=told("~"), text_format=model).output_parsed, model)


def test_a_stream_of_a_response_is_parsed(client: OpenAI) -> None:
    with client.responses.stream(model="m", input=told("~"), text_format=Tree) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output_parsed == Tree(value=1, kids=[])


@pytest.mark.parametrize("model", [Everything, Tree])
def test_arguments_are_parsed(client: OpenAI, model: type[BaseModel]) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=user("~"), tools=[pydantic_function_tool(model)], tool_choice="required"
    )
    assert isinstance((answer.choices[0].message.tool_calls or [])[0].function.parsed_arguments, model)


# -- loops -------------------------------------------------------------------------------------------------------------


def ask(
    client: OpenAI, messages: list[ChatCompletionMessageParam], choice: Choice, *, stream: bool
) -> ParsedChoice[None]:
    if not stream:
        return client.chat.completions.parse(model="m", messages=messages, tools=TOOLS, tool_choice=choice).choices[0]
    with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS, tool_choice=choice) as events:
        return events.until_done().get_final_completion().choices[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_calls_results_and_an_answer(client: OpenAI, choice: Choice, stream: bool) -> None:
    messages = user(WEATHER, TIME, "It is sunny at 7.")
    called = []
    for step, wanted in enumerate((choice, "auto", "auto")):
        made = ask(client, messages, wanted, stream=stream)
        messages.append(made.message.to_dict())  # type: ignore[arg-type]
        for call in made.message.tool_calls or []:
            called.append(call.function.parsed_arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result {step}"})
        assert made.finish_reason == ("tool_calls" if step < 2 else "stop")
    assert called == [GetWeather(city="Paris"), GetTime(zone="CET")]
    assert messages[-1].get("content") == "It is sunny at 7."


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_is_held_to(client: OpenAI, stream: bool) -> None:
    made = ask(client, user("~"), NAMED, stream=stream)
    assert [call.function.name for call in made.message.tool_calls or []] == ["GetWeather"]
    assert made.message.content is None


@pytest.mark.parametrize("stream", [False, True])
def test_two_calls_at_once(client: OpenAI, stream: bool) -> None:
    made = ask(client, user(f"{WEATHER}\n{TIME}"), "auto", stream=stream)
    calls = made.message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [GetWeather(city="Paris"), GetTime(zone="CET")]
    assert len({call.id for call in calls}) == 2


def test_a_loop_of_responses(client: OpenAI) -> None:
    tool: FunctionToolParam = {
        "type": "function",
        "name": "GetWeather",
        "strict": False,
        "parameters": GetWeather.model_json_schema(),
    }
    conversation: ResponseInputParam = [{"role": "user", "content": told(WEATHER, "It is sunny.")}]
    first = client.responses.parse(model="m", input=conversation, tools=[tool], tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Paris"}
    conversation += [item.to_dict() for item in first.output]  # type: ignore[misc]
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert client.responses.parse(model="m", input=conversation, tools=[tool]).output_text == "It is sunny."


def test_style_is_taken_note_of(client: OpenAI) -> None:
    """Agents send it to every model."""
    answer = client.chat.completions.create(model="m", messages=user("Hi."), verbosity="low")
    assert answer.choices[0].message.content == "Hi."
