"""Families that write all calls as one JSON list behind a tag: Apriel, Nemotron Nano v2, Firefunction, Phi-4-mini and
others. They differ in the tag alone, so each is a row of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Family, Format, ReasoningTags
from minka.chat.formats.listed import listed
from minka.chat.formats.reasoning import THINK

APRIEL = ReasoningTags("Here are my reasoning steps:", ("[BEGIN FINAL RESPONSE]",))


@dataclass(frozen=True, slots=True)
class _Row:
    """A family: `words` are all in its templates' source, `open` and `close` are the tags around the list."""

    name: str
    words: tuple[str, ...]
    open: str
    close: str = ""
    reasoning: ReasoningTags | None = None
    stops: tuple[str, ...] = ()

    def make(self) -> Format:
        call = JsonCall()
        return listed(self.name, call, self.open, self.close, reasoning=self.reasoning, stops=self.stops)


ROWS = (
    _Row(
        "apriel",
        ("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
        "<tool_calls>",
        "</tool_calls>",
        APRIEL,
        ("[END FINAL RESPONSE]",),
    ),
    _Row("nemotron-v2", ("<TOOLCALL>", "<TOOL_RESPONSE>"), "<TOOLCALL>", "</TOOLCALL>", THINK),
    _Row("functools", ("functools[",), "functools"),
    _Row("phi-4-mini", ("<|tool|>", "<|/tool|>"), "<|tool_call|>", "<|/tool_call|>"),
)


def _make(source: str) -> Format | None:
    return next((row.make() for row in ROWS if all(word in source for word in row.words)), None)


FAMILY = Family(rank=30, make=_make)
