"""Cohere's Command R7B and Command A, and the older Command R+: a JSON list of actions, and content in tags."""

from __future__ import annotations

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format, ReasoningTags
from minka.chat.formats.framed import Framed
from minka.chat.formats.listed import Listed

_TOKENS = ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>")
THINKING = ReasoningTags("<|START_THINKING|>", ("<|END_THINKING|>",))


def _make(source: str) -> Format | None:
    if "<|START_ACTION|>" in source:
        kind = "TEXT" if "<|START_TEXT|>" in source else "RESPONSE"
        return Framed(
            "command-a" if kind == "TEXT" else "command-r7b",
            JsonCall("tool_name", "parameters", id="tool_call_id", id_pattern="[0-9]{1,4}", id_first=True),
            open="<|START_ACTION|>[\n    ",
            close="\n]<|END_ACTION|>",
            separator=",\n    ",
            trigger="<|START_ACTION|>",
            reasoning=THINKING,
            content_open=f"<|START_{kind}|>",
            content_close=f"<|END_{kind}|>",
            tokens=(*_TOKENS, f"<|START_{kind}|>", f"<|END_{kind}|>"),
        )
    if "Action:" in source and '"tool_name": ' in source and "<|CHATBOT_TOKEN|>" in source:
        return Listed(
            "command-r-plus",
            JsonCall("tool_name", "parameters"),
            open="Action:\n```json\n[\n    ",
            close="\n]```",
            separator=",\n    ",
            trigger="Action:",
        )
    return None


FAMILY = Family(rank=30, make=_make)
