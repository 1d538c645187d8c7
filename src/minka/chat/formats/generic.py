"""The form of calls for models that have none: the description of the tools asks for it (see `chat.adapt`)."""

from __future__ import annotations

from minka.chat.formats.bare import Bare
from minka.chat.formats.calls import JsonCall
from minka.chat.formats.format import Format, ReasoningTags


def generic(reasoning: ReasoningTags | None) -> Format:
    """`{"tool_calls": [{"name": ..., "arguments": {...}}]}` as the whole answer, or any other text."""
    return Bare(
        "generic",
        JsonCall(),
        r"\{[ \t\n]*\x{22}tool_calls\x{22}[ \t\n]*:",
        open='{"tool_calls": [',
        close="]}",
        reasoning=reasoning,
    )
