"""A shape whose content stands in tags too, of which a client sees nothing: `<|START_TEXT|>Hello<|END_TEXT|>`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Ask, Calls
from minka.chat.formats.reader import Reader, Steps
from minka.chat.formats.reasoning import read_reasoning, whole_text
from minka.chat.formats.shape import Shape
from minka.grammar.marks import mark


@dataclass(frozen=True)  # no slots: they would take `super` away
class Framed(Shape):
    """A Shape with tags around the content.

    `turn` may stand in front of content and of calls, `content_open` and `content_close` around content, and `end` at
    the end of all. `tokens`: the spellings that may be special tokens,
    if they are parts of those tags.
    """

    turn: str = ""
    content_open: str = ""
    content_close: str = ""
    end: str = ""
    tokens: Sequence[str] = ()

    @property
    def _frames(self) -> tuple[str, ...]:
        frames = (self.turn, self.content_open, self.content_close, self.end)
        return tuple(dict.fromkeys(frame for frame in frames if frame))

    @property
    def marks(self) -> Sequence[str]:
        """See Format."""
        return self.tokens or tuple(dict.fromkeys((*super().marks, *self._frames)))

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        with_tools = bool(ask.tools) and ask.calls is not Calls.NONE
        if not with_tools and not ask.content:
            return ""
        rules = lark.Rules()
        end = lark.maybe(self._text(self.end))
        calls = rules.rule(lark.sequence(self._calls(ask, rules), end)) if with_tools else ""
        return rules.source(whole_text(rules, ask, self.reasoning, lambda but: self._answer(rules, ask, calls, but)))

    def _answer(self, rules: lark.Rules, ask: Ask, calls: str, but: str) -> str:
        """The answer behind the reasoning; `calls` is the rule for what follows their first tag, empty for no tools."""
        turn, close, end = (lark.maybe(self._text(text)) for text in (self.turn, self.content_close, self.end))
        opened = lark.sequence(turn, self._text(self.content_open)) if self.content_open else self._text(self.turn)
        content = lark.sequence(lark.maybe(opened), ask.content, close, end)
        if not calls:
            return content
        called = rules.rule(lark.sequence(turn, self._text(self._first), calls))
        if ask.calls is Calls.REQUIRED:
            # The prompt may have opened the content.
            return lark.either([called, lark.sequence(close, called)])
        if ask.content:
            return lark.either([called, content])
        loose = [called, lark.sequence(rules.text_until(self._first, but), calls), rules.free_text(but)]
        if opened:
            loose.append(lark.sequence(opened, rules.free_text()))
        if self.content_close:
            behind = rules.rule(lark.either([called, end]))
            loose.append(lark.sequence(opened, rules.until(self.content_close), behind))
            loose.append(lark.sequence(rules.text_until(self.content_close, but), behind))
        return lark.either(loose)

    def _text(self, text: str) -> str:
        # Not cut at each token: a lexer could not tell a token's spelling from the tag that it begins.
        return mark(text) if text else ""

    def _read(self, reader: Reader, ask: Ask) -> Steps[None]:
        tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
        yield from read_reasoning(reader, ask, self.reasoning)
        ends = (*self._frames, self._first) if tools else self._frames
        while found := (yield from reader.until(ends, reader.content)):
            yield from self._behind(found, reader, tools)

    def _behind(self, found: str, reader: Reader, tools: Tools) -> Steps[None]:
        if found == self.content_open:
            reader.begin(bare=False)
        elif found == self.content_close:
            reader.keep_space()
            reader.begin(bare=True)
        elif tools and found == self._first:
            reader.drop_space()
            yield from self._read_calls(reader, tools)
