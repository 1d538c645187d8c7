"""Llama 3.1 to 4: an answer that is a JSON object with "name" and "parameters", and nothing else, is a call.

`<|python_tag|>` may stand before it. Behind that tag there may also be a call of a built-in tool,
`brave_search.call(query="...")`, or code for the tool that runs code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.bare import Bare
from minka.chat.formats.calls import JsonCall, Tools
from minka.chat.formats.format import Ask, Family, Format, Tool
from minka.chat.formats.python_text import PythonCall
from minka.chat.formats.reader import Reader, Steps
from minka.chat.formats.reasoning import think_tags

TAG, TAG_4 = "<|python_tag|>", "<|python_start|>"
CODE_TOOLS = ("python", "ipython", "code_interpreter")
SEARCH_TOOLS = ("brave_search", "wolfram_alpha")
BUILTIN = PythonCall(open=".call(")


@dataclass(frozen=True)
class Llama3(Bare):
    """A Bare with Meta's own tools behind its tag."""

    def special_bodies(self, ask: Ask, rules: lark.Rules) -> Sequence[str]:
        """See Bare."""
        found = [BUILTIN.body(tool, rules) for tool in ask.tools if tool.name in SEARCH_TOOLS]
        if any(_takes_code(tool) for tool in ask.tools):
            other = [f"{name}\\.call" for name in SEARCH_TOOLS]
            found.append(rules.terminal(lark.text_but("[{]", *other)))
        return found

    def read_special(self, reader: Reader, tools: Tools) -> Steps[bool]:
        """See Bare."""
        for name in filter(tools.__contains__, SEARCH_TOOLS):
            if (yield from reader.comes_after_space(f"{name}{BUILTIN.open}")):
                yield from BUILTIN.read(reader, tools)
                return True
        code = next((tool for tool in tools.values() if _takes_code(tool)), None)
        if code is None or (yield from reader.comes_after_space("{")):
            return False
        reader.start_call(code.name)
        reader.arguments('{"code": "')
        yield from reader.until((), reader.argument_text)
        reader.arguments('"}')
        reader.end_call()
        return True


def _takes_code(tool: Tool) -> bool:
    """Whether a tool runs code, and needs nothing else for that."""
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required", ())
    has_code = isinstance(properties, Mapping) and "code" in properties
    return tool.name in CODE_TOOLS and has_code and isinstance(required, Sequence) and set(required) <= {"code"}


def _make(source: str) -> Format | None:
    is_4 = "<|header_start|>" in source and "<|eot|>" in source
    if not is_4 and ("<|start_header_id|>" not in source or "<|eot_id|>" not in source):
        return None
    if '"parameters": ' not in source or any(
        tag in source for tag in ("<function=", "<tool_call>", ">>>", "functools")
    ):
        return None
    begins = r"\{[ \t\n]*\x{22}(name|type|function)\x{22}[ \t\n]*:"
    return Llama3(
        "llama-4" if is_4 else "llama-3",
        JsonCall(arguments="parameters"),
        begins,
        separator="" if is_4 else "; ",
        tag=TAG_4 if is_4 else TAG,
        reasoning=think_tags(source),
    )


FAMILY = Family(rank=60, make=_make)
