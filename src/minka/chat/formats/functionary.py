"""Functionary: `<function=name>{...}</function>` (v3.1), and messages to recipients, `>>>name` and JSON (v3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import NamedCall, Tools
from minka.chat.formats.format import Ask, Calls, Family, Format, Parser, PastCall, ReasoningTags
from minka.chat.formats.reader import BrokenCallError, Reader, ScriptParser, Steps
from minka.chat.formats.shape import Shape
from minka.grammar.marks import literal

TO, ALL = ">>>", "all"


@dataclass(frozen=True, slots=True)
class Recipients:
    """Implements `format.Format` for v3.2. The prompt ends with the first `>>>`."""

    name: str = "functionary-v3.2"
    reasoning: ReasoningTags | None = None
    marks: Sequence[str] = ()
    stops: Sequence[str] = ()

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        rules = lark.Rules()
        content = lark.sequence(literal(f"{ALL}\n"), ask.content)
        if not ask.tools or ask.calls is Calls.NONE:
            return rules.source(content) if ask.content else ""
        bodies = [lark.sequence(literal(f"{tool.name}\n"), rules.rule(lark.arguments(tool))) for tool in ask.tools]
        one = rules.rule(lark.either(bodies))
        calls = rules.rule(f"{one} ({literal(TO)} {one})*" if ask.parallel else one)
        if ask.calls is Calls.REQUIRED:
            return rules.source(calls)
        if ask.content:
            return rules.source(lark.either([calls, content]))
        late = lark.sequence(literal(f"{ALL}\n"), rules.until(TO), calls)
        return rules.source(lark.either([calls, late, lark.sequence(literal(f"{ALL}\n"), rules.free_text())]))

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        return "".join(f"{TO}{call.name}\n{call.json}" for call in calls)

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return ScriptParser(lambda reader: self._read(reader, ask), ask)

    def _read(self, reader: Reader, ask: Ask) -> Steps[None]:
        tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
        found = yield from reader.match(TO)
        while (yield from reader.attempt(found, self._read_message(reader, tools))) or reader.rest or not reader.at_end:
            found = yield from reader.until((TO,), reader.content)
            if not found:
                return

    def _read_message(self, reader: Reader, tools: Tools) -> Steps[None]:
        """The line that says to whom, and a call; content of a message to all comes next."""
        for name in (ALL, *tools):
            if not (yield from reader.match(f"{name}\n")):
                continue
            if name != ALL:
                reader.start_call(name)
                yield from json_text.arguments(reader)
                reader.end_call()
            reader.begin(bare=False)
            return
        raise BrokenCallError


def _make(source: str) -> Format | None:
    if ">>>all" in source and ">>>${recipient}" in source:
        return Recipients()
    if (
        "<function=" in source
        and "</function>" in source
        and "<parameter" not in source
        and "<tool_call>" not in source
    ):
        return Shape("functionary-v3.1", NamedCall("", ">", "</function>"), call_open="<function=")
    return None


FAMILY = Family(rank=40, make=_make)
