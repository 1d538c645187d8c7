"""Qwen3-Coder and Qwen3.5, Nemotron 3 Nano, StepFun: `<tool_call>`, `<function=name>` and `<parameter=name>`."""

from __future__ import annotations

from minka.chat.formats.calls import TaggedCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags


def _make(source: str) -> Format | None:
    if not all(tag in source for tag in ("<tool_call>", "<function=", "<parameter=")):
        return None
    tags = ArgumentTags("<parameter=", ">\n", "\n</parameter>\n")
    return Shape(
        "qwen-coder",
        TaggedCall("<function=", ">\n", "</function>\n", tags),
        call_open="<tool_call>\n",
        call_close="</tool_call>",
        separator="\n",
        reasoning=think_tags(source),
        ends_reasoning=True,
    )


FAMILY = Family(rank=48, make=_make)
