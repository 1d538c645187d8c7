"""The three ways in which most models write one call: a JSON object, a name with JSON arguments, a name with tags.

A way is a value: the text around the parts. It makes the rule body for a tool and reads a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from minka.chat.formats import json_text, lark, tagged
from minka.chat.formats.format import PastCall, Tool
from minka.chat.formats.format import json_text as written
from minka.chat.formats.reader import BrokenCallError, Reader, Steps
from minka.chat.formats.schema import argument_types, is_free
from minka.chat.formats.schema import arguments as arguments_of

Tools = Mapping[str, Tool]


class CallStyle(Protocol):
    """How one call is written, without what stands around it."""

    @property
    def marks(self) -> Sequence[str]:
        """Tags in it that may be special tokens."""

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """The rule body for a call of this tool."""

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """Take one call and tell it. Raises BrokenCallError, also for a tool that is not known."""

    def write(self, call: PastCall, index: int) -> str:
        """A call as the model writes it; `index` counts those of one answer. Raises RequestError."""


@dataclass(frozen=True, slots=True)
class JsonCall:
    """`{"name": "f", "arguments": {...}}` with these keys.

    `id`: the key of the call's id, empty for none; `id_pattern` is what a new id looks like, a regex; `id_first`: it
    stands before the name. `outer` is text of an object around it: `{"type": "function", "function": ` and `}`.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = ""
    id_pattern: str = "[a-zA-Z0-9]{9}"
    id_first: bool = False
    outer: tuple[str, str] = ("", "")
    marks: Sequence[str] = ()

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        head = f'"{self.name}": {json.dumps(tool.name, ensure_ascii=False)}, "{self.arguments}": '
        arguments = rules.rule(lark.arguments(tool))
        id = lark.sequence(lark.text(f'"{self.id}": "'), f"/{self.id_pattern}/", lark.text('"')) if self.id else ""
        if not self.id:
            inner = lark.sequence(lark.prefixed("{", lark.text(head)), arguments, lark.text("}"))
        elif self.id_first:
            inner = lark.sequence(lark.prefixed("{", id), lark.text(f", {head}"), arguments, lark.text("}"))
        else:
            inner = lark.sequence(lark.prefixed("{", lark.text(head)), arguments, lark.text(", "), id, lark.text("}"))
        return lark.sequence(lark.prefixed(self.outer[0], inner), lark.text(self.outer[1]))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        call = _Call(reader, tools, waits_for_id=self.id_first)
        # Models that were trained on several forms mix them up.
        known = {"arguments": call.arguments, "parameters": call.arguments, "type": _skip}
        known |= {self.name: call.name, self.arguments: call.arguments}
        if self.id:
            known[self.id] = call.id

        def function(reader: Reader) -> Steps[None]:
            """The value of "function": the name, or an object with name and arguments."""
            yield from reader.space()
            yield from (json_text.members(reader, known) if (yield from reader.comes("{")) else call.name(reader))

        yield from json_text.members(reader, {"function": function, **known})
        call.end()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        head = f'"{self.name}": {written(call.name)}, "{self.arguments}": {call.json}'
        id = f'"{self.id}": {written(call.id)}' if self.id and re.fullmatch(self.id_pattern, call.id) else ""
        inner = ", ".join(filter(None, (id, head) if self.id_first else (head, id)))
        return f"{self.outer[0]}{{{inner}}}{self.outer[1]}"


class _Call:
    """A call that comes in members of an object, in any order; told as soon as its name is known."""

    def __init__(self, reader: Reader, tools: Tools, *, waits_for_id: bool) -> None:
        self._reader, self._tools = reader, tools
        self._name = self._id = ""
        self._held: str | None = None
        self._waits_for_id = waits_for_id
        self._started = self._complete = False

    def name(self, reader: Reader) -> Steps[None]:
        self._name = yield from json_text.string(reader)
        if self._name not in self._tools:
            raise BrokenCallError
        self._start()

    def id(self, reader: Reader) -> Steps[None]:
        held = yield from json_text.value(reader, lambda _: None)
        self._id, self._waits_for_id = held if isinstance(held, str) else json.dumps(held), False
        self._start()

    def arguments(self, reader: Reader) -> Steps[None]:
        if self._complete:
            raise BrokenCallError
        self._complete = True
        if self._started:
            yield from json_text.arguments(reader)
        else:
            self._held = json_text.arguments_text((yield from json_text.value(reader, lambda _: None)))

    def _start(self) -> None:
        if self._name and not self._started and not self._waits_for_id:
            self._started = True
            self._reader.start_call(self._name, self._id)
            self._reader.arguments(self._held or "")

    def end(self) -> None:
        self._waits_for_id = False
        self._start()
        if not self._started:
            raise BrokenCallError
        if not self._complete:
            self._reader.arguments("{}")
        self._reader.end_call()


def _skip(reader: Reader) -> Steps[None]:
    yield from json_text.value(reader, lambda _: None)


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A name, then its arguments as JSON: `before` name `between` arguments `after`.

    `id`: a tag behind the name after which an id comes, empty for none; `id_pattern` is what a new one looks like.
    """

    before: str
    between: str
    after: str = ""
    id: str = ""
    id_pattern: str = "[a-zA-Z0-9]{9}"
    marks: Sequence[str] = ()

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        name = lark.sequence(lark.marked(self.before), lark.text(tool.name))
        between = lark.marked(self.between)
        id = lark.sequence(lark.marked(self.id), f"/{self.id_pattern}/") if self.id else ""
        after = lark.marked(self.after)
        return lark.sequence(name, id, between, rules.rule(lark.arguments(tool)), after)

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        yield from expect_loosely(reader, self.before)
        name, id = yield from self._read_head(reader, tools)
        reader.start_call(name, id)
        yield from json_text.arguments(reader)
        yield from skip_loosely(reader, self.after)
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        id = self.id + call.id if self.id and re.fullmatch(self.id_pattern, call.id) else ""
        return f"{self.before}{call.name}{id}{self.between}{call.json}{self.after}"

    def _read_head(self, reader: Reader, tools: Tools) -> Steps[tuple[str, str]]:
        """The name, and the id if there is one; the arguments come next."""
        end = self.between.strip() or "{"
        if not self.id:
            return (yield from known_name(reader, end, tools)), ""
        pieces: list[str] = []
        found = yield from reader.until((self.id, end), pieces.append)
        name = "".join(pieces).strip()
        if not found or name not in tools:
            raise BrokenCallError
        return name, (yield from reader.text_until(end)).strip() if found == self.id else ""


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name, then its arguments one by one in tags: `before` name `between` argument... `after`."""

    before: str
    between: str
    after: str
    tags: tagged.ArgumentTags
    marks: Sequence[str] = ()

    def body(self, tool: Tool, rules: lark.Rules) -> str:
        """See CallStyle."""
        head = lark.sequence(lark.marked(self.before), lark.text(tool.name), lark.marked(self.between))
        inner = (
            self.tags.any_body(rules)
            if is_free(tool)
            else lark.sequence(
                *(
                    self.tags.body(argument, rules)
                    if argument.required
                    else lark.maybe(self.tags.body(argument, rules))
                    for argument in arguments_of(tool)
                )
            )
        )
        return lark.sequence(head, inner, lark.marked(self.after))

    def read(self, reader: Reader, tools: Tools) -> Steps[None]:
        """See CallStyle."""
        yield from expect_loosely(reader, self.before)
        name = yield from known_name(reader, self.between.strip(), tools)
        reader.start_call(name)
        types = argument_types(tools[name])
        comma = "{"
        while (yield from reader.comes_after_space(self.tags.open.strip())):
            reader.arguments(comma)
            yield from self.tags.read(reader, types)
            comma = ", "
        yield from expect_loosely(reader, self.after)
        reader.arguments("}" if comma == ", " else "{}")
        reader.end_call()

    def write(self, call: PastCall, index: int) -> str:
        """See CallStyle."""
        arguments = (self.tags.write(name, value) for name, value in call.members.items())
        return f"{self.before}{call.name}{self.between}{''.join(arguments)}{self.after}"


def known_name(reader: Reader, end: str, tools: Tools) -> Steps[str]:
    """Take a tool's name and the text after it. Raises BrokenCallError if it is none of the tools.

    Without a text after it, or before `{`, it ends where a tag, an object or a line begins, which stays.
    """
    if end in ("", "{"):
        name = (yield from reader.word("{<\n")).strip()
    else:
        name = (yield from reader.text_until(end)).strip()
    if name not in tools:
        raise BrokenCallError
    return name


def expect_loosely(reader: Reader, text: str) -> Steps[None]:
    """Take a text, whatever white space is around it. Raises BrokenCallError if another comes."""
    yield from reader.space()
    yield from reader.expect(text.strip())
    if text and text[-1].isspace():
        yield from reader.space()


def skip_loosely(reader: Reader, text: str) -> Steps[None]:
    """Take a text if it comes, white space aside."""
    if text.strip() and (yield from reader.comes_after_space(text.strip())):
        yield from reader.space()
        yield from reader.expect(text.strip())
