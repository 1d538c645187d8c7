"""Ling 3, Laguna and Hunyuan 3: a name, and `<arg_key>` and `<arg_value>` in turn for the arguments, as GLM does.

Between the tags there are newlines or none: the templates write them otherwise than the models do, so both will do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import Tools, expect_loosely, known_name
from minka.chat.formats.format import Family, Format, PastCall, ReasoningTags, Tool, json_text
from minka.chat.formats.reader import Reader, Steps
from minka.chat.formats.reasoning import THINK
from minka.chat.formats.schema import TYPES, Argument, argument_types, is_free
from minka.chat.formats.schema import arguments as arguments_of
from minka.chat.formats.shape import Shape
from minka.chat.formats.tagged import KEY, ArgumentTags
from minka.grammar.marks import mark

NEWLINES = r"/\n{0,2}/"
HUNYUAN_SUFFIX = re.compile(r"set HYTK = '([^']*)'")


@dataclass(frozen=True, slots=True)
class KeyValueCall:
    """The name and the arguments of a call. Implements `calls.CallStyle`.

    `suffix` is in all tags, in front of the `>`. `after_name`: there is a `<tool_sep>` behind the name.
    """

    suffix: str = ""
    after_name: bool = False

    @property
    def marks(self) -> Sequence[str]:
        """See CallStyle."""
        names = (
            "arg_key",
            "/arg_key",
            "arg_value",
            "/arg_value",
            "/tool_call",
            *(["tool_sep"] if self.after_name else []),
        )
        return tuple(self._tag(name) for name in names)

    def _tag(self, name: str) -> str:
        return f"<{name}{self.suffix}>"

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        head = lark.sequence(lark.text(tool.name), mark(self._tag("tool_sep")) if self.after_name else "")
        end = lark.sequence(NEWLINES, mark(self._tag("/tool_call")), NEWLINES)
        if is_free(tool):
            value = lark.sequence(mark(self._tag("arg_value")), rules.until(self._tag("/arg_value")))
            pair = lark.sequence(NEWLINES, self._key(KEY), value)
            return lark.sequence(head, f"({pair})*", end)
        pairs = (
            (
                argument.required,
                lark.sequence(NEWLINES, self._key(lark.text(argument.name)), self._value(argument, rules)),
            )
            for argument in arguments_of(tool)
        )
        return lark.sequence(head, *(pair if required else lark.maybe(pair) for required, pair in pairs), end)

    def _key(self, name: str) -> str:
        return lark.sequence(mark(self._tag("arg_key")), name, mark(self._tag("/arg_key")), NEWLINES)

    def _value(self, argument: Argument, rules: lark.Rules) -> str:
        tags = ArgumentTags("", "", self._tag("/arg_value"))
        unnamed = Argument("", argument.schema, argument.types, argument.required)
        return lark.sequence(mark(self._tag("arg_value")), tags.body(unnamed, rules))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        name = yield from known_name(reader, self._tag("tool_sep") if self.after_name else "", tools)
        reader.start_call(name)
        types = argument_types(tools[name])
        before = "{"
        while (yield from reader.comes_after_space(self._tag("arg_key"))):
            reader.arguments(before)
            yield from self._read_argument(reader, types)
            before = ", "
        yield from expect_loosely(reader, self._tag("/tool_call"))
        reader.arguments("{}" if before == "{" else "}")
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        lines = [call.name + (self._tag("tool_sep") if self.after_name else "")]
        for name, value in call.members.items():
            text = value if isinstance(value, str) else json_text(value)
            lines.append(f"{self._tag('arg_key')}{name}{self._tag('/arg_key')}")
            lines.append(f"{self._tag('arg_value')}{text}{self._tag('/arg_value')}")
        return "\n".join([*lines, f"{self._tag('/tool_call')}\n"])

    def _read_argument(self, reader: Reader, types: Mapping[str, frozenset[str]]) -> Steps[None]:
        yield from expect_loosely(reader, self._tag("arg_key"))
        key = (yield from reader.text_until(self._tag("/arg_key"))).strip()
        reader.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        yield from expect_loosely(reader, self._tag("arg_value"))
        yield from ArgumentTags("", "", self._tag("/arg_value"))._read_value(reader, types.get(key, TYPES))


def _make(source: str) -> Format | None:
    if "arg_key" not in source:
        return None
    if "<role>ASSISTANT</role>" in source:
        return _plain("ling-3", ends_reasoning=True, stops=("<|role_end|>",))
    if "</assistant>" in source:
        return _plain("laguna", stops=("</assistant>",))
    found = HUNYUAN_SUFFIX.search(source)
    return _hunyuan(found[1]) if found else None


def _plain(name: str, *, ends_reasoning: bool = False, stops: Sequence[str] = ()) -> Format:
    return Shape(
        name,
        KeyValueCall(),
        call_open="<tool_call>",
        reasoning=THINK,
        ends_reasoning=ends_reasoning,
        stops=stops,
    )


def _hunyuan(suffix: str) -> Format:
    return Shape(
        "hunyuan-3",
        KeyValueCall(suffix, after_name=True),
        open=f"<tool_calls{suffix}>\n",
        close=f"</tool_calls{suffix}>",
        call_open=f"<tool_call{suffix}>",
        trigger=f"<tool_calls{suffix}>",
        reasoning=ReasoningTags(f"<think{suffix}>", (f"</think{suffix}>",)),
    )


FAMILY = Family(rank=30, make=_make)
