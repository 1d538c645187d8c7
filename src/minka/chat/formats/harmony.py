"""gpt-oss (Harmony): messages on channels. `analysis` is reasoning, `final` the answer, and a recipient makes a call.

`<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{...}`; the recipient may also stand before
the channel. `<|call|>` ends the generation, so there is one call in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Ask, Calls, Family, Format, Parser, PastCall, ReasoningTags
from minka.chat.formats.reader import BrokenCallError, Reader, ScriptParser, Steps
from minka.grammar.marks import literal, mark

START, END, MESSAGE, CHANNEL, CONSTRAIN = "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"
CALL, RETURN = "<|call|>", "<|return|>"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
TAGS = ReasoningTags(ANALYSIS, (END,))
_ENDS = (END, CALL, RETURN, START)
_TO = re.compile(r"to=(?:functions\.)?([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Harmony:
    """Implements `format.Format`."""

    name: str = "harmony"
    reasoning: ReasoningTags | None = TAGS
    marks: Sequence[str] = (START, END, MESSAGE, CHANNEL, CONSTRAIN)
    stops: Sequence[str] = ()

    # -- grammar -------------------------------------------------------------------------------------------------------

    def grammar(self, ask: Ask) -> str:
        """See Format."""
        with_tools = bool(ask.tools) and ask.calls is not Calls.NONE
        if not with_tools and not ask.content:
            return ""
        rules = lark.Rules()
        next_message = lark.sequence(mark(START), literal("assistant"))
        thought = lark.sequence(_marked(ANALYSIS), rules.until(END), next_message)
        aside = lark.sequence(_marked(f"{CHANNEL}commentary{MESSAGE}"), rules.until(END), next_message)
        before = f"({thought})*" if ask.thinks else ""
        final = lark.sequence(_marked(f"{CHANNEL}final{MESSAGE}"), ask.content or rules.free_text())
        if f"final{MESSAGE}" in ask.prefill:
            return rules.source(ask.content) if ask.content else ""
        if ask.prefill.rpartition(ANALYSIS)[1]:
            before = lark.sequence(rules.until(END), next_message, before)
        if not with_tools:
            return rules.source(lark.sequence(before, final))
        calls = rules.rule(lark.either(self._call(tool.name, lark.arguments(tool), rules) for tool in ask.tools))
        if ask.calls is Calls.REQUIRED:
            return rules.source(lark.sequence(before, calls))
        return rules.source(lark.sequence(before, f"({aside})*", lark.either([calls, final])))

    def _call(self, name: str, arguments: str, rules: lark.Rules) -> str:
        recipient = literal(f" to=functions.{name}")
        json_type = f"({literal(' ')} {mark(CONSTRAIN)} {literal('json')} | {literal(' json')})?"
        in_channel = lark.sequence(_marked(f"{CHANNEL}commentary"), recipient, json_type)
        in_role = lark.sequence(recipient, _marked(f"{CHANNEL}commentary"), json_type)
        return rules.rule(lark.sequence(lark.either([in_channel, in_role]), mark(MESSAGE), rules.rule(arguments)))

    def write(self, calls: Sequence[PastCall]) -> str:
        """See Format."""
        heads = (f"{CHANNEL}commentary to=functions.{call.name} {CONSTRAIN}json{MESSAGE}" for call in calls)
        messages = (f"{head}{call.json}" for head, call in zip(heads, calls, strict=True))
        return f"{CALL}{START}assistant".join(messages)

    # -- reading -------------------------------------------------------------------------------------------------------

    def parser(self, ask: Ask) -> Parser:
        """See Format."""
        return ScriptParser(lambda reader: self._read(reader, ask), ask)

    def _read(self, reader: Reader, ask: Ask) -> Steps[None]:
        tools = {tool.name: tool for tool in ask.tools} if ask.calls is not Calls.NONE else {}
        while not reader.at_end:
            header = ""
            if (yield from reader.comes_after_space(CHANNEL, "to=", START)):
                pieces: list[str] = []
                found = yield from reader.until((MESSAGE, END, CALL, RETURN), pieces.append)
                header = "".join(pieces)
                if found != MESSAGE:
                    reader.content(header)
                    continue
            yield from self._read_body(reader, header, ask, tools)
            yield from reader.match("assistant")
            yield from reader.peek(1)

    def _read_body(self, reader: Reader, header: str, ask: Ask, tools: Tools) -> Steps[None]:
        """The text of a message, and what ends it."""
        recipient = _TO.search(header)
        if recipient is not None and recipient[1] in tools:
            opening = f"{header}{MESSAGE}"
            if (yield from reader.attempt(opening, self._read_call(reader, recipient[1]))):
                if end := (yield from reader.comes_after_space(*_ENDS)):
                    yield from reader.space()
                    yield from reader.expect(end)
                return
        if f"{CHANNEL}analysis" in header:
            yield from self._read_thought(reader, header, ask)
            return
        reader.begin(bare=False)
        yield from reader.until(_ENDS, reader.content)

    def _read_call(self, reader: Reader, name: str) -> Steps[None]:
        reader.start_call(name)
        if not (yield from reader.comes_after_space("{")):
            raise BrokenCallError
        yield from json_text.arguments(reader)
        reader.end_call()

    def _read_thought(self, reader: Reader, header: str, ask: Ask) -> Steps[None]:
        if ask.keep_reasoning:
            reader.content(f"{header}{MESSAGE}")
        else:
            reader.begin(bare=True)
        reader.thinks = True
        found = yield from reader.until(_ENDS, reader.content if ask.keep_reasoning else reader.reasoning)
        reader.thinks = False
        if ask.keep_reasoning and found:
            reader.content(found)
        elif not ask.keep_reasoning:
            reader.begin(bare=True)


def _marked(text: str) -> str:
    return lark.marked(text, (START, END, MESSAGE, CHANNEL, CONSTRAIN))


def _make(source: str) -> Format | None:
    return Harmony() if CHANNEL in source and MESSAGE in source else None


FAMILY = Family(rank=15, make=_make)
