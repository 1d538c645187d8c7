"""The clients' own loops over tools, with a model that plays its part: call, result, answer."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from anthropic import Anthropic, beta_tool
from openai import OpenAI

from tests.clients.scripted import Part, scripted_runtime
from tests.server.site import Live

PART = Part("look_up", {"name": "colour"}, "teal")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(scripted_runtime(PART)) as made:
        yield made


@beta_tool
def look_up(name: str) -> str:
    """Look up a word.

    Args:
        name: what to look up
    """
    return {"colour": "It is teal."}[name]


def test_anthropics_tool_runner(live: Live) -> None:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=500, tools=[look_up], messages=[{"role": "user", "content": "Which colour?"}]
        )
        messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[0].content[0].type == "tool_use"
    assert messages[0].content[0].input == {"name": "colour"}
    assert messages[1].content[0].type == "text"
    assert messages[1].content[0].text == "The word is teal."
    assert (messages[1].usage.cache_read_input_tokens or 0) > 0


def test_anthropics_streaming_tool_runner(live: Live) -> None:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=500,
            tools=[look_up],
            stream=True,
            messages=[{"role": "user", "content": "Which colour?"}],
        )
        finals = [stream.get_final_message() for stream in runner]
    assert [message.stop_reason for message in finals] == ["tool_use", "end_turn"]


def test_responses_over_two_turns(live: Live) -> None:
    tool = {"type": "function", "name": "look_up", "strict": False, "parameters": {"type": "object"}}
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(model="m", input="Which colour?", tools=[tool])  # type: ignore[list-item]
        (call,) = [item for item in first.output if item.type == "function_call"]
        second = client.responses.create(
            model="m",
            previous_response_id=first.id,
            tools=[tool],  # type: ignore[list-item]
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "It is teal."}],
        )
    assert call.arguments == '{"name": "colour"}'
    assert second.output_text == "The word is teal."
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_what_a_coding_agent_sends_first(live: Live) -> None:
    """A request with everything that Claude Code puts into one."""
    body = {
        "model": "m",
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.1.abc; cch=00000;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "Available agents: none."},
        ],
        "tools": [
            {"name": "look_up", "description": "d", "input_schema": {"type": "object", "properties": {}}},
            {
                "name": "list",
                "description": "d",
                "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        ],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "{}"},
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219", "x-api-key": "none"}
    answer = httpx.post(f"{live.url}/v1/messages?beta=true", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert '"stop_reason":"tool_use"' in answer.text
