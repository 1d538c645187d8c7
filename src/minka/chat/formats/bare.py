"""A format whose calls have no tag: an answer that begins like a call is one, any other is content.

A tag may stand before the calls all the same, and then also behind content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import CallStyle, Tools
from minka.chat.formats.content_only import Verbatim
from minka.chat.formats.format import Ask, Calls, Parser, PastCall, ReasoningTags
from minka.chat.formats.reader import Reader, ScriptParser, Steps
from minka.chat.formats.reasoning import read_reasoning, whole_text
from minka.grammar.marks import mark


@dataclass(frozen=True)  # no slots: they would take `super` away
class Bare:
    """Implements `format.Format`.

    `open` and `close` are the text around all calls, `separator` stands between two. `begins`: the regular expression
    of what no content begins with. `tag`: what may stand before the calls, empty for none.
    """

    name: str
    call: CallStyle
    begins: str
    open: str = ""
    close: str = ""
    separator: str = ", "
    tag: str = ""
    reasoning: ReasoningTags | None = None
    stops: Sequence[str] = ()

    @property
    def marks(self) -> Sequence[str]:
        """See Format."""
        tags = (self.reasoning.start, *self.reasoning.ends) if self.reasoning else ()
        return tuple(tag.strip() for tag in (self.tag, *tags) if tag.strip())

    # -- grammar -------------------------------------------------------------------------------------------------------

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        rules = lark.Rules()
        if not ask.tools or ask.calls is Calls.NONE:
            told = whole_text(rules, ask, self.reasoning, lambda _: ask.content)
            return rules.source(told) if ask.content else ""
        calls = rules.rule(self._calls(ask, rules))
        behind_tag = rules.rule(lark.either([calls, *self.special_bodies(ask, rules)]))
        tagged = lark.sequence(mark(self.tag), behind_tag) if self.tag else ""
        called = rules.rule(lark.either(filter(None, (calls, tagged))))

        def answer(but: str) -> str:
            if ask.calls is Calls.REQUIRED:
                return called
            if ask.content:
                return lark.either([called, ask.content])
            late = rules.text_until(self.tag, but, [self.begins]) if self.tag else ""
            loose = [lark.sequence(late, behind_tag)] if late else []
            return lark.either([called, *loose, rules.free_text(but, [self.begins])])

        return rules.source(whole_text(rules, ask, self.reasoning, answer))

    def _calls(self, ask: Ask, rules: lark.Rules) -> str:
        bodies = [self.call.body(tool, rules) for tool in ask.tools]
        first = rules.rule(lark.either(rules.rule(lark.prefixed(self.open, body)) for body in bodies))
        one = rules.rule(lark.either(map(rules.rule, bodies)))
        more = f"({lark.sequence(lark.text(self.separator), one)})*" if ask.parallel else ""
        return lark.sequence(first, more, lark.text(self.close))

    def special_bodies(self, ask: Ask, rules: lark.Rules) -> Sequence[str]:
        """Rule bodies of what else may stand behind the tag."""
        return ()

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        written = (self.call.write(call, index) for index, call in enumerate(calls))
        return f"{self.open}{self.separator.join(written)}{self.close}"

    # -- reading -------------------------------------------------------------------------------------------------------

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        if self.reasoning is None and (not ask.tools or ask.calls is Calls.NONE):
            return Verbatim()
        return ScriptParser(lambda reader: self._read(reader, ask), ask)

    def _read(self, reader: Reader, ask: Ask) -> Steps[None]:
        tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
        yield from read_reasoning(reader, ask, self.reasoning)
        if not tools:
            return
        if not self.tag or not (yield from reader.comes_after_space(self.tag)):
            yield from self._read_calls(reader, "", tools)
        while self.tag and (yield from reader.until((self.tag,), reader.content)):
            yield from self._read_calls(reader, self.tag, tools)

    def _read_calls(self, reader: Reader, tag: str, tools: Tools) -> Steps[None]:
        script = self._read_first(reader, tag, tools)
        while (yield from reader.attempt(tag, script)):
            if not (yield from reader.comes_after_space(self.separator.strip() or "{")):
                yield from take_loosely(reader, self.close, optional=True)
                reader.begin(bare=True)
                return
            tag, script = "", self._read_next(reader, tools)

    def _read_first(self, reader: Reader, tag: str, tools: Tools) -> Steps[None]:
        if tag and (yield from self.read_special(reader, tools)):
            return
        yield from take_loosely(reader, self.open)
        yield from self.call.read(reader, tools)

    def _read_next(self, reader: Reader, tools: Tools) -> Steps[None]:
        yield from take_loosely(reader, self.separator)
        yield from self.call.read(reader, tools)

    def read_special(self, reader: Reader, tools: Tools) -> Steps[bool]:
        """Take what else may stand behind the tag, if it comes."""
        return False
        yield


def take_loosely(reader: Reader, text: str, *, optional: bool = False) -> Steps[None]:
    """Take a text word by word, whatever white space is between. Raises BrokenCallError if another comes.

    `optional`: then nothing more is taken, and nothing raised.
    """
    for word in text.split():
        for piece in _pieces(word):
            if optional and not (yield from reader.comes_after_space(piece)):
                return
            yield from reader.space()
            yield from reader.expect(piece)


def _pieces(word: str) -> list[str]:
    """A word, or brackets, colons and strings of JSON one by one."""
    pieces: list[str] = [""]
    for character in word:
        if character in "{}[]:,":
            pieces += [character, ""]
        else:
            pieces[-1] += character
    return [piece for piece in pieces if piece]
