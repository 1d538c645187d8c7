"""The official `anthropic` client against a real server: what it sends is understood, what it gets it can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from tests.server.site import Live

MODEL = "test-model"
MESSAGES: list[MessageParam] = [{"role": "user", "content": "Say something."}]
WEATHER: ToolParam = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(tiny_server: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=tiny_server.url, api_key="secret", max_retries=0) as made:
        yield made


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES, system="Be brief.")
    assert message.type == "message"
    assert message.content[0].type == "text"
    assert message.content[0].text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8
    assert message._request_id


def test_the_streaming_helper_says_the_same(client: Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=12, messages=MESSAGES)
    with client.messages.stream(model=MODEL, max_tokens=12, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert text == stream.get_final_text()
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    read = whole.usage.cache_read_input_tokens or 0, final.usage.cache_read_input_tokens or 0
    assert final.usage.input_tokens + read[1] == whole.usage.input_tokens + read[0]


def test_plain_events(client: Anthropic) -> None:
    events = list(client.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES, stream=True))
    assert [event.type for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]


def test_asynchronously(tiny_server: Live) -> None:
    async def ask() -> tuple[str, str]:
        async with AsyncAnthropic(base_url=tiny_server.url, auth_token="secret", max_retries=0) as client:
            whole = await client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES)
            assert whole.content[0].type == "text"
            async with client.messages.stream(model=MODEL, max_tokens=8, messages=MESSAGES) as stream:
                return whole.content[0].text, await stream.get_final_text()

    one, two = asyncio.run(ask())
    assert one == two


def test_counting(client: Anthropic) -> None:
    short = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    longer = client.messages.count_tokens(model=MODEL, messages=MESSAGES, system="Be brief.").input_tokens
    used = client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES).usage
    assert 0 < short < longer
    assert used.input_tokens + (used.cache_read_input_tokens or 0) == short


def test_a_stop_sequence(client: Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=24, messages=MESSAGES)
    assert whole.content[0].type == "text"
    word = whole.content[0].text[6:9]
    cut = client.messages.create(model=MODEL, max_tokens=24, messages=MESSAGES, stop_sequences=[word])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == word
    assert word not in "".join(block.text for block in cut.content if block.type == "text")


def test_a_tool_that_must_be_called_is_and_its_result_goes_back(client: Anthropic) -> None:
    first = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "weather"
    assert call.id
    assert isinstance(call.input["city"], str)
    after: list[MessageParam] = [
        *MESSAGES,
        {"role": "assistant", "content": list(first.content)},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
    ]
    second = client.messages.create(
        model=MODEL, max_tokens=4, messages=after, tools=[WEATHER], tool_choice={"type": "none"}
    )
    assert second.content[0].type == "text"


def test_a_tool_call_in_a_stream_joins_to_the_same(client: Anthropic) -> None:
    with client.messages.stream(
        model=MODEL,
        max_tokens=200,
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    ) as stream:
        final = stream.get_final_message()
    (call,) = [block for block in final.content if block.type == "tool_use"]
    assert set(call.input) == {"city"}
    assert final.stop_reason == "tool_use"


def test_an_answer_in_a_schema(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    message = client.messages.create(
        model=MODEL,
        max_tokens=64,
        messages=MESSAGES,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert message.content[0].type == "text"
    assert message.content[0].text.replace(" ", "").replace("\n", "") in ('{"n":1}', '{"n":2}')


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_wrong_key(tiny_server: Live) -> None:
    with Anthropic(base_url=tiny_server.url, api_key="guess", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES)
        assert caught.value.type == "authentication_error"


def test_a_wrong_request(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES, extra_body={"temperature": -1})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="context size"):
        client.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "word " * 5000}], stream=True
        )


def test_an_image(client: Anthropic) -> None:
    image: MessageParam = {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}],
    }
    with pytest.raises(anthropic.BadRequestError, match="image input is not supported"):
        client.messages.create(model=MODEL, max_tokens=1, messages=[image])


def test_a_path_that_is_not_there(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    assert caught.value.type == "not_found_error"
