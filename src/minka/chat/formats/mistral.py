"""Mistral's models: `[TOOL_CALLS]` before a JSON list (Nemo), or before each call with its name, `[ARGS]` and JSON.

Small 3.2 writes an id between name and arguments; Magistral and Ministral 3 think between `[THINK]` and `[/THINK]`.
"""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall, NamedCall
from minka.chat.formats.format import Family, Format, ReasoningTags
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.shape import Shape

CALLS, ARGUMENTS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def _make(source: str) -> Format | None:
    if CALLS not in source:
        return None
    reasoning = ReasoningTags("[THINK]", ("[/THINK]",)) if "[THINK]" in source else think_tags(source)
    if ARGUMENTS not in source:
        return Shape(
            "mistral-nemo",
            JsonCall(id="id"),
            open=f"{CALLS}[",
            close="]",
            separator=", ",
            trigger=CALLS,
            reasoning=reasoning,
        )
    with_id = ID in source
    call = NamedCall("", ARGUMENTS, id=ID if with_id else "", marks=(ARGUMENTS, ID) if with_id else (ARGUMENTS,))
    return Shape("mistral-small" if with_id else "ministral", call, call_open=CALLS, reasoning=reasoning)


FAMILY = Family(rank=10, make=_make)
