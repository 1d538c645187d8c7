"""Muse Glimmer: an answer of several messages, each to a recipient: itself (reasoning), the user, or a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import TaggedCall, Tools, expect_loosely
from minka.chat.formats.format import Ask, Calls, Family, Format, Parser, PastCall, ReasoningTags, Tool
from minka.chat.formats.reader import Reader, ScriptParser, Steps
from minka.chat.formats.schema import Argument
from minka.chat.formats.tagged import ArgumentTags
from minka.grammar.marks import mark

START, MESSAGE, EOM, EOT = "<|start|>assistant", "<|message|>", "<|eom|>", "<|eot|>"
TO_SELF, TO_USER = f" to=self{MESSAGE}", f" to=user{MESSAGE}"
OPEN, CLOSE = "<atem:function_calls>", "</atem:function_calls>"


class OpenTags(ArgumentTags):
    """Arguments of which the beginning of the first tag may be a special token."""

    def body(self, argument: Argument, rules: lark.Rules) -> str:
        """See ArgumentTags."""
        return lark.sequence(mark(self.open), lark.text(argument.name), self._value(argument, rules))


_RECIPIENT = re.compile(r"\s*(to=[^\s<]+)?\s*")
INVOKE = '<atem:invoke name="'
CALL = TaggedCall("", '">\n', "</atem:invoke>", OpenTags('<atem:parameter name="', '">', "</atem:parameter>\n"))


@dataclass(frozen=True, slots=True)
class Muse:
    """Implements `format.Format`. The prompt ends with the start of a message, without its recipient."""

    name: str = "muse"
    reasoning: ReasoningTags | None = ReasoningTags(TO_SELF, (EOM,))  # noqa: RUF009
    marks: Sequence[str] = (
        *("<|start|>", MESSAGE, EOM, EOT, OPEN, CLOSE),
        *("<atem:invoke", "</atem:invoke>", "<atem:parameter", "</atem:parameter>"),
    )
    stops: Sequence[str] = ()

    # -- grammar -------------------------------------------------------------------------------------------------------

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        with_tools = bool(ask.tools) and ask.calls is not Calls.NONE
        if not with_tools and not ask.content:
            return ""
        rules = lark.Rules()
        again = mark(START)
        answer = self._answer(rules, ask, with_tools=with_tools)
        thought = lark.sequence(rules.until(EOM), again)
        thoughts = f"({lark.sequence(lark.text(' to=self'), mark(MESSAGE), thought)})*" if ask.thinks else ""
        if TO_SELF in ask.prefill and EOM not in ask.prefill:
            return rules.source(lark.sequence(thought, thoughts, answer))
        return rules.source(lark.sequence(thoughts, answer))

    def _answer(self, rules: lark.Rules, ask: Ask, *, with_tools: bool) -> str:
        to_user = lark.sequence(lark.maybe(lark.text(" to=user")), mark(MESSAGE))
        content = [lark.sequence(to_user, ask.content, lark.maybe(mark(EOT)))]
        if not with_tools:
            return content[0]
        one = rules.rule(lark.either(self._call(rules, tool) for tool in ask.tools))
        more = f"({lark.sequence(mark(EOM), mark(START), one)})*" if ask.parallel else ""
        calls = rules.rule(lark.sequence(one, more, lark.maybe(mark(EOT))))
        if ask.calls is Calls.REQUIRED:
            return calls
        if not ask.content:
            informed = lark.sequence(to_user, rules.until(EOM), mark(START), calls)
            content = [informed, lark.sequence(to_user, rules.until(EOT)), lark.sequence(to_user, rules.free_text())]
        return lark.either([calls, *content])

    def _call(self, rules: lark.Rules, tool: Tool) -> str:
        head = lark.sequence(lark.text(f" to={tool.name}"), mark(MESSAGE), mark(OPEN), lark.text("\n"))
        return rules.rule(lark.sequence(head, mark(INVOKE), CALL.body(tool, rules), lark.text("\n"), mark(CLOSE)))

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        return f"{EOM}{START}".join(
            f" to={call.name}{MESSAGE}{OPEN}\n{INVOKE}{CALL.write(call, index)}\n{CLOSE}"
            for index, call in enumerate(calls)
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return ScriptParser(lambda reader: _read(reader, ask), ask)


def _read(reader: Reader, ask: Ask) -> Steps[None]:
    tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
    while True:
        to = yield from reader.comes_after_space(TO_SELF.strip(), TO_USER.strip(), "to=", MESSAGE)
        if to == TO_SELF.strip():
            yield from _read_reasoning(reader, ask)
        elif not to:
            yield from reader.until((EOM, EOT), reader.content)
        else:
            pieces: list[str] = []
            found = yield from reader.until((MESSAGE,), pieces.append)
            reader.begin(bare=False)
            if not found or not _RECIPIENT.fullmatch("".join(pieces)):
                reader.content("".join(pieces) + found)
            elif to == "to=" and tools:
                yield from _read_calls(reader, tools)
            yield from reader.until((EOM, EOT), reader.content)
        if not (yield from reader.match(START)):
            return


def _nowhere(text: str) -> None:
    """A sink for the recipient, whom no client sees."""


def _read_reasoning(reader: Reader, ask: Ask) -> Steps[None]:
    if not ask.keep_reasoning:
        yield from reader.until((MESSAGE,), _nowhere)
        reader.begin(bare=True)
        yield from reader.until((EOM, EOT), reader.reasoning)
        reader.begin(bare=True)
        return
    for marks in ((MESSAGE,), (EOM, EOT)):
        found = yield from reader.before(marks, reader.content)
        reader.content_of(len(found))


def _read_calls(reader: Reader, tools: Tools) -> Steps[None]:
    """The calls of a message to a function: one, as the template writes it, or several."""
    lead = OPEN
    reader.begin(bare=False)
    while (yield from reader.attempt("", _read_call(reader, tools, lead))):
        lead = ""
        if (yield from reader.comes_after_space(CLOSE, INVOKE)) != INVOKE:
            yield from reader.space()
            yield from reader.match(CLOSE)
            reader.begin(bare=True)
            return


def _read_call(reader: Reader, tools: Tools, lead: str) -> Steps[None]:
    yield from expect_loosely(reader, lead)
    yield from expect_loosely(reader, INVOKE)
    yield from CALL.read(reader, tools)


def _make(source: str) -> Format | None:
    return Muse() if OPEN in source and EOM in source else None


FAMILY = Family(rank=10, make=_make)
