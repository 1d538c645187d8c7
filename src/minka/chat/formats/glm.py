"""GLM 4.5 and later: `<tool_call>` with the name, then `<arg_key>` and `<arg_value>` for each argument."""

from __future__ import annotations

import re

from minka.chat.formats.calls import TaggedCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags

MARKS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

_LINES = re.compile(r"</arg_key>[^<]{0,60}?(?:\\n|\n(?=<))")
"""Where names and values of arguments have lines of their own; from GLM 4.7 on all of a call is one line."""


def _make(source: str) -> Format | None:
    if "<arg_key>" not in source or "<tool_call>" not in source:
        return None
    gap = "\n" if _LINES.search(source) else ""
    tags = ArgumentTags("<arg_key>", f"</arg_key>{gap}<arg_value>", f"</arg_value>{gap}")
    return Shape(
        "glm",
        TaggedCall("", gap, "</tool_call>", tags, marks=MARKS),
        call_open="<tool_call>",
        separator=gap,
        reasoning=think_tags(source),
        ends_reasoning=True,
    )


FAMILY = Family(rank=45, make=_make)
