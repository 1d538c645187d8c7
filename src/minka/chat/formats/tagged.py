"""Arguments that are written one by one between tags, without quotes: `<parameter=city>Paris</parameter>`.

What is between the tags is text or JSON; the tool's schema says which, or the tags do.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass

from minka.chat.formats import lark
from minka.chat.formats.format import json_text
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import TEXT, TYPES, Argument, is_of, resolved
from minka.grammar.marks import literal

KEY = r"/[a-zA-Z_][a-zA-Z0-9_.-]{0,63}/"


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """The text around an argument's name and value: `open` name `between` value `close`.

    `between_json` is what stands before a value that is JSON, if that differs from the one before text.
    """

    open: str
    between: str
    close: str
    between_json: str = ""

    def body(self, argument: Argument, rules: lark.Rules) -> str:
        """The rule body of one argument."""
        return lark.sequence(lark.marked(self.open), literal(argument.name), self._value(argument, rules))

    def any_body(self, rules: lark.Rules) -> str:
        """The rule body of any arguments."""
        value = lark.sequence(lark.marked(self.between), rules.until(self.close))
        return f"({lark.sequence(lark.marked(self.open), KEY, value)})*"

    def _value(self, argument: Argument, rules: lark.Rules) -> str:
        schema = argument.schema
        text = lark.sequence(lark.marked(self.between), _text_body(argument, self.close, rules))
        between_json = lark.marked(self.between_json or self.between)
        as_json = lark.sequence(between_json, rules.rule(lark.json_value(schema)), lark.marked(self.close))
        if argument.types == TEXT or argument.is_loose:
            return text
        return lark.either((as_json, text)) if self.between_json and "string" in argument.types else as_json

    def read(self, reader: Reader, types: Mapping[str, frozenset[str]]) -> Steps[None]:
        """Take one argument, and tell its name and value as a member of a JSON object."""
        yield from reader.space()
        yield from reader.expect(self.open.strip())
        # Of tags on lines of their own the first one ends the name, and the others follow on any line.
        first, *more = self.between.strip().splitlines()
        between = {first, self.between_json.strip()} - {""}
        pieces: list[str] = []
        found = yield from reader.until(sorted(between), pieces.append)
        if not found:
            raise BrokenCallError
        for tag in more:
            yield from reader.space()
            yield from reader.expect(tag.strip())
        key = "".join(pieces).strip()
        reader.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        wanted = types.get(key, TYPES)
        if self.between_json:
            wanted = TEXT if found == first else TYPES - TEXT
        yield from self._read_value(reader, wanted)

    def write(self, name: str, value: object) -> str:
        """One argument as the model writes it."""
        if isinstance(value, str):
            return f"{self.open}{name}{self.between}{value}{self.close}"
        return f"{self.open}{name}{self.between_json or self.between}{json_text(value)}{self.close}"

    def _read_value(self, reader: Reader, types: frozenset[str]) -> Steps[None]:
        if self.between.endswith("\n"):
            yield from reader.match("\n")
        close = self.close.strip()
        closes = [f"\n{close}", close] if self.close.startswith("\n") else [close]
        if types == TEXT:
            reader.arguments('"')
            found = yield from reader.until(closes, reader.argument_text)
            if not found:
                raise BrokenCallError
            reader.arguments('"')
        else:
            pieces: list[str] = []
            if not (yield from reader.until(closes, pieces.append)):
                reader.arguments("".join(pieces).strip())
                raise BrokenCallError
            reader.arguments(_json_or_text("".join(pieces), types))


def _json_or_text(text: str, types: frozenset[str]) -> str:
    """The text if it is JSON of one of the types, or Python's way to write that, else the JSON string that says it."""
    for read in (json.loads, literal_eval):
        try:
            value = read(text.strip())
            if is_of(value, types):
                return text.strip() if read is json.loads else json.dumps(value, ensure_ascii=False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return json.dumps(text, ensure_ascii=False)


def _text_body(argument: Argument, close: str, rules: lark.Rules) -> str:
    """The rule body of a string without quotes, and of what closes it."""
    schema = resolved(argument.schema, argument.schema)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return lark.sequence(lark.either(literal(str(value)) for value in values), lark.marked(close))
    bounds = {key: schema[key] for key in ("minLength", "maxLength", "pattern", "format") if key in schema}
    if not bounds.keys() - {"format"}:
        return rules.until(close)
    return lark.sequence(lark.bounded_text(bounds, close, rules), lark.marked(close))
