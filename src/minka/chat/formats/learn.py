"""The format of a template that no family knows, learned from what it writes: conversations with marked words are
rendered, and the text around the words is the format.

As llama.cpp's differential parser does it. What was learned is tried on the template's own text before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.bare import Bare
from minka.chat.formats.calls import CallStyle, JsonCall, NamedCall, TaggedCall
from minka.chat.formats.format import Ask, CallArguments, Calls, CallStart, Format, ReasoningTags, Tool
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags
from minka.chat.messages import Message, ToolCall
from minka.chat.profile import common_prefix
from minka.chat.template import Template
from minka.errors import MinkaError
from minka.grammar.marks import regex_of

USER, CONTENT = Message("user", "prb-user"), "prb-content"
NAMES = ("prb_alpha", "prb_beta")
IDS = ("prbcall01", "prbcall02")
ARGUMENTS = ({"prb_one": "prb-first", "prb_two": "prb-second"}, {"prb_one": "prb-third", "prb_two": "prb-fourth"})
_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"prb_one": {"type": "string"}, "prb_two": {"type": "string"}},
    "required": ["prb_one", "prb_two"],
}
TOOLS = tuple(Tool(name, "prb-description", _SCHEMA) for name in NAMES)
_TURN_END = re.compile(r"<[^<>]*(?:end_of|eom|eot|eos|im_end|turn)[^<>]*>", re.IGNORECASE)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Found:
    """A call in a text: how it is written, and where."""

    style: CallStyle
    start: int
    end: int


def learn(template: Template, reasoning: ReasoningTags | None) -> Format | None:
    """The format of this template, or None if it shows no calls, or in a way that is not understood."""
    try:
        format = _learned(template, reasoning)
        return format if format is not None and _reads_back(template, format) else None
    except MinkaError:
        return None


def reasoning_of(template: Template) -> ReasoningTags | None:
    """The tags of the reasoning as the template shows them."""
    marks = template.reasoning_marks
    if marks is None or not marks.end.strip():
        return None
    return ReasoningTags(marks.start.lstrip(), (marks.end.strip(),))


def _learned(template: Template, reasoning: ReasoningTags | None) -> Format | None:
    one = _written(template, 1)
    found = _find(one, 0) if one else None
    if one is None or found is None:
        return None
    before, behind = one[: found.start], one[found.end :]
    two = _written(template, 2) if template.caps.supports_parallel_tool_calls else None
    first = _find(two, 0) if two else None
    second = _find(two, 1) if two else None
    if two is None or first is None or second is None or second.start < first.end:
        return _shaped(found.style, before, behind, "", "", "", reasoning)
    between = two[first.end : second.start]
    call_open = _whole_tags(_common_suffix(before, between))
    between = between[: len(between) - len(call_open)]
    call_close = common_prefix(behind, between)
    separator = between[len(call_close) :]
    section = before[: len(before) - len(call_open)]
    return _shaped(found.style, section, behind[len(call_close) :], call_open, call_close, separator, reasoning)


def _shaped(
    style: CallStyle,
    open: str,
    close: str,
    call_open: str,
    call_close: str,
    separator: str,
    reasoning: ReasoningTags | None,
) -> Format | None:
    opening = (open + call_open).strip()
    if not opening:
        return _bare(style, separator, reasoning)
    tags = lark.tags(opening)
    trigger = tags[0] if tags and opening.startswith(tags[0]) else opening
    close = _TURN_END.split(close)[0] if open.strip() else ""
    open, call_open = (open.lstrip(), call_open) if open.strip() else ("", (open + call_open).lstrip())
    return Shape(
        "learned",
        style,
        open=open,
        close=close.rstrip(),
        call_open=call_open,
        call_close=call_close if close.strip() else call_close.rstrip(),
        separator=separator,
        trigger=trigger,
        reasoning=reasoning,
    )


def _bare(style: CallStyle, separator: str, reasoning: ReasoningTags | None) -> Format | None:
    if not isinstance(style, JsonCall) or style.outer[0]:
        return None
    first = style.id if style.id_first else style.name
    begins = rf"\{{[ \t\n]*\x{{22}}{regex_of(first)}\x{{22}}[ \t\n]*:"
    return Bare("learned", style, begins, separator=separator or "\n", reasoning=reasoning)


# -- texts -------------------------------------------------------------------------------------------------------------


def _written(template: Template, n_calls: int) -> str | None:
    """What the template writes for an answer of calls alone, without the header and the end of the turn."""
    described = [_described(tool) for tool in TOOLS]
    calls = tuple(ToolCall(IDS[i], NAMES[i], json.dumps(ARGUMENTS[i])) for i in range(n_calls))

    def render(*turns: Message) -> str:
        return template.render([USER, *turns], tools=described, add_generation_prompt=False)

    called = render(Message("assistant", None, tool_calls=calls))
    told = render(Message("assistant", CONTENT))
    start, _, end = told.rpartition(CONTENT)
    shared = common_prefix(start, called)
    if shared.rfind("<") > shared.rfind(">"):
        shared = shared[: shared.rfind("<")]
    text = called[len(shared) :]
    return text.removesuffix(end) if end and text.endswith(end) else text.rstrip() if not end.strip() else text


def _described(tool: Tool) -> Mapping[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _common_suffix(one: str, other: str) -> str:
    return common_prefix(one[::-1], other[::-1])[::-1]


def _whole_tags(text: str) -> str:
    """A text that was cut at its start, from its first whole tag on."""
    close, open = text.find(">"), text.find("<")
    return text[close + 1 :] if close >= 0 and (open < 0 or close < open) else text


# -- calls -------------------------------------------------------------------------------------------------------------


def _find(text: str, index: int) -> _Found | None:
    """The call with this number in a text."""
    name, arguments = NAMES[index], ARGUMENTS[index]
    at = text.find(name)
    if at < 0:
        return None
    for start, end, value in _values(text):
        if start <= at < end and isinstance(value, dict):
            style = _json_style(value, index)
            if style is not None:
                return _Found(style, start, end)
        if start > at and value == arguments:
            return _Found(NamedCall("", text[at + len(name) : start]), at, end)
    return _find_tagged(text, at, name, arguments)


def _values(text: str) -> Iterator[tuple[int, int, object]]:
    """The JSON objects in a text, the outer ones first, with where they start and end."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _DECODER.raw_decode(text, start)
            yield start, end, value
        except ValueError:
            pass
        start = text.find("{", start + 1)


def _json_style(value: Mapping[str, object], index: int) -> CallStyle | None:
    """The keys of a call that is an object; its function may be an object in it."""
    inner = value.get("function")
    if isinstance(inner, dict) and value.get("type") == "function":
        style = _json_style(inner, index)
        if not isinstance(style, JsonCall) or style.id or set(value) != {"type", "function"}:
            return None
        return JsonCall(style.name, style.arguments, outer=('{"type": "function", "function": ', "}"))
    keys = {key: held for key, held in value.items() if key != "type"}
    name = next((key for key, held in keys.items() if held == NAMES[index]), None)
    arguments = next((key for key, held in keys.items() if held == ARGUMENTS[index]), None)
    id = next((key for key, held in keys.items() if held == IDS[index]), "")
    if name is None or arguments is None or len(value) != 2 + bool(id):
        return None
    return JsonCall(name, arguments, id=id, id_first=bool(id) and next(iter(value)) == id)


def _find_tagged(text: str, at: int, name: str, arguments: Mapping[str, str]) -> _Found | None:
    """A call whose arguments stand one by one between tags."""
    places = [at, *(place for pair in arguments.items() for place in _in_order(text, pair, at))]
    if -1 in places or places != sorted(places):
        return None
    (one, first), (_, second) = arguments.items()
    _, key, value, next_key, next_value = places
    between = text[key + len(one) : value]
    gap = text[value + len(first) : next_key]
    tail = text[next_value + len(second) :]
    head = text[at + len(name) : key]
    # The text between two arguments is the end of one and the beginning of the next; the first one begins alike.
    open = _whole_tags(_common_suffix(head, gap))
    close = gap[: len(gap) - len(open)]
    if not open.strip() or not close.strip() or not tail.startswith(close.rstrip()):
        return None
    end = next_value + len(second) + len(common_prefix(tail, close))
    tags = ArgumentTags(open, between, close)
    return _Found(TaggedCall("", head[: len(head) - len(open)], "", tags), at, end)


def _in_order(text: str, pair: tuple[str, str], at: int) -> Sequence[int]:
    key = text.find(pair[0], at)
    return key, text.find(pair[1], key)


def _reads_back(template: Template, format: Format) -> bool:
    """Whether the format finds the calls in what the template writes."""
    n_calls = 2 if template.caps.supports_parallel_tool_calls else 1
    parser = format.parser(Ask(TOOLS, Calls.AUTO))
    deltas = [*parser.feed(_written(template, n_calls) or ""), *parser.end()]
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    texts = ["".join(d.text for d in deltas if isinstance(d, CallArguments) and d.index == i) for i in range(n_calls)]
    try:
        return names == list(NAMES[:n_calls]) and [json.loads(text) for text in texts] == list(ARGUMENTS[:n_calls])
    except ValueError:
        return False
