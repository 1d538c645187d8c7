"""Calls that a model writes as Python does, `f(city="Paris", days=3)`, and what Python writes of values.

A call is told when it is complete.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.calls import Tools
from minka.chat.formats.format import PastCall, Tool
from minka.chat.formats.notation import Notation
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import arguments as arguments_of
from minka.grammar.marks import literal

PYTHON = Notation(true="True", false="False", null="None")
MAX_CALL = 1_000_000
"""Characters of one call."""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """Implements `calls.CallStyle`: name, `open`, arguments, `)`."""

    open: str = "("
    marks: Sequence[str] = ()

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        members = [
            (lark.sequence(literal(f"{argument.name}="), PYTHON.body(argument.schema, rules)), argument.required)
            for argument in arguments_of(tool)
        ]
        inner = lark.members(members, literal(", "), rules)
        return lark.sequence(literal(tool.name + self.open), inner, literal(")"))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        yield from reader.space()
        name = (yield from reader.word("([{<\n")).strip()
        name = name.removesuffix(self.open[:-1])
        if name not in tools:
            raise BrokenCallError
        yield from reader.expect("(")
        arguments = _arguments((yield from _inside(reader)))
        reader.start_call(name)
        reader.arguments(arguments)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        arguments = (f"{name}={self.write_argument(value)}" for name, value in call.members.items())
        return f"{call.name}{self.open}{', '.join(arguments)})"

    def write_argument(self, value: object) -> str:
        """The value of an argument as the model writes it."""
        return PYTHON.write(value)


def _inside(reader: Reader) -> Steps[str]:
    """The text up to the bracket that closes the one before it, which is taken. Knows Python's strings."""
    pieces, depth, quote, at = "", 1, "", 0
    while depth:
        while at >= len(pieces):
            if not (yield from reader.peek(1)) or len(pieces) > MAX_CALL:
                raise BrokenCallError
            pieces += reader.take(1)
        character = pieces[at]
        if quote:
            if character == "\\":
                at += 1
            elif pieces.startswith(quote, at):
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        at += 1
    return pieces[:-1]


_BACKSLASH = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPES = "\n\\'\"abfnrtv01234567xNuU"


def _escaped(text: str) -> str:
    """The text with each backslash doubled that begins no escape: Python takes it as it is, but warns."""
    return _BACKSLASH.sub(lambda found: found[0] if found[1] and found[1] in _ESCAPES else f"\\{found[0]}", text)


def _arguments(text: str) -> str:
    """Keyword arguments as JSON."""
    try:
        call = ast.parse(f"f({_escaped(text.strip())})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BrokenCallError from None
    if not isinstance(call, ast.Call) or call.args:
        raise BrokenCallError
    values: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise BrokenCallError
        values[keyword.arg] = _value(keyword.value)
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise BrokenCallError from None


_NAMES = {"true": True, "false": False, "null": None, "none": None}


def _value(node: ast.expr) -> object:
    """What an expression says; JavaScript's spellings of true, false and null are understood."""
    match node:
        case ast.Name(id) if id.lower() in _NAMES:
            return _NAMES[id.lower()]
        case ast.List(elements) | ast.Tuple(elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys, values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise BrokenCallError from None


def _key(node: ast.expr | None) -> str:
    key = _value(node) if node is not None else None
    if not isinstance(key, str):
        raise BrokenCallError
    return key
