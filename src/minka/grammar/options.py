"""Ways in which a value can be valid, by its JSON type: what conditions and negations of schemas are reckoned with.

A way is a tuple of schemas that all hold. No way at all for a type: no value of it is valid. An empty way: any is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

KINDS = ("null", "boolean", "number", "string", "array", "object")
"""The types of JSON; integers are numbers."""

MAX_WAYS = 400
"""Ways of one type that are told apart."""

Way: TypeAlias = tuple[object, ...]
Options: TypeAlias = Mapping[str, tuple[Way, ...]]
Apart: TypeAlias = Callable[[object, object], bool]

ANY: tuple[Way, ...] = ((),)


class TooManyWays(Exception):
    """More than MAX_WAYS: the schema cannot be written out."""


def everything() -> Options:
    """Any value."""
    return dict.fromkeys(KINDS, ANY)


def nothing() -> Options:
    """No value."""
    return dict.fromkeys(KINDS, ())


def only(kind: str, *schemas: object) -> Options:
    """Values of one type for which one of the schemas holds."""
    return {**nothing(), kind: tuple((schema,) for schema in schemas)}


def besides(kinds: Iterable[str], options: Options) -> Options:
    """The options, and any value of the types besides `kinds`."""
    told = set(kinds)
    return {kind: options[kind] if kind in told else ANY for kind in KINDS}


def within(kinds: Iterable[str], options: Options) -> Options:
    """The options that are of these types."""
    told = set(kinds)
    return {kind: options[kind] if kind in told else () for kind in KINDS}


def either(*several: Options) -> Options:
    """Values that are valid for one of them. Raises TooManyWays."""
    found = {}
    for kind in KINDS:
        ways = [way for options in several for way in options[kind]]
        found[kind] = ANY if () in ways else _counted(ways)
    return found


def both(a: Options, b: Options, apart: Apart = lambda x, y: False) -> Options:
    """Values that are valid for both; ways with schemas that are known to be `apart` are left out.

    Raises TooManyWays.
    """
    found = {}
    for kind in KINDS:
        ways: list[Way] = []
        for mine in a[kind]:
            met = [theirs for theirs in b[kind] if not any(apart(x, y) for x in mine for y in theirs)]
            ways += [(*mine, *(y for y in theirs if y not in mine)) for theirs in met]
            if len(ways) > MAX_WAYS:
                raise TooManyWays
        found[kind] = _counted(ways)
    return found


def chosen(met: Options, yes: Options, then: Options, no: Options, otherwise: Options, apart: Apart) -> Options:
    """Values that are valid for `met`, and for `then` or `otherwise`, as they are for `yes` or `no`.

    Where `yes` is out of the question, nothing needs to be said about `no`. Raises TooManyWays.
    """
    either_way = either(both(yes, then, apart), both(no, otherwise, apart))
    found: dict[str, tuple[Way, ...]] = {}
    for kind in KINDS:
        ways: list[Way] = []
        for way in met[kind]:
            here = {**nothing(), kind: (way,)}
            is_open = bool(both(here, yes, apart)[kind])
            ways += both(here, either_way if is_open else otherwise, apart)[kind]
        found[kind] = _counted(ways)
    return found


def _counted(ways: list[Way]) -> tuple[Way, ...]:
    if len(ways) > MAX_WAYS:
        raise TooManyWays
    return tuple(ways)


def kind_of(value: object) -> str:
    """The JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def kinds_named(told: object) -> frozenset[str]:
    """The types of JSON that the value of `type` names; none if there is something else in it."""
    names = told if isinstance(told, list) else [told]
    kinds = ["number" if name == "integer" else str(name) for name in names]
    return frozenset(kinds) if all(kind in KINDS for kind in kinds) else frozenset()


def as_schema(options: Options) -> object:
    """The options as one schema."""
    free = [kind for kind in KINDS if options[kind] == ANY]
    if len(free) == len(KINDS):
        return True
    parts: list[object] = [{"type": free[0] if len(free) == 1 else free}] if free else []
    for kind in KINDS:
        if kind not in free:
            parts += [{"type": kind, "allOf": list(way)} for way in options[kind]]
    return parts[0] if len(parts) == 1 else {"anyOf": parts} if parts else False
