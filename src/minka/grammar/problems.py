"""What is wrong with a grammar: the compiler's complaint in one sentence, and for a schema the place that it is about.

The compiler names no place in a schema. So, once something failed, its parts are compiled one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from llguidance import LLMatcher, LLTokenizer

from minka.errors import RequestError
from minka.grammar.deep import run_deep
from minka.grammar.limits import LIMITS
from minka.grammar.refs import children

_NAMES_TOKENS = re.compile(r"special token|token range|vocab", re.IGNORECASE)
"""Complaints about tokens of the vocabulary, which only the model's own has."""

MAX_TRIES = 200
"""Parts of a schema that are compiled to find the place; the place is the last one found by then."""

MAX_SENTENCE = 300
"""Characters of a complaint."""

_KEYWORD = "%json "
_PREFIX = re.compile(r"^at [0-9]+\([0-9]+\): failed to compile JSON schema: ")

Schema = Mapping[str, object]


def embed(schema: Schema) -> str:
    """A narrowed schema, with its options, as a rule body."""
    # < is written as an escape, so that nothing can be taken for a mark (see marks.literal).
    return _KEYWORD + json.dumps(schema).replace("<", "\\u003c")


def problem_of(source: str) -> str:
    """What is wrong with a grammar, empty if nothing is. Special tokens are not looked up."""
    check = LLMatcher.validate_grammar_with_warnings
    is_error, messages = run_deep(lambda: check(source, limits=LIMITS), len(source))
    return first_line(messages[0]) if is_error else ""


def try_out(source: str) -> str:
    """What goes wrong when a grammar that compiled is used, for a vocabulary of bytes; empty if nothing does."""

    def run() -> str:
        matcher = LLMatcher(LLTokenizer("byte"), source, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher.get_error() if matcher.is_error() else ""

    message = run_deep(run, len(source))
    return first_line(message) if message and not _NAMES_TOKENS.search(message) else ""


def first_line(message: str) -> str:
    """The sentence of a compiler's message, without the source that it quotes."""
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^") and " | " not in line]
    text = _PREFIX.sub("", " ".join(lines[:4])) or "it cannot be compiled"
    reason = text.rfind("error: ")
    # A long pattern stands in front of what is wrong with it.
    return text if len(text) <= MAX_SENTENCE else f"{text[:100]} ... {text[reason if reason > 100 else -150 :][:200]}"


Problem = Callable[[str], str]
"""What is wrong with a grammar, as `problem_of` says it."""


def explain(source: str, message: str, param: str, problem: Problem) -> RequestError:
    """The error for a grammar that did not compile: about a place in a schema, if one of its schemas is to blame."""
    for schema in _schemas(source):
        if problem("start: " + embed(schema)):
            path, complaint = _locate(schema, problem)
            name = str(schema.get("$comment", param))
            return RequestError(f'"{name}": the schema at {path} cannot be held to: {complaint}', param=name)
    return RequestError(f'"{param}" cannot be used as a grammar: {first_line(message)}', param=param)


def _schemas(source: str) -> Iterator[Schema]:
    """The schemas inside of a grammar."""
    decoder = json.JSONDecoder()
    at = source.find(_KEYWORD)
    while at >= 0:
        try:
            value, end = decoder.raw_decode(source, at + len(_KEYWORD))
        except (json.JSONDecodeError, RecursionError):
            value, end = None, at + len(_KEYWORD)
        if isinstance(value, dict):
            yield value
        at = source.find(_KEYWORD, end)


def _locate(whole: Schema, problem: Problem) -> tuple[str, str]:
    """The place of the smallest part of a schema that does not compile, and what is wrong with it."""
    shared = {key: whole[key] for key in ("$defs", "x-guidance") if key in whole}
    definitions = whole.get("$defs", {})
    current: Schema = {key: value for key, value in whole.items() if key not in shared}
    path, complaint, left = "#", problem("start: " + embed(whole)), MAX_TRIES
    seen: set[str] = set()
    while True:
        for part, at in [*children(current, path), *_definition(current, definitions, path, seen)]:
            if not isinstance(part, Mapping) or not left:
                continue
            left -= 1
            found = problem("start: " + embed({**part, **shared}))
            if found:
                path, complaint, current = at, found, part
                break
        else:
            return path, complaint


def _definition(schema: Schema, definitions: object, path: str, seen: set[str]) -> list[tuple[object, str]]:
    """The definition that a schema refers to, at the place of the reference; each one once."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not isinstance(definitions, Mapping):
        return []
    name = reference.rpartition("/")[2]
    if name not in definitions or name in seen:
        return []
    seen.add(name)
    return [(definitions[name], path)]
