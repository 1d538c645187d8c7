"""Solar Open: messages for reasoning, content and calls. A call is its id, its name and its arguments, in tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool
from minka.chat.formats.framed import Framed
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.grammar.marks import mark

ID = "[a-z0-9]{10}"
THINK = ReasoningTags("<|think|>", ("<|end|>",))
BEGIN, NAME, ARGUMENTS, END = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"


@dataclass(frozen=True, slots=True)
class IdentifiedCall:
    """The id, the name and the arguments, between tags. Implements `calls.CallStyle`."""

    marks: Sequence[str] = (NAME, ARGUMENTS)

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        name = lark.sequence(mark(NAME), lark.text(tool.name), mark(ARGUMENTS))
        return lark.sequence(f"/{ID}/", name, rules.rule(lark.arguments(tool)))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        id = yield from reader.text_until(NAME)
        name = yield from reader.text_until(ARGUMENTS)
        if name not in tools:
            raise BrokenCallError
        reader.start_call(name, id)
        yield from json_text.arguments(reader)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        id = call.id if re.fullmatch(ID, call.id) else f"{index:010}"
        return f"{id}{NAME}{call.name}{ARGUMENTS}{call.json}"


def _make(source: str) -> Format | None:
    if BEGIN not in source or ARGUMENTS not in source:
        return None
    return Framed(
        "solar-open",
        IdentifiedCall(),
        open="<|tool_calls|>",
        close="<|calls|>",
        call_open=BEGIN,
        call_close=END,
        trigger="<|tool_calls|>",
        reasoning=THINK,
        turn="<|begin|>assistant",
        content_open="<|content|>",
        content_close="<|end|>",
    )


FAMILY = Family(rank=30, make=_make)
