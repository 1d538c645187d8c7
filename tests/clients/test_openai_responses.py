"""The official `openai` client's responses against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from pydantic import BaseModel, ConfigDict

from tests.server.site import Live

MODEL = "test-model"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(tiny_server: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{tiny_server.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def test_a_response(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Say something.", instructions="Be brief.", max_output_tokens=8)
    assert answer.id.startswith("resp_")
    assert answer.output_text
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 8


def test_the_streaming_helper_says_the_same(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="Say something.", max_output_tokens=12)
    with client.responses.stream(model=MODEL, input="Say something.", max_output_tokens=12) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_plain_events_are_numbered(client: OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="Hi.", max_output_tokens=4, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"


def test_asynchronously(tiny_server: Live) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="secret", max_retries=0) as client:
            whole = await client.responses.create(model=MODEL, input="Hi.", max_output_tokens=8)
            pieces = [
                event.delta
                async for event in await client.responses.create(
                    model=MODEL, input="Hi.", max_output_tokens=8, stream=True
                )
                if event.type == "response.output_text.delta"
            ]
            return [whole.output_text, "".join(pieces)]

    one, two = asyncio.run(ask())
    assert one == two


def test_a_conversation_that_the_server_keeps(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One.", max_output_tokens=4)
    second = client.responses.create(model=MODEL, input="Two.", max_output_tokens=4, previous_response_id=first.id)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="Three.", previous_response_id=second.id)


def test_in_the_background(client: OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="One.", max_output_tokens=8, background=True)
    while made.status in ("queued", "in_progress"):
        made = client.responses.retrieve(made.id)
    assert made.output_text


def test_following_a_background_stream_again(client: OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="One.", max_output_tokens=8, background=True, stream=True))
    assert events[0].type == "response.created"
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=2))
    assert [event.to_json() for event in again] == [event.to_json() for event in events[3:]]


def test_a_tool_that_must_be_called_is_and_its_result_goes_back(client: OpenAI) -> None:
    first = client.responses.create(
        model=MODEL,
        input="Weather?",
        max_output_tokens=200,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert call.name == "weather"
    assert set(json.loads(call.arguments)) == {"city"}
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}],
        max_output_tokens=4,
    )
    assert second.output_text


def test_a_tool_call_in_a_stream(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL,
        input="Weather?",
        max_output_tokens=200,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    ) as stream:
        final = stream.get_final_response()
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert set(json.loads(call.arguments)) == {"city"}


@pytest.mark.parametrize(
    ("syntax", "definition"), [("regex", "[ab]{3}\n"), ("lark", 'start: ("a" | "b")~3 LF\n%import common.LF')]
)
def test_a_free_form_tool_writes_what_its_grammar_allows(
    client: OpenAI, syntax: Literal["regex", "lark"], definition: str
) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="Go.",
        tools=[
            {
                "type": "custom",
                "name": "letters",
                "format": {"type": "grammar", "syntax": syntax, "definition": definition},
            }
        ],
        tool_choice={"type": "custom", "name": "letters"},
    )
    (call,) = [item for item in answer.output if item.type == "custom_tool_call"]
    assert len(call.input) == 4
    assert set(call.input[:3]) <= set("ab")
    assert call.input[3] == "\n"


class Choice(BaseModel):
    """What the text has to be."""

    model_config = ConfigDict(extra="forbid")

    n: Literal[1, 2]


def test_an_answer_in_a_schema(client: OpenAI) -> None:
    answer = client.responses.parse(model=MODEL, input="Choose.", text_format=Choice)
    assert answer.output_parsed is not None
    assert answer.output_parsed.n in (1, 2)


def test_counting(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="Say something.")
    used = client.responses.create(model=MODEL, input="Say something.", max_output_tokens=1).usage
    assert used is not None
    assert counted.input_tokens == used.input_tokens


def test_wrong_requests(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="Hi.", tools=[{"type": "file_search", "vector_store_ids": ["v"]}])
    assert caught.value.param == "tools[0].type"
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    with pytest.raises(openai.BadRequestError, match="image input is not supported"):
        client.responses.create(model=MODEL, input=[{"role": "user", "content": [image]}])  # type: ignore[list-item,misc]
