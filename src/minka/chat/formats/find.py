"""Which format a template's model writes: the first family that knows the source, else what rendering it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats.families import find_family
from minka.chat.formats.format import Ask, Calls, Format, Parser, PastCall, ReasoningTags
from minka.chat.formats.generic import generic
from minka.chat.formats.learn import learn, reasoning_of
from minka.chat.formats.reasoning import think_tags
from minka.chat.template import Template


def find_format(template: Template) -> Format:
    """The format of a template. Some renderings, if no family knows it."""
    source = template.tool_use_source or template.source
    family = find_family(source)
    reasoning = family.reasoning if family else reasoning_of(template) or think_tags(source)
    if template.caps.supports_tool_calls:
        return family or learn(template, reasoning) or generic(reasoning)
    if template.caps.supports_tools and family:
        return family
    # The prompt describes the tools, and asks for the generic form.
    found = generic(reasoning)
    return Untagged(family, found) if family else found


@dataclass(frozen=True, slots=True)
class Untagged:
    """Implements `format.Format` for a family whose template has no place for tools: calls are in the generic form."""

    family: Format
    generic: Format

    @property
    def name(self) -> str:
        """See Format."""
        return self.generic.name

    @property
    def reasoning(self) -> ReasoningTags | None:
        """See Format."""
        return self.family.reasoning

    @property
    def marks(self) -> Sequence[str]:
        """See Format. Not the family's: the generic form has no place for the tags around its content."""
        return self.generic.marks

    @property
    def stops(self) -> Sequence[str]:
        """See Format."""
        return self.family.stops

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        return self._of(ask).grammar(ask)

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        return self.generic.write(calls)

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return self._of(ask).parser(ask)

    def _of(self, ask: Ask) -> Format:
        return self.generic if ask.tools and ask.calls is not Calls.NONE else self.family
