"""DeepSeek R1, V3 and V3.1, whose tags are of wide bars; V3.2 and V4 with their own XML (DSML)."""

from __future__ import annotations

from minka.chat.formats.calls import NamedCall, TaggedCall
from minka.chat.formats.format import Family, Format
from minka.chat.formats.reasoning import THINK, think_tags
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import ArgumentTags

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_OPEN, CALL_CLOSE, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
DSML = "｜DSML｜"


def _make(source: str) -> Format | None:
    if "DSML" in source and "invoke" in source:
        return _dsml("tool_calls" if "tool_calls" in source and "function_calls" not in source else "function_calls")
    if OPEN not in source and "<｜tool▁call▁begin｜>" not in source:
        return None
    if f"function{SEPARATOR}" in source or "```json" in source:
        before, between, after, gap = f"function{SEPARATOR}", "\n```json\n", "\n```", "\n"
        name = "deepseek-r1"
    else:
        before, between, after, gap = "", SEPARATOR, "", ""
        name = "deepseek-v3.1"
    return Shape(
        name,
        NamedCall(before, between, after, marks=(SEPARATOR,)),
        open=OPEN,
        close=CLOSE,
        call_open=CALL_OPEN,
        call_close=CALL_CLOSE,
        separator=gap,
        trigger=OPEN,
        reasoning=think_tags(source),
        ends_reasoning=True,
        more_marks=(CALL_OPEN,),
    )


def _dsml(section: str) -> Format:
    tags = ArgumentTags(
        f'<{DSML}parameter name="', '" string="true">', f"</{DSML}parameter>\n", between_json='" string="false">'
    )
    return Shape(
        "deepseek-dsml",
        TaggedCall("", '">\n', f"</{DSML}invoke>\n", tags),
        open=f"<{DSML}{section}>\n",
        close=f"</{DSML}{section}>",
        call_open=f'<{DSML}invoke name="',
        trigger=f"<{DSML}{section}>",
        reasoning=THINK,
        ends_reasoning=True,
        more_marks=(DSML,),
    )


FAMILY = Family(rank=20, make=_make)
