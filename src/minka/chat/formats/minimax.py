"""MiniMax M1 and M2: JSON objects line by line, and `<invoke name="f">` with the arguments one by one in tags."""

from __future__ import annotations

from minka.chat.formats.calls import NamedCall, TaggedCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reasoning import THINK
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags


def _make(source: str) -> Format | None:
    if "<minimax:tool_call>" in source:
        return Shape(
            "minimax-m2",
            TaggedCall("", '">\n', "</invoke>", ArgumentTags('<parameter name="', '">', "</parameter>\n")),
            open="<minimax:tool_call>\n",
            close="\n</minimax:tool_call>",
            call_open='<invoke name="',
            separator="\n",
            trigger="<minimax:tool_call>",
            reasoning=THINK,
        )
    if "<tool_calls>" in source and "<beginning_of_sentence>ai name=assistant" in source:
        # The calls have nothing between them but the first words of the next one.
        return Shape(
            "minimax-m1",
            NamedCall("", '", "arguments": ', "}"),
            open="<tool_calls>\n",
            close="\n</tool_calls>",
            call_open='{"name": "',
            separator="\n",
            trigger="<tool_calls>",
            reasoning=THINK,
        )
    return None


FAMILY = Family(rank=30, make=_make)
