"""The seam between what a model writes and what a client reads: a family's grammar and its parser, as values.

A format knows text only: no tokens, no JSON of any wire API, no engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from minka.errors import RequestError


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments, an object's.

    `path` is where the request has that schema, for errors.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    strict: bool = False
    path: str = field(default="tools", compare=False)


class Calls(StrEnum):
    """Whether the answer may, must, or must not call tools."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks of the shape of an answer.

    `tools` are those that may be called; a named tool_choice is REQUIRED with just that one. `parallel`: several calls
    in one answer. `content` is a Lark rule body (as `minka.grammar` makes them) that the text behind the reasoning must
    match when no tool is called, empty for any text. `thinks`: the template lets the model reason in this answer.
    `prefill` is the text at the prompt's end that counts as written by the model: an open reasoning tag, the beginning
    of an answer to go on with. `keep_reasoning`: the reasoning is told as content, with its tags.
    """

    tools: Sequence[Tool] = ()
    calls: Calls = Calls.NONE
    parallel: bool = True
    content: str = ""
    thinks: bool = False
    prefill: str = ""
    keep_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. `index` counts the answer's calls from 0; `id` is the format's own, empty if it has none."""

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: pieces that together are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete, and its arguments are a JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that began is none after all: it is malformed. All of it comes next, as content."""

    index: int


Delta = Reasoning | Content | CallStart | CallArguments | CallEnd | CallBroken


class Parser(Protocol):
    """Reads an answer as it comes. The deltas, joined, do not depend on how the text was cut into pieces.

    A call that was cut off with the text has no end: its arguments are the beginning of a JSON object.
    """

    @property
    def thinks(self) -> bool:
        """Whether the text so far ends inside of the reasoning."""

    def feed(self, text: str) -> list[Delta]:
        """Take more text; what is certain by now."""

    def end(self) -> list[Delta]:
        """The rest, after the last piece."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of the conversation so far. `arguments` is what its JSON says, an object if the client is right."""

    name: str
    arguments: object
    id: str = ""

    @property
    def json(self) -> str:
        """The arguments as text."""
        return json_text(self.arguments)

    @property
    def members(self) -> Mapping[str, object]:
        """The arguments one by one. Raises RequestError if they are no object."""
        if not isinstance(self.arguments, Mapping):
            raise RequestError(
                f"the arguments of the call of {self.name!r} in 'messages' are no JSON object, and this model writes "
                "arguments one by one",
                param="messages",
            )
        return self.arguments


def json_text(value: object) -> str:
    """A value as models write JSON."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What opens the reasoning, and what may close it, the usual one first."""

    start: str
    ends: tuple[str, ...]


class Format(Protocol):
    """One family of models."""

    @property
    def name(self) -> str:
        """As `/props` and `generation_settings` show it (`chat_format`)."""

    @property
    def reasoning(self) -> ReasoningTags | None:
        """None for a family that does not show its reasoning."""

    @property
    def marks(self) -> Sequence[str]:
        """Spellings that must stay in the text although they may be special tokens."""

    @property
    def stops(self) -> Sequence[str]:
        """Further strings that end an answer of this family."""

    def grammar(self, ask: Ask) -> str:
        """Lark source for the whole text that the model writes behind the prompt, empty if any text will do.

        Raises RequestError for tools whose arguments this family cannot be held to.
        """

    def write(self, calls: Sequence[PastCall]) -> str:
        """What a model of this family writes to make these calls, at least one. Raises RequestError."""

    def parser(self, ask: Ask) -> Parser:
        """A parser for an answer to this request; it starts behind the prompt, so behind `ask.prefill`."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a format is found: `make` gives it for the source of a template that it knows, None for others.

    Families are asked in the order of `rank`, smaller first; the generic ones come last.
    """

    rank: int
    make: Callable[[str], Format | None] = field(repr=False)
