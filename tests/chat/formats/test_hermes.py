from __future__ import annotations

import pytest

from minka.chat.formats.format import Ask, Calls, PastCall
from tests.chat.formats.samples import TOOLS, WEATHER, Sample, accepts, check, family, real, refuses

SOURCE = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call> </think>'
HERMES = family(SOURCE)
TEMPLATES = (
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = ("get_weather", {"city": "Paris"})

SAMPLES = {
    "content": Sample("Hello, world!\n", content="Hello, world!\n"),
    "content that looks like a tag": Sample("a <tool_c", content="a <tool_c"),
    "call": Sample(CALL, calls=[PARIS]),
    "call without room": Sample(
        '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>', calls=[PARIS], accepted=False
    ),
    "content and call": Sample(f"Let me see.\n{CALL}", content="Let me see.", calls=[PARIS]),
    "two calls": Sample(
        f'{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>',
        calls=[PARIS, ("get_time", {})],
    ),
    "brackets in strings": Sample(
        '<tool_call>\n{"name": "run_code", "arguments": {"code": "if (a) { \\"}</tool_call>\\\\\\" }", '
        '"options": {"deep": true}}}\n</tool_call>',
        calls=[("run_code", {"code": 'if (a) { "}</tool_call>\\" }', "options": {"deep": True}})],
        accepted=None,
    ),
    "reasoning": Sample("<think>\nI think.\n</think>\n\nHello", reasoning="I think.", content="Hello"),
    "empty reasoning": Sample("<think>\n\n</think>\n\nHello", content="Hello"),
    "reasoning and call": Sample(f"<think>\nHm.\n</think>\n\n{CALL}", reasoning="Hm.", calls=[PARIS]),
    "reasoning that the prompt opened": Sample(
        f"Hm <think>.\n</think>\n\n{CALL}",
        reasoning="Hm <think>.",
        calls=[PARIS],
        ask=Ask(TOOLS, Calls.AUTO, thinks=True, prefill="<think>\n"),
        accepted=None,
    ),
    "reasoning that never ends": Sample("<think>\nHm ", reasoning="Hm", accepted=False),
    "arguments first": Sample(
        '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>',
        calls=[PARIS],
        accepted=False,
    ),
    "unknown tool": Sample(
        '<tool_call>\n{"name": "get_news", "arguments": {}}\n</tool_call>',
        content='<tool_call>\n{"name": "get_news", "arguments": {}}\n</tool_call>',
        accepted=False,
    ),
    "cut off": Sample(CALL[:-25], cut='{"city', accepted=False),
    "no JSON": Sample(
        '<tool_call>\n{"name": "get_weather", "arguments": {city: 1}}\n</tool_call> so',
        content='<tool_call>\n{"name": "get_weather", "arguments": {city: 1}}\n</tool_call> so',
        broken=1,
        accepted=False,
    ),
    "kept reasoning": Sample(
        f"<think>\nHm.\n</think>\n\n{CALL}",
        content="<think>\nHm.\n</think>",
        calls=[PARIS],
        ask=Ask(TOOLS, Calls.AUTO, thinks=True, keep_reasoning=True),
    ),
    "no tools": Sample(CALL, content=CALL, ask=Ask()),
    "content to go on with": Sample(" world", content=" world", ask=Ask(TOOLS, Calls.AUTO, prefill="Hello")),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str) -> None:
    assert family(real(name)).name == "hermes"


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=list(SAMPLES))
def test_samples(sample: Sample) -> None:
    check(HERMES, sample)


def test_wrong_arguments_are_refused() -> None:
    refuses(
        HERMES,
        "Hello",
        CALL.replace('"Paris"', "7"),
        CALL.replace('"city"', '"town"'),
        CALL.replace("get_weather", "get_news"),
        CALL.replace('{"city": "Paris"}', "{}"),
        CALL.replace('"Paris"', '"Paris", "extra": 1'),
    )
    refuses(HERMES, f"{CALL}\n{CALL}", ask=Ask(TOOLS, Calls.REQUIRED, parallel=False))
    refuses(HERMES, "so " + CALL.replace('"Paris"', "7"), ask=Ask(TOOLS, Calls.AUTO))


def test_named_tool() -> None:
    ask = Ask((WEATHER,), Calls.REQUIRED)
    assert accepts(HERMES, ask, CALL)
    refuses(HERMES, '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>', ask=ask)


def test_content_beside_tools() -> None:
    ask = Ask(TOOLS, Calls.AUTO, content='%json {"type": "integer"}', thinks=True)
    assert accepts(HERMES, ask, "42")
    assert accepts(HERMES, ask, "<think>Hm</think>\n\n42")
    assert accepts(HERMES, ask, CALL)
    refuses(HERMES, "Hello", ask=ask)


def test_exaone_writes_a_call_in_one_line() -> None:
    one = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    exaone = family('"<tool_call>" }}{"name": </think>')
    check(exaone, Sample(one, calls=[("get_weather", {"city": "Paris"})]))
    assert exaone.write([PastCall("get_weather", {"city": "Paris"})]) == one
