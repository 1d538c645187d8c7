"""Gemma 4: `<|tool_call>call:name{key:value}<tool_call|>`, where a text stands between `<|"|>` and keys are sorted.

FunctionGemma is alike but for its tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool
from minka.chat.formats.notation import MAX_DEPTH, Notation
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import object_schema
from minka.chat.formats.shape import Shape
from minka.grammar.marks import literal

QUOTE = '<|"|>'
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


@dataclass(frozen=True, slots=True)
class GemmaNotation(Notation):
    """Values as Gemma writes them."""

    quote: str = QUOTE
    bare_keys: bool = True
    colon: str = ":"
    comma: str = ","

    def ordered(self, properties: Mapping[str, object]) -> list[tuple[str, object]]:
        """See Notation."""
        return sorted(properties.items())


@dataclass(frozen=True, slots=True)
class GemmaCall:
    """Implements `calls.CallStyle`. `quote` stands before and after a text."""

    quote: str = QUOTE

    @property
    def marks(self) -> Sequence[str]:
        """See CallStyle."""
        return (self.quote,)

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        return lark.sequence(
            literal(f"call:{tool.name}"), GemmaNotation(quote=self.quote).body(object_schema(tool), rules)
        )

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        yield from reader.space()
        yield from reader.expect("call:")
        name = (yield from reader.word("{<\n")).strip()
        if name not in tools or not (yield from reader.comes("{")):
            raise BrokenCallError
        reader.start_call(name)
        yield from _value(reader, self.quote, 0)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        return f"call:{call.name}{GemmaNotation(quote=self.quote).write(call.members)}"


def _value(reader: Reader, quote: str, depth: int) -> Steps[None]:
    """Take a value, and tell it as JSON."""
    if depth > MAX_DEPTH:
        raise BrokenCallError
    yield from reader.space()
    opening = yield from reader.match(quote, "{", "[", '"')
    match opening:
        case "{":
            yield from _members(reader, quote, depth, "}")
        case "[":
            yield from _members(reader, quote, depth, "]")
        case "":
            yield from _word(reader)
        case _:
            reader.arguments('"')
            told = yield from reader.until((opening,), reader.argument_text)
            if not told:
                raise BrokenCallError
            reader.arguments('"')


def _members(reader: Reader, quote: str, depth: int, close: str) -> Steps[None]:
    """What is inside of an object or an array, and its end."""
    reader.arguments("{" if close == "}" else "[")
    yield from reader.space()
    comma = ""
    while not (yield from reader.match(close)):
        if comma:
            yield from reader.expect(",")
            yield from reader.space()
        reader.arguments(comma)
        comma = ", "
        if close == "}":
            key = (yield from reader.text_until(":")).strip().removeprefix(quote).removesuffix(quote).strip('"')
            reader.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        yield from _value(reader, quote, depth + 1)
        yield from reader.space()
    reader.arguments(close)


def _word(reader: Reader) -> Steps[None]:
    """A number, or what JSON has words for."""
    word = (yield from reader.word(",}]<", reader.arguments)).strip()
    known = _WORDS.get(word.lower())
    if known is None:
        try:
            if not isinstance(json.loads(word), int | float):
                raise BrokenCallError
        except ValueError:
            raise BrokenCallError from None
    reader.arguments(known or word)


def _make(source: str) -> Format | None:
    if "<start_function_call>" in source:
        return Shape(
            "functiongemma",
            GemmaCall("<escape>"),
            call_open="<start_function_call>",
            call_close="<end_function_call>",
            tail="<start_function_response>",
        )
    if "<|tool_call>call:" not in source:
        return None
    return Shape(
        "gemma-4",
        GemmaCall(),
        call_open="<|tool_call>",
        call_close="<tool_call|>",
        tail="<|tool_response>",
        reasoning=ReasoningTags("<|channel>thought\n", ("<channel|>",)),
        more_marks=("<|channel>",),
    )


FAMILY = Family(rank=20, make=_make)
