"""The parameters that a conversation can change while it goes on: /set NAME VALUE, checked by the parameter table.

How a value is written is the command line's matter and is handed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

from minka.errors import UsageError
from minka.params import BadValueError, GenerationParams, Row, SamplingParams, rows

USED = ("n_predict", "close_at_limit", "stop", "t_max_predict_ms", "cache_prompt")
"""Generation parameters that a chat makes use of; the others are a server's."""

_UNUSED = ("n_probs", "post_sampling_probs")
DEFAULT = "default"


class Spelling(Protocol):
    """How values are written, by the rules of the command line."""

    def parse(self, row: Row, text: str) -> object:
        """The value that a text means. Raises BadValueError, whose text follows the name of the parameter."""

    def show(self, row: Row, value: object) -> str:
        """A value as `parse` reads it; empty for one that is empty."""


class Difference(NamedTuple):
    """A parameter whose value is not its default, both as text."""

    name: str
    value: str
    default: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """How answers are generated."""

    sampling: SamplingParams
    generation: GenerationParams

    def changed(self, name: str, text: str, spelling: Spelling) -> Tuning:
        """With one parameter set; the word `default` gives its default back.

        Raises UsageError for an unknown name or a value that the table does not take.
        """
        row = find(name)
        try:
            value = row.default if text == DEFAULT else spelling.parse(row, text)
        except BadValueError as error:
            raise UsageError(f"{row.name} {error}") from None
        if row in _rows()[SamplingParams]:
            return replace(self, sampling=replace(self.sampling, **{row.name: value}))  # type: ignore[arg-type]
        return replace(self, generation=replace(self.generation, **{row.name: value}))  # type: ignore[arg-type]

    def value(self, row: Row) -> object:
        """What a parameter is now."""
        return getattr(self.sampling if row in _rows()[SamplingParams] else self.generation, row.name)

    def differences(self, spelling: Spelling) -> Iterator[Difference]:
        """All parameters that are not at their default."""
        for row in (row for group in _rows().values() for row in group):
            value = self.value(row)
            if value != row.default:
                yield Difference(row.name, spelling.show(row, value), spelling.show(row, row.default))

    def describe(self, name: str, spelling: Spelling) -> str:
        """A parameter in words: its value, what it does, what it may be. Raises UsageError for an unknown name."""
        row = find(name)
        text = f"{row.name} is {spelling.show(row, self.value(row)) or 'empty'}: {row.param.doc}"
        return f"{text} ({row.range})" if row.range else text


def find(name: str) -> Row:
    """The parameter of a name in any of its spellings: the table's, a request's, a flag's.

    Raises UsageError, with the nearest name, if the chat has no such parameter.
    """
    word = _plain(name)
    row = _names().get(word)
    if row is None:
        near = difflib.get_close_matches(word, _names(), 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise UsageError(f"there is no parameter {name[:40]}; {hint}")
    return row


def names() -> tuple[str, ...]:
    """All parameters that can be set, in the order of the table."""
    return tuple(row.name for group in _rows().values() for row in group)


@cache
def _rows() -> Mapping[type, tuple[Row, ...]]:
    return {
        SamplingParams: tuple(row for row in rows(SamplingParams) if row.name not in _UNUSED),
        GenerationParams: tuple(row for row in rows(GenerationParams) if row.name in USED),
    }


@cache
def _names() -> Mapping[str, Row]:
    found: dict[str, Row] = {}
    for row in (row for group in _rows().values() for row in group):
        for spelling in (row.name, *row.param.http, *row.param.flags):
            found.setdefault(_plain(spelling), row)
    return found


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
