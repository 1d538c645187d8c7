"""LFM2 and LFM2.5: a list of calls as Python writes them, between two tags; objects in them are JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.format import Family, Format, Tool, json_text
from minka.chat.formats.listed import listed
from minka.chat.formats.python_text import PYTHON, PythonCall
from minka.chat.formats.reasoning import think_tags
from minka.chat.formats.schema import Argument
from minka.chat.formats.schema import arguments as arguments_of


@dataclass(frozen=True, slots=True)
class LfmCall(PythonCall):
    """`f(city="Paris", days=3, options={"deep": true})`. Implements `calls.CallStyle`."""

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        members = [(_member(argument, rules), argument.required) for argument in arguments_of(tool)]
        return lark.sequence(lark.text(f"{tool.name}("), lark.members(members, lark.text(", "), rules), lark.text(")"))

    def write_argument(self, value: object) -> str:
        """See PythonCall."""
        return json_text(value) if isinstance(value, Mapping) else PYTHON.write(value)


def _member(argument: Argument, rules: lark.Rules) -> str:
    is_object = "object" in argument.types
    value = rules.rule(lark.json_value(argument.schema)) if is_object else PYTHON.body(argument.schema, rules)
    return lark.sequence(lark.text(f"{argument.name}="), value)


def _make(source: str) -> Format | None:
    if not any(words in source for words in ("<|tool_list_start|>", "<|tool_call_start|>", '"List of tools: ["')):
        return None
    return listed("lfm2", LfmCall(), "<|tool_call_start|>", "<|tool_call_end|>", reasoning=think_tags(source))


FAMILY = Family(rank=30, make=_make)
