"""Hunyuan A13B: a JSON list of calls in tags, and an answer that may stand in `<answer>`."""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.framed import Framed
from minka.chat.formats.reasoning import THINK


def _make(source: str) -> Format | None:
    if "<tool_calls>" not in source or "<|extra_0|>" not in source:
        return None
    return Framed(
        "hunyuan",
        JsonCall(),
        open="<tool_calls>[",
        close="]</tool_calls>",
        separator=", ",
        trigger="<tool_calls>",
        reasoning=THINK,
        content_open="<answer>",
        content_close="</answer>",
        tokens=("<tool_calls>", "</tool_calls>", "<think>", "</think>", "<answer>", "</answer>"),
    )


FAMILY = Family(rank=30, make=_make)
