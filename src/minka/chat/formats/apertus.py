"""Apertus: a JSON list in which each call is an object with the function's name as its only key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool
from minka.chat.formats.format import json_text as written
from minka.chat.formats.listed import listed
from minka.chat.formats.reader import BrokenCallError, Reader, Steps

INNER = ReasoningTags("<|inner_prefix|>", ("<|inner_suffix|>",))


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """`{"f": {...}}`: the name is the key of the arguments. Implements `calls.CallStyle`."""

    marks: Sequence[str] = ()

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        key = json.dumps(tool.name, ensure_ascii=False)
        return lark.sequence(lark.text(f"{{{key}: "), rules.rule(lark.arguments(tool)), lark.text("}"))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        yield from reader.space()
        yield from reader.expect("{")
        name = yield from json_text.string(reader)
        if name not in tools:
            raise BrokenCallError
        yield from reader.space()
        yield from reader.expect(":")
        reader.start_call(name)
        yield from json_text.arguments(reader)
        yield from reader.space()
        yield from reader.expect("}")
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        return f"{{{written(call.name)}: {call.json}}}"


def _make(source: str) -> Format | None:
    if "<|tools_prefix|>" not in source:
        return None
    return listed("apertus", KeyedCall(), "<|tools_prefix|>", "<|tools_suffix|>", reasoning=INNER)


FAMILY = Family(rank=30, make=_make)
