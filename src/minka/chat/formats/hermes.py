"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ and all that learned from them: `<tool_call>` around a JSON object."""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.shape import Shape


def _make(source: str) -> Format | None:
    if "<tool_call>" not in source or '{"name": ' not in source or "<function=" in source or "<arg_key>" in source:
        return None
    # EXAONE 4 writes a call in one line.
    gap = "" if '"<tool_call>" }}{"name"' in source else "\n"
    return Shape(
        "hermes",
        JsonCall(),
        call_open=f"<tool_call>{gap}",
        call_close=f"{gap}</tool_call>",
        separator="\n",
        reasoning=think_tags(source),
    )


FAMILY = Family(rank=50, make=_make)
