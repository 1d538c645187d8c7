"""What is known about a chat template, and the template variables that belong to it: values, found out by probe.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Caps:
    """What a template supports; the fields are the keys of llama-server's `chat_template_caps`."""

    supports_string_content: bool = True
    supports_typed_content: bool = False
    supports_tools: bool = False
    supports_tool_calls: bool = False
    supports_parallel_tool_calls: bool = False
    supports_system_role: bool = True
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False
    supports_object_arguments: bool = False


class ReasoningField(StrEnum):
    """Where a template looks for what an assistant thought."""

    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    PART = "part"
    """A content part `{"type": "thinking", "thinking": "..."}`."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The text a template puts in front of an assistant's reasoning and between it and the answer."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Caps, and what else the adapting of messages has to know.

    `thinking`: the template knows reasoning, so `enable_thinking` is true unless somebody says otherwise.
    `calls_need_tools`: tool calls only come out where tools are given, as in Hunyuan's.
    `tool_role`: messages with the role "tool" come out. `short_ids`: call ids must be nine letters or digits.
    `call_example`: how the template writes a tool call, empty if it writes none.
    """

    caps: Caps
    thinking: bool
    calls_need_tools: bool
    tool_role: bool
    short_ids: bool
    reasoning_field: ReasoningField
    reasoning_marks: ReasoningMarks | None
    call_example: str


def preserve_reasoning(*, preserve: bool) -> Json:
    """The variables by which different templates ask whether old reasoning stays in the prompt."""
    return {
        "preserve_thinking": preserve,
        "clear_thinking": not preserve,
        "truncate_history_thinking": not preserve,
        "drop_thinking": not preserve,
    }


def reasoning_effort(effort: str) -> Json:
    """The variables by which different templates ask how much to think."""
    return {"reasoning_effort": effort, "reasoning_strength": effort}


def with_reasoning(message: Json, reasoning: str, field: ReasoningField) -> Json:
    """A message as the template wants it, with the reasoning where it looks for it."""
    if field is not ReasoningField.PART:
        return {**message, field.value: reasoning}
    content = message.get("content")
    parts = (
        content if isinstance(content, list) else [text_part(content)] if isinstance(content, str) and content else []
    )
    return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}


def text_part(text: str) -> Json:
    """A content part of text, as templates know it."""
    return {"type": "text", "text": text}


def common_prefix(one: str, other: str) -> str:
    """The longest text that both start with."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]
