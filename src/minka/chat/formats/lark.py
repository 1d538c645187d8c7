"""Lark source for a family's grammar: the rules of one grammar, and bodies that several families need.

A body is what stands behind a rule's colon. What `minka.grammar` has is used as it is: tags, literals, schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from minka.chat.formats.format import Tool
from minka.chat.formats.schema import Schema, object_schema
from minka.grammar import bodies, formats
from minka.grammar.marks import literal, mark, regex_of, until

FEW_NEWLINES = r"/[ \n]{0,4}/"
"""What may stand between parts of an answer."""


class Rules:
    """The rules of a grammar. Each body is there once, however often it is asked for."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._lines: list[str] = []

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._named("r", body, "")

    def terminal(self, body: str) -> str:
        """The name of a terminal: a body of regular expressions alone, with & and ~."""
        return self._named("T", body, "")

    def lazy(self, terminal: str) -> str:
        """The name of a rule that matches as little of a terminal as it can."""
        return self._named("z", terminal, "[lazy]")

    def _named(self, kind: str, body: str, options: str) -> str:
        body = body.rstrip("\n")
        key = f"{kind}: {body}"
        if key not in self._names:
            self._names[key] = name = f"{kind}{len(self._names)}"
            self._lines.append(f"{name}{options}: {body}")
        return self._names[key]

    def source(self, start: str) -> str:
        """The whole grammar, for a text that matches the body `start`."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._lines, ""])

    def until(self, *tags: str) -> str:
        """Any text up to the first of the tags, with the tag."""
        return self.rule(until(*tags))

    def free_text(self, but: str = "", beginnings: Sequence[str] = ()) -> str:
        """Any text; none that begins with the text `but` or a regular expression of `beginnings`, white space aside."""
        return self.terminal(text_but(*_beginnings(but, beginnings)))

    def text_until(self, tag: str, but: str = "", beginnings: Sequence[str] = ()) -> str:
        """Any text up to a tag, with the tag. See `free_text` for what it does not begin with."""
        excluded = _beginnings(but, beginnings)
        if not excluded:
            return self.until(tag)
        spelled = self.lazy(self.terminal(f"/(?s:.*){regex_of(tag)}/ & {text_but(*excluded)}"))
        return self.rule(f"{spelled} | {self.terminal(text_but(*excluded))} {mark(tag)} | {mark(tag)}")


def _beginnings(but: str, beginnings: Sequence[str]) -> tuple[str, ...]:
    return (*([regex_of(but)] if but else []), *beginnings)


def text_but(*beginnings: str) -> str:
    """A terminal's body: any text that does not begin with one of these regular expressions, white space aside."""
    return " & ".join(["/(?s:.*)/", *(f"~/[ \\t\\n]*({beginning})(?s:.*)/" for beginning in beginnings)])


def sequence(*parts: str) -> str:
    """One after the other; empty parts are left out."""
    return " ".join(part for part in parts if part)


def either(options: Iterable[str]) -> str:
    """One of the bodies, which may be sequences."""
    found = list(dict.fromkeys(options))
    return found[0] if len(found) == 1 else f"({' | '.join(f'({option})' for option in found)})"


def maybe(body: str) -> str:
    """The body or nothing."""
    return f"({body})?" if body else ""


def text(value: str) -> str:
    """Exactly this text; nothing for an empty one."""
    return literal(value) if value else ""


_TAG = re.compile(r"<[^<>\n]*>|\[/?[A-Z_]+\]|｜DSML｜")


def tags(*texts: str) -> tuple[str, ...]:
    """What looks like a tag in texts, each once: `<tool_call>`, `[TOOL_CALLS]`."""
    return tuple(dict.fromkeys(tag for text in texts for tag in _TAG.findall(text)))


def marked(value: str, marks: Iterable[str] = ()) -> str:
    """Exactly this text, in which the marks, and what looks like a tag, may be special tokens."""
    for tag in (*sorted(marks, key=len, reverse=True), *tags(value)):
        before, found, after = value.partition(tag)
        if found:
            return sequence(marked(before, marks), mark(tag), marked(after, marks))
    return text(value)


def prefixed(value: str, body: str) -> str:
    """A text and then the body: one lexeme with the literal that the body begins with.

    Where another alternative is free text, only what is one lexeme up to where that text cannot go on is found.
    """
    if not value or not body.startswith('"'):
        return sequence(text(value), body)
    first, end = json.JSONDecoder().raw_decode(body)
    return sequence(literal(value + first), body[end:].lstrip())


def members(bodies_: Sequence[tuple[str, bool]], comma: str, rules: Rules) -> str:
    """Bodies in this order with a comma between; those without True may be left out."""
    behind = first = ""
    for body, required in reversed(bodies_):
        alone = rules.rule(sequence(body, behind))
        first = alone if required or not first else rules.rule(either([alone, first]))
        more = sequence(comma, body)
        behind = rules.rule(sequence(more if required else maybe(more), behind))
    return first if any(required for _, required in bodies_) else maybe(first)


def bounded_text(bounds: Schema, close: str, rules: Rules) -> str:
    """A text that keeps to `minLength`, `maxLength`, `pattern` and `format` of a schema, before `close`.

    It cannot have the character that `close` begins with: what ends it must not be taken for a part of it.
    """
    first = regex_of(next(character for character in close if not character.isspace()))
    low, high = bounds.get("minLength", 0), bounds.get("maxLength", "")
    parts = [f"/[^{first}]{{{low},{high}}}/"]
    pattern, format = bounds.get("pattern"), bounds.get("format")
    if isinstance(pattern, str):
        parts.append(_searched(pattern))
    if isinstance(format, str) and format in formats.PATTERNS:
        parts.append(_searched(formats.pattern(format)))
    return rules.terminal(" & ".join(parts))


def _searched(pattern: str) -> str:
    """A terminal's body: text in which the pattern is found somewhere."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    return bodies.regex(f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}", param="tools")


def arguments(tool: Tool) -> str:
    """A JSON object that is valid for the tool."""
    return bodies.json_schema(object_schema(tool), param=tool.path, strict=tool.strict)


def json_value(schema: Schema) -> str:
    """A JSON value that is valid for the schema of an argument."""
    return bodies.json_schema(schema, param="tools")
