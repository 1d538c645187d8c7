"""The format of models that write neither calls nor reasoning: all is content, passed on as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.format import Ask, Content, Delta, Parser, PastCall, ReasoningTags


class Verbatim:
    """Implements `format.Parser`."""

    thinks = False

    def feed(self, text: str) -> list[Delta]:
        """See Parser."""
        return [Content(text)] if text else []

    def end(self) -> list[Delta]:
        """See Parser."""
        return []


@dataclass(frozen=True, slots=True)
class ContentOnly:
    """Implements `format.Format`."""

    name: str = "Content-only"
    reasoning: ReasoningTags | None = None
    marks: Sequence[str] = ()
    stops: Sequence[str] = ()

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        return lark.Rules().source(ask.content) if ask.content else ""

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        return ""

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return Verbatim()


CONTENT_ONLY = ContentOnly()
