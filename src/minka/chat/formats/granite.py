"""Granite 3: a JSON list behind a tag, and an answer that may stand in `<response>`."""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.framed import Framed
from minka.chat.formats.reasoning import think_tags


def _make(source: str) -> Format | None:
    if "<|tool_call|>" not in source or "<|start_of_role|>" not in source:
        return None
    return Framed(
        "granite-3",
        JsonCall(),
        open="<|tool_call|>[",
        close="]",
        separator=", ",
        trigger="<|tool_call|>",
        reasoning=think_tags(source),
        content_open="<response>",
        content_close="</response>",
        tokens=("<|tool_call|>", "<think>", "</think>", "<response>", "</response>"),
    )


FAMILY = Family(rank=30, make=_make)
