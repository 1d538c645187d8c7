"""Which format a template's model writes: the first family that knows the source, else what rendering it shows."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import minka.chat.formats
from minka.chat.formats.format import Ask, Calls, Family, Format, Parser, ReasoningTags
from minka.chat.formats.generic import generic
from minka.chat.formats.learn import learn, reasoning_of
from minka.chat.formats.reasoning import think_tags
from minka.chat.template import Template

log = logging.getLogger(__name__)


@cache
def families() -> tuple[Family, ...]:
    """The families of all modules of this package, in the order in which they are asked."""
    found: list[Family] = []
    for info in pkgutil.iter_modules(minka.chat.formats.__path__, "minka.chat.formats."):
        family = getattr(import_module(info.name), "FAMILY", None)
        if isinstance(family, Family):
            found.append(family)
    return tuple(sorted(found, key=lambda family: family.rank))


def find_family(source: str) -> Format | None:
    """The format of a template's source, if a family knows it."""
    return next(filter(None, (family.make(source) for family in families())), None)


def find_format(template: Template) -> Format:
    """The format of a template. Some renderings, if no family knows it."""
    source = template.tool_use_source or template.source
    family = find_family(source)
    reasoning = family.reasoning if family else reasoning_of(template) or think_tags(source)
    if not template.caps.supports_tools and not template.caps.supports_tool_calls:
        # The prompt describes the tools, and asks for the generic form.
        found = generic(reasoning)
        return Untagged(family, found) if family else found
    return family or learn(template, reasoning) or generic(reasoning)


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
        """See Format."""
        return self.family.marks

    @property
    def stops(self) -> Sequence[str]:
        """See Format."""
        return self.family.stops

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        return self._of(ask).grammar(ask)

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return self._of(ask).parser(ask)

    def _of(self, ask: Ask) -> Format:
        return self.generic if ask.tools and ask.calls is not Calls.NONE else self.family
