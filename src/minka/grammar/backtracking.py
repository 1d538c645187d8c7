"""How many steps Python's `re` may need with a pattern of a client: it tries every way to match, one after the other.

An upper estimate from the pattern alone, so that an expensive one is refused before it is ever searched for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PATTERN = 500
"""Characters of a pattern."""

_MANY = 1e18
_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|P<\w+>|[aimsu]+\)|[aimsu-]+:))?")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_REPEAT = re.compile(r"(?:([*+?])|\{(?=[\d,])(\d*)(,?)(\d*)\})[?+]?")
_REFERENCE = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")


@dataclass(slots=True)
class _Level:
    """What stands between two brackets so far: ways of the alternatives that are over, and of the one under way."""

    over: float = 0.0
    ways: float = 1.0


def steps(pattern: str, n_text: int) -> float:
    """The most ways in which a pattern can be tried at one place of a text of so many characters.

    Raises ValueError for what is no pattern, or one that cannot be estimated.
    """
    _check(pattern)
    levels = [_Level()]
    at = 0
    while at < len(pattern):
        ways = 1.0
        match pattern[at]:
            case "(":
                group = _GROUP.match(pattern, at)
                if group is None or (group[0] == "(" and pattern.startswith("(?", at)):
                    raise ValueError("has a kind of group that is not supported")
                at = group.end()
                if not group[0].endswith(")"):
                    levels.append(_Level())
                continue
            case "|":
                levels[-1].over += levels[-1].ways
                levels[-1].ways = 1.0
                at += 1
                continue
            case ")":
                level = levels.pop()
                ways, at = level.over + level.ways, at + 1
            case "[":
                found = _CLASS.match(pattern, at)
                assert found is not None, "it compiles, so its brackets are closed"
                at = found.end()
            case "\\":
                at += 2
            case _:
                at += 1
        repeat = _REPEAT.match(pattern, at)
        if repeat is not None:
            ways, at = _repeated(ways, repeat, n_text), repeat.end()
        levels[-1].ways = min(levels[-1].ways * ways, _MANY)
    return min(levels[0].over + levels[0].ways, _MANY)


def _check(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"has more than {MAX_PATTERN} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no regular expression ({error})") from None
    if _REFERENCE.search(pattern):
        raise ValueError("refers to its own groups")


def _repeated(ways: float, repeat: re.Match[str], n_text: int) -> float:
    """Ways of something that is repeated: of each number of times, those of each time."""
    sign, low, comma, high = repeat.groups()
    least = int(low or 0) if sign is None else int(sign == "+")
    most = 1 if sign == "?" else int(high) if high else n_text if sign or comma else least
    most = min(most, n_text)
    if ways == 1.0:
        return float(max(most - least + 1, least, 1))
    total = 0.0
    for times in range(least, most + 1):
        if total >= _MANY:
            break
        total += min(ways ** min(times, 60), _MANY)
    return min(max(total, 1.0), _MANY)
