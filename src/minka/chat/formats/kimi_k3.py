"""Kimi K3: sections in tags of the form `<|open|>name key="value"<|sep|>`, and arguments that say their own type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import json_text, lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool
from minka.chat.formats.format import json_text as written
from minka.chat.formats.framed import Framed
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import TEXT, TYPES, Argument, argument_types, is_free, type_of
from minka.chat.formats.schema import arguments as arguments_of
from minka.chat.formats.tagged import ArgumentTags
from minka.grammar.marks import mark

TOKENS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
ARGUMENT, ARGUMENT_END = '<|open|>argument key="', "<|close|>argument<|sep|>"
BLOCK, BLOCK_END = '<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"
SEP, CALL_END = "<|sep|>", "<|close|>call<|sep|>"
THINK = ReasoningTags("<|open|>think<|sep|>", ("<|close|>think<|sep|>",))


class TypedTags(ArgumentTags):
    """`<|open|>argument key="city" type="string"<|sep|>`: the type says whether text or JSON follows."""

    def body(self, argument: Argument, rules: lark.Rules) -> str:
        """See ArgumentTags."""
        options = []
        if argument.types == TEXT or argument.is_loose:
            options.append(lark.sequence(_type("string"), self._value(argument, rules)))
        names = {"number" if type_ == "integer" else type_ for type_ in argument.types - TEXT}
        if names:
            value = lark.sequence(rules.rule(lark.json_value(argument.schema)), mark(self.close))
            options.append(lark.sequence(lark.either(_type(name) for name in sorted(names)), value))
        return lark.sequence(mark(self.open), lark.text(argument.name), lark.either(options))

    def any_body(self, rules: lark.Rules) -> str:
        """See ArgumentTags."""
        return lark.maybe(lark.sequence(mark(BLOCK), rules.rule(lark.json_value({"type": "object"})), mark(BLOCK_END)))

    def read(self, reader: Reader, types: Mapping[str, frozenset[str]]) -> Steps[None]:
        """See ArgumentTags."""
        yield from reader.expect(self.open)
        key = yield from reader.text_until('"')
        head = yield from reader.text_until(SEP)
        reader.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        wanted = types.get(key, TYPES)
        if "type=" in head:
            wanted = TEXT if 'type="string"' in head else (wanted - TEXT or TYPES - TEXT)
        yield from self._read_value(reader, wanted)

    def write(self, name: str, value: object) -> str:
        """See ArgumentTags."""
        type_ = type_of(value)
        head = f'{self.open}{name}" type="{"number" if type_ == "integer" else type_}"{SEP}'
        return f"{head}{value if isinstance(value, str) else written(value)}{self.close}"


def _type(name: str) -> str:
    return lark.sequence(lark.text(f'" type="{name}"'), mark(SEP))


TAGS = TypedTags(ARGUMENT, "", ARGUMENT_END)


@dataclass(frozen=True, slots=True)
class SectionCall:
    """The name, the number of the call, and the arguments as sections. Implements `calls.CallStyle`."""

    marks: Sequence[str] = TOKENS

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        head = lark.sequence(lark.text(f'{tool.name}" index="'), "/[1-9][0-9]{0,2}/", lark.text('"'), mark(SEP))
        if is_free(tool):
            return lark.sequence(head, TAGS.any_body(rules))
        arguments = [TAGS.body(argument, rules) for argument in arguments_of(tool)]
        wanted = [argument.required for argument in arguments_of(tool)]
        parts = (body if required else lark.maybe(body) for body, required in zip(arguments, wanted, strict=True))
        return lark.sequence(head, *parts)

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        name = yield from reader.text_until('"')
        if name not in tools:
            raise BrokenCallError
        yield from reader.text_until(SEP)
        reader.start_call(name)
        if (yield from reader.match(BLOCK)):
            yield from json_text.arguments(reader)
            yield from reader.expect(f"{BLOCK_END}{CALL_END}")
        else:
            yield from _read_arguments(reader, argument_types(tools[name]))
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        arguments = (TAGS.write(name, value) for name, value in call.members.items())
        return f'{call.name}" index="{index + 1}"{SEP}{"".join(arguments)}'


def _read_arguments(reader: Reader, types: Mapping[str, frozenset[str]]) -> Steps[None]:
    before = "{"
    while (yield from reader.comes(TAGS.open)):
        reader.arguments(before)
        yield from TAGS.read(reader, types)
        before = ", "
    yield from reader.expect(CALL_END)
    reader.arguments("{}" if before == "{" else "}")


def _make(source: str) -> Format | None:
    if not all(token in source for token in TOKENS):
        return None
    return Framed(
        "kimi-k3",
        SectionCall(),
        open="<|open|>tools<|sep|>",
        close="<|close|>tools<|sep|>",
        call_open='<|open|>call tool="',
        call_close=CALL_END,
        trigger="<|open|>tools<|sep|>",
        reasoning=THINK,
        content_open="<|open|>response<|sep|>",
        content_close="<|close|>response<|sep|>",
        end="<|close|>message<|sep|>",
        tokens=TOKENS,
    )


FAMILY = Family(rank=30, make=_make)
