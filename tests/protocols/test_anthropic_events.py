from __future__ import annotations

import json

from minka.chat.formats.format import CallArguments, CallBroken, CallStart, Content, Delta, Reasoning
from minka.protocols.anthropic_events import Blocks, signature
from tests.protocols.vendor import DELTAS, anthropic_events, anthropic_message


def told(*deltas: Delta, shown: bool = True) -> list[dict[str, object]]:
    blocks = Blocks(shown=shown)
    return anthropic_events([*blocks.add(deltas), *blocks.stop()])


def content(*deltas: Delta, shown: bool = True) -> list[dict[str, object]]:
    blocks = Blocks(shown=shown)
    list(blocks.add(deltas, whole=True))
    list(blocks.stop())
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "usage": usage}
    anthropic_message({**message, "content": blocks.content()})
    return blocks.content()


def joined(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """The blocks that a reader of the stream ends with."""
    blocks: list[dict[str, object]] = []
    raw: list[str] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": dict(block)}:
                blocks.append(dict(block))
                raw.append("")
            case {"delta": {"type": "text_delta", "text": str(text)}}:
                blocks[-1]["text"] = str(blocks[-1]["text"]) + text
            case {"delta": {"type": "thinking_delta", "thinking": str(text)}}:
                blocks[-1]["thinking"] = str(blocks[-1]["thinking"]) + text
            case {"delta": {"type": "signature_delta", "signature": str(text)}}:
                blocks[-1]["signature"] = text
            case {"delta": {"type": "input_json_delta", "partial_json": str(text)}}:
                raw[-1] += text
                continue
            case {"type": "content_block_stop"} if raw[-1]:
                blocks[-1]["input"] = json.loads(raw[-1])
    return blocks


def test_each_block_is_stopped_before_the_next_begins() -> None:
    events = told(*DELTAS)
    kinds = [event["content_block"]["type"] for event in events if "content_block" in event]  # type: ignore[index]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]


def test_a_thinking_block_is_signed_before_its_end() -> None:
    events = told(Reasoning("hm"), Content("x"))
    index = [event["type"] for event in events].index("content_block_stop")
    assert events[index - 1]["delta"] == {"type": "signature_delta", "signature": signature("hm")}


def test_the_stream_joins_to_the_whole() -> None:
    assert joined(told(*DELTAS)) == content(*DELTAS)
    assert content(*DELTAS)[2] == {
        "type": "tool_use",
        "id": "call_1",
        "name": "weather",
        "input": {"city": "Lima"},
    }


def test_thinking_that_is_not_shown_is_signed_all_the_same() -> None:
    assert joined(told(*DELTAS, shown=False)) == content(*DELTAS, shown=False)
    assert content(*DELTAS, shown=False)[0] == {
        "type": "thinking",
        "thinking": "",
        "signature": signature("Let me look."),
    }


def test_empty_pieces_make_no_block() -> None:
    assert told(Reasoning(""), Content("")) == []


def test_a_call_without_arguments_has_an_empty_input() -> None:
    assert content(CallStart(0, "f", "i"))[0]["input"] == {}
    assert joined(told(CallStart(0, "f", "i")))[0]["input"] == {}


def test_a_broken_call_is_text_in_the_whole_and_a_stopped_block_in_a_stream() -> None:
    deltas = (Content("a"), CallStart(0, "f", "i"), CallArguments(0, '{"x'), CallBroken(0), Content('<call>{"xb'))
    assert content(*deltas) == [{"type": "text", "text": 'a<call>{"xb'}]
    kinds = [event["content_block"]["type"] for event in told(*deltas) if "content_block" in event]  # type: ignore[index]
    assert kinds == ["text", "tool_use", "text"]


def test_a_broken_call_with_nothing_before_it() -> None:
    assert content(CallStart(0, "f", "i"), CallBroken(0), Content("<call>")) == [{"type": "text", "text": "<call>"}]
