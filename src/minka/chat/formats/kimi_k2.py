"""Kimi K2: a section of calls, each with an id that has the name and a number in it, `functions.get_weather:0`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Family, Format, PastCall, Tool
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.shape import Shape
from minka.grammar.marks import mark

ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class KimiCall:
    """Implements `calls.CallStyle`."""

    marks: Sequence[str] = (ARGUMENTS,)

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        head = lark.sequence(lark.text(f"functions.{tool.name}:"), "/[0-9]{1,3}/", mark(ARGUMENTS))
        return lark.sequence(head, rules.rule(lark.arguments(tool)))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        id = (yield from reader.text_until(ARGUMENTS)).strip()
        found = _ID.fullmatch(id)
        if found is None or found[1] not in tools:
            raise BrokenCallError
        reader.start_call(found[1], id)
        yield from json_text.arguments(reader)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        found = _ID.fullmatch(call.id)
        id = call.id if found and found[1] == call.name else f"functions.{call.name}:{index}"
        return f"{id}{ARGUMENTS}{call.json}"


def _make(source: str) -> Format | None:
    if "<|tool_calls_section_begin|>" not in source or "<|tool_call_begin|>" not in source:
        return None
    return Shape(
        "kimi-k2",
        KimiCall(),
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
        call_open="<|tool_call_begin|>",
        call_close="<|tool_call_end|>",
        trigger="<|tool_calls_section_begin|>",
        reasoning=think_tags(source),
        ends_reasoning=True,
    )


FAMILY = Family(rank=20, make=_make)
