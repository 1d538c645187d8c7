"""A format whose calls stand one after the other behind an opening tag: most families are one, said by values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import CallStyle, Tools, expect_loosely, skip_loosely
from minka.chat.formats.format import Ask, Calls, Parser, PastCall, ReasoningTags
from minka.chat.formats.reader import Reader, ScriptParser, Steps
from minka.chat.formats.reasoning import read_reasoning, whole_text


@dataclass(frozen=True, slots=True)
class Shape:
    """Implements `format.Format`.

    `open` and `close` are the text around all calls, `call_open` and `call_close` around each, `separator` between two;
    `tail` may stand at the end.
    A call is told from content by the first tag of `open` or, if that is empty, of `call_open`: `trigger`, which is
    all of that text without the white space around it if it is not given. `ends_reasoning`: a call may begin inside
    of the reasoning, and ends it.
    """

    name: str
    call: CallStyle
    open: str = ""
    close: str = ""
    call_open: str = ""
    call_close: str = ""
    separator: str = ""
    tail: str = ""
    trigger: str = ""
    reasoning: ReasoningTags | None = None
    ends_reasoning: bool = False
    stops: Sequence[str] = ()
    more_marks: Sequence[str] = ()

    @property
    def marks(self) -> Sequence[str]:
        """See Format."""
        texts = (self.open, self.call_open, self.call_close, self.close, self.tail, *self.call.marks, *self.more_marks)
        reasoning = (self.reasoning.start, *self.reasoning.ends) if self.reasoning else ()
        whole = (*(tag.strip() for tag in reasoning), *self.call.marks, *self.more_marks)
        return tuple(dict.fromkeys((*whole, *lark.tags(*texts))))

    @property
    def _first(self) -> str:
        """The tag that begins the calls."""
        return self.trigger or (self.open or self.call_open).strip()

    # -- grammar -------------------------------------------------------------------------------------------------------

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        rules = lark.Rules()
        if not ask.tools or ask.calls is Calls.NONE:
            told = whole_text(rules, ask, self.reasoning, lambda _: ask.content)
            return rules.source(told) if ask.content else ""
        behind = rules.rule(self._calls(ask, rules))
        called = lark.sequence(lark.marked(self._first, self.marks), behind)

        def answer(but: str) -> str:
            if ask.calls is Calls.REQUIRED:
                return called
            if ask.content:
                return lark.either([called, ask.content])
            return lark.either([lark.sequence(rules.text_until(self._first, but), behind), rules.free_text(but)])

        opening = self._first if self.ends_reasoning else ""
        return rules.source(whole_text(rules, ask, self.reasoning, answer, behind, opening))

    def _calls(self, ask: Ask, rules: lark.Rules) -> str:
        """The rule body of the calls, from behind the first tag on."""
        one = rules.rule(lark.either(rules.rule(self.call.body(tool, rules)) for tool in ask.tools))
        closed = self._text(self.call_close)
        first = self._text((self.open + self.call_open).lstrip()[len(self._first) :])
        gap = self._text(self.separator) if self.separator.strip() else lark.FEW_NEWLINES
        more = lark.sequence(gap, self._text(self.call_open), one, closed)
        rest = f"({more})*" if ask.parallel and (self.separator + self.call_open) else ""
        return lark.sequence(
            first, one, closed, rest, self._text(self.close), lark.maybe(self._text(self.tail)), lark.FEW_NEWLINES
        )

    def _text(self, text: str) -> str:
        return lark.marked(text, self.marks)

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        one_by_one = (
            f"{self.call_open}{self.call.write(call, index)}{self.call_close}" for index, call in enumerate(calls)
        )
        return f"{self.open}{self.separator.join(one_by_one)}{self.close}"

    # -- reading -------------------------------------------------------------------------------------------------------

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return ScriptParser(lambda reader: self._read(reader, ask), ask)

    def _read(self, reader: Reader, ask: Ask) -> Steps[None]:
        tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
        also_ends = (self._first,) if self.ends_reasoning and tools else ()
        found = yield from read_reasoning(reader, ask, self.reasoning, also_ends)
        if not tools:
            return
        while found or (yield from reader.until((self._first,), reader.content)):
            yield from self._read_calls(reader, tools)
            found = ""

    def _read_calls(self, reader: Reader, tools: Tools) -> Steps[None]:
        """The calls behind the first tag, which was taken, and what closes them."""
        leads: tuple[str, ...] = ((self.open + self.call_open).lstrip()[len(self._first) :],)
        between = tuple(filter(None, (self.separator.strip(), self.call_open.strip())))
        opening = self._first
        while (yield from reader.attempt(opening, self._read_call(reader, tools, leads))):
            if not between or not (yield from reader.comes_after_space(between[0])):
                yield from skip_loosely(reader, self.close)
                yield from skip_loosely(reader, self.tail)
                reader.begin(bare=True)
                return
            opening, leads = "", between

    def _read_call(self, reader: Reader, tools: Tools, leads: Sequence[str]) -> Steps[None]:
        for lead in leads:
            yield from expect_loosely(reader, lead)
        yield from self.call.read(reader, tools)
        yield from skip_loosely(reader, self.call_close)
