"""Seed-OSS: arguments one by one in tags, as Qwen3-Coder writes them, inside of tags of its own."""

from __future__ import annotations

from minka.chat.formats.calls import TaggedCall
from minka.chat.formats.format import Family, Format, ReasoningTags
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags

THINK = ReasoningTags("<seed:think>", ("</seed:think>",))


def _make(source: str) -> Format | None:
    if "<seed:tool_call>" not in source:
        return None
    return Shape(
        "seed-oss",
        TaggedCall("<function=", ">\n", "</function>", ArgumentTags("<parameter=", ">", "</parameter>\n")),
        call_open="<seed:tool_call>\n",
        call_close="\n</seed:tool_call>",
        separator="\n",
        reasoning=THINK,
    )


FAMILY = Family(rank=30, make=_make)
