"""How long the shortest text is that matches: where only one text may come, all of it is looked ahead at once.

A long one stops the engine for that time, so it is refused. Estimates that may be too large by the length of a
group's name, say, and never too small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_FIXED = 30_000
"""Characters of the shortest text: about a millisecond a thousand."""

_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|[a-zA-Z-]+(?=\))))?")
_CLASS = re.compile(r"\[\^?\]?(?:[^\[\]\\]|\\.|\[:\w+:\])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_REPEAT = re.compile(r"([*+?])|\{\s*(\d*)\s*(?:,\s*\d*\s*)?\}")


def of_regex(pattern: str) -> int:
    """The estimate for a regular expression; 0 for what is none, which is for its compiler to say."""
    # Each level: the shortest alternative that is over (-1 for none), and the one under way.
    levels: list[list[int]] = [[-1, 0]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            found = _GROUP.match(pattern, at)
            at = found.end() if found is not None else at + 1
            levels.append([-1, 0])
            continue
        if char == "|":
            levels[-1] = [_over(levels[-1]), 0]
            at += 1
            continue
        n = 1
        if char == ")":
            n = _over(levels.pop()) if len(levels) > 1 else 0
            at += 1
        else:
            found = {"[": _CLASS, "\\": _ESCAPE}[char].match(pattern, at) if char in "[\\" else None
            at = found.end() if found is not None else at + 1
            n = int(char not in "^$")
        while (repeat := _REPEAT.match(pattern, at)) is not None:
            n *= int(repeat[1] == "+") if repeat[1] else int(repeat[2] or 0) if len(repeat[2]) < 12 else MAX_FIXED
            at = repeat.end()
        levels[-1][1] += n
    return _over(levels[0])


def _over(level: list[int]) -> int:
    done, now = level
    return now if done < 0 else min(done, now)


def of_schema(whole: Mapping[str, object]) -> int:
    """The estimate for a narrowed schema with its definitions: of names and constants only."""
    definitions = whole.get("$defs", {})
    known: dict[str, int] = {}
    assert isinstance(definitions, Mapping)
    # Later definitions are used by earlier ones, as a rule: what is not known yet, or leads to itself, counts nothing.
    for name in reversed(definitions):
        known[name] = _of_schema(definitions[name], known)
    return _of_schema(whole, known)


def _of_schema(schema: object, known: Mapping[str, int]) -> int:
    if not isinstance(schema, Mapping):
        return 0
    least = 0
    if "const" in schema:
        least = _of_value(schema["const"])
    values = schema.get("enum")
    if isinstance(values, list):
        least = max(least, min(map(_of_value, values), default=0))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        least = max(least, known.get(reference.rpartition("/")[2], 0))
    for key, pick in (("allOf", max), ("anyOf", min)):
        parts = schema.get(key)
        if isinstance(parts, list):
            least = max(least, pick((_of_schema(part, known) for part in parts), default=0))
    properties, items = schema.get("properties", {}), schema.get("prefixItems", [])
    required, count = schema.get("required", []), schema.get("minItems", 0)
    if isinstance(properties, Mapping) and isinstance(required, list):
        least = max(least, sum(len(str(name)) + 6 + _of_schema(properties.get(name), known) for name in required))
    if isinstance(items, list) and isinstance(count, int):
        rest = max(count - len(items), 0) * (1 + _of_schema(schema.get("items"), known))
        least = max(least, rest + sum(1 + _of_schema(item, known) for item in items[:count]))
    return least


def _of_value(value: object) -> int:
    """The characters of a constant."""
    total, open_values = 0, [value]
    while open_values:
        match open_values.pop():
            case str() as text:
                total += len(text) + 2
            case list() as values:
                total += 2 * len(values)
                open_values += values
            case dict() as members:
                total += sum(len(name) + 6 for name in members)
                open_values += members.values()
            case _:
                total += 4
    return total
