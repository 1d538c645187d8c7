"""The keywords of each JSON type: their values checked, and written as the grammar compiler holds them exactly.

Every function reads the keywords of one type from a schema and adds what it makes of them to `out`. None looks at
combinators or references.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple, Protocol

from minka.errors import RequestError
from minka.grammar.formats import ANY_TEXT, PATTERNS, pattern
from minka.grammar.keywords import COMBINATORS
from minka.grammar.refs import escape
from minka.grammar.shortest import MAX_FIXED, of_regex

MAX_COUNT = 100_000
"""The largest length or number of items that is told apart; a larger maximum means this one."""

MAX_PATTERN = 10_000
"""Characters of a regular expression."""

MAX_PREFIX = 1_000
"""Schemas in `prefixItems`."""

MAX_OPTIONAL = 1_000
"""Properties of one object that need not be there: each can come next, as long as none behind it was."""

MAX_CONST_DEPTH = 30
"""Levels of a value in `const` or `enum`."""

MAX_VALUES = 10_000
"""Values of one `enum`."""

MAX_TEXT = 10_000
"""Characters of a text in `const` or `enum`, or of the name of a property."""

MAX_MULTIPLE = 4_096
"""The largest number in `multipleOf`, without its decimal point and zeros: a number is followed in so many states."""

_INFINITE = (math.inf, -math.inf)
_NUMBER_LIMIT = 10**18
_STEP = 1e-10
_EXACT = 2**53

JsonObject = Mapping[str, object]


class Place(NamedTuple):
    """Where a schema stands: its JSON pointer, how many schemas are around it, and the URI that holds there."""

    path: str
    depth: int
    base: str = ""

    def at(self, *parts: str) -> Place:
        """A place further inside."""
        return Place("/".join((self.path, *map(escape, parts))), self.depth + 1, self.base)


class Visit(Protocol):
    """Narrows a schema inside of another one."""

    def __call__(self, schema: object, place: Place, *, free: bool) -> object:
        """The narrowed schema."""


class Rules(NamedTuple):
    """How a schema is to be narrowed: see `schema.Mode`; `types` are those that its values may have."""

    free: bool
    strict: bool
    types: frozenset[str]
    visit: Visit


def narrow_values(schema: JsonObject, place: Place, out: dict[str, object]) -> None:
    """`const` and `enum`."""
    if "const" in schema:
        _check_value(schema["const"], place, "const")
        out["const"] = schema["const"]
    if "enum" in schema:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise RequestError(f'"enum" at {place.path} must be a list of values, and not an empty one')
        if len(values) > MAX_VALUES:
            raise RequestError(f'"enum" at {place.path} has more than {MAX_VALUES} values')
        for value in values:
            _check_value(value, place, "enum")
        out["enum"] = values


def _check_value(value: object, place: Place, key: str) -> None:
    open_values = [(value, 0)]
    while open_values:
        item, depth = open_values.pop()
        if depth > MAX_CONST_DEPTH:
            raise RequestError(f'"{key}" at {place.path} is nested more than {MAX_CONST_DEPTH} levels deep')
        match item:
            case bool():
                continue
            case int() if abs(item) > _EXACT:
                raise RequestError(f'"{key}" at {place.path}: integers beyond 2^53 are not supported')
            case float() if not math.isfinite(item):
                raise RequestError(f'"{key}" at {place.path} must be finite')
            case str():
                _check_text(item, place, key)
            case list():
                open_values += [(inner, depth + 1) for inner in item]
            case dict():
                open_values += [(inner, depth + 1) for inner in (*item.values(), *item)]


def _check_text(text: str, place: Place, key: str) -> None:
    if len(text) > MAX_TEXT:
        raise RequestError(f'"{key}" at {place.path} has a text of more than {MAX_TEXT} characters')
    if any((c < " " and c not in "\n\r\t\b\f") or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in text):
        raise RequestError(f'"{key}" at {place.path} has a control character, which is not supported')


# -- strings -----------------------------------------------------------------------------------------------------------


def narrow_string(schema: JsonObject, place: Place, rules: Rules, out: dict[str, object]) -> None:
    """`minLength`, `maxLength`, `pattern`, `format`."""
    _counts(schema, place, out, "minLength", "maxLength")
    patterns = []
    if "pattern" in schema:
        patterns.append(_regex(schema["pattern"], place, "pattern"))
    if "format" in schema:
        name = schema["format"]
        if not isinstance(name, str):
            raise RequestError(f'"format" at {place.path} must be a string')
        if name in PATTERNS:
            patterns.append(pattern(name))
        elif rules.strict and name not in ANY_TEXT and not _has_pattern(schema):
            raise RequestError(f'"format" at {place.path}: "{name[:40]}" is unknown, and the schema is strict')
    if patterns:
        out["pattern"] = patterns[0]
    if len(patterns) > 1:
        have = out.get("allOf", [])
        assert isinstance(have, list)
        out["allOf"] = [*have, {"pattern": patterns[1]}]


def _has_pattern(schema: JsonObject) -> bool:
    """Whether a pattern says what a format means: beside it, or in `allOf` where there are several of them."""
    parts = schema.get("allOf")
    beside = parts if isinstance(parts, list) else []
    return any(isinstance(part, Mapping) and "pattern" in part for part in (schema, *beside))


def _regex(value: object, place: Place, key: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f'"{key}" at {place.path} must be a string')
    if len(value) > MAX_PATTERN:
        raise RequestError(f'"{key}" at {place.path} is longer than {MAX_PATTERN} characters')
    if of_regex(value) > MAX_FIXED:
        raise RequestError(f'"{key}" at {place.path} matches no text of less than {MAX_FIXED} characters')
    return value


def _counts(schema: JsonObject, place: Place, out: dict[str, object], least: str, most: str) -> None:
    for key in (least, most):
        if key in schema:
            out[key] = _count(schema[key], place, key)
    low, high = out.get(least, 0), out.get(most, MAX_COUNT)
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > MAX_COUNT:
        raise RequestError(f'"{least}" at {place.path} must be at most {MAX_COUNT}')
    if low > high:
        raise RequestError(f'"{least}" at {place.path} is larger than "{most}"')
    if most in out:
        out[most] = min(high, MAX_COUNT)


def _count(value: object, place: Place, key: str) -> int:
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 0:
        raise RequestError(f'"{key}" at {place.path} must be an integer of at least 0')
    return whole


# -- numbers -----------------------------------------------------------------------------------------------------------


class _Bounds(NamedTuple):
    """The range of a number; `open_*`: without the end itself."""

    low: Fraction
    open_low: bool
    high: Fraction
    open_high: bool


def narrow_number(schema: JsonObject, place: Place, rules: Rules, out: dict[str, object]) -> None:
    """Bounds and `multipleOf`. Numbers of any size become numbers of at most 18 digits before the point, 10 after."""
    step = _step(schema, place)
    bounds = _bounds(schema, place)
    if not rules.types & {"integer", "number"}:
        return
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"):
        out.pop(key, None)
    out["exclusiveMinimum" if bounds.open_low else "minimum"] = _inward(bounds.low, up=True)
    out["exclusiveMaximum" if bounds.open_high else "maximum"] = _inward(bounds.high, up=False)
    if step is not None:
        _check_multiple(step, bounds, place)
        out["multipleOf"] = _plain(step)
    elif rules.free and "integer" not in rules.types and bounds.high - bounds.low >= 1:
        out["multipleOf"] = _STEP


def _bounds(schema: JsonObject, place: Place) -> _Bounds:
    low, open_low = Fraction(-_NUMBER_LIMIT), False
    high, open_high = Fraction(_NUMBER_LIMIT), False
    values = {
        key: _number(schema[key], place, key)
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if key in schema and not isinstance(schema[key], bool)
    }
    # Draft 4 has booleans here, which say how `minimum` and `maximum` are meant.
    if schema.get("exclusiveMinimum") is True and "minimum" in values:
        values["exclusiveMinimum"] = values.pop("minimum")
    if schema.get("exclusiveMaximum") is True and "maximum" in values:
        values["exclusiveMaximum"] = values.pop("maximum")
    if values.get("minimum", low) > low:
        low = values["minimum"]
    if values.get("exclusiveMinimum", low - 1) >= low:
        low, open_low = values["exclusiveMinimum"], True
    if values.get("maximum", high) < high:
        high = values["maximum"]
    if values.get("exclusiveMaximum", high + 1) <= high:
        high, open_high = values["exclusiveMaximum"], True
    if low > _NUMBER_LIMIT or high < -_NUMBER_LIMIT:
        raise RequestError(f"the bounds at {place.path} are beyond 10^18, which is not supported")
    if low > high or (low == high and (open_low or open_high)):
        raise RequestError(f"the bounds at {place.path} leave no number between them")
    return _Bounds(low, open_low, high, open_high)


def _number(value: object, place: Place, key: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _INFINITE or value != value:
        raise RequestError(f'"{key}" at {place.path} must be a number')
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _step(schema: JsonObject, place: Place) -> Fraction | None:
    if "multipleOf" not in schema:
        return None
    step = _number(schema["multipleOf"], place, "multipleOf")
    if step <= 0:
        raise RequestError(f'"multipleOf" at {place.path} must be above 0')
    # The compiler counts in whole steps of a power of ten, in 32 bits, and squares them where schemas are merged.
    scaled = next((step * 10**digits for digits in range(10) if (step * 10**digits).denominator == 1), None)
    if scaled is None or scaled >= 65_536 or _significant(int(scaled)) > MAX_MULTIPLE:
        raise RequestError(f'"multipleOf" at {place.path} has too many digits to be supported')
    return step


def _significant(value: int) -> int:
    while value % 10 == 0:
        value //= 10
    return value


def _check_multiple(step: Fraction, bounds: _Bounds, place: Place) -> None:
    first = math.ceil(bounds.low / step) * step
    if first == bounds.low and bounds.open_low:
        first += step
    if first > bounds.high or (first == bounds.high and bounds.open_high):
        raise RequestError(f'"multipleOf" at {place.path}: no multiple lies within the bounds')


def _inward(value: Fraction, *, up: bool) -> int | float:
    """A bound as a double, and if it is none, the next one on the inside."""
    number = float(value)
    if up and Fraction(number) < value and Fraction(repr(number)) < value:
        number = math.nextafter(number, math.inf)
    if not up and Fraction(number) > value and Fraction(repr(number)) > value:
        number = math.nextafter(number, -math.inf)
    return int(number) if number.is_integer() else number


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


# -- arrays ------------------------------------------------------------------------------------------------------------


def narrow_array(schema: JsonObject, place: Place, rules: Rules, out: dict[str, object]) -> None:
    """`items`, `prefixItems`, `minItems`, `maxItems`, and the older `items` list with `additionalItems`."""
    _counts(schema, place, out, "minItems", "maxItems")
    prefix, items = schema.get("prefixItems"), schema.get("items")
    prefix_key, items_key = "prefixItems", "items"
    if isinstance(items, list):
        if prefix is not None:
            raise RequestError(f'"items" at {place.path} must be a schema next to "prefixItems"')
        prefix, items = items, schema.get("additionalItems")
        prefix_key, items_key = "items", "additionalItems"
    if prefix is not None:
        if not isinstance(prefix, list):
            raise RequestError(f'"prefixItems" at {place.path} must be a list of schemas')
        if len(prefix) > MAX_PREFIX:
            raise RequestError(f'"prefixItems" at {place.path} has more than {MAX_PREFIX} schemas')
        out["prefixItems"] = [
            rules.visit(item, place.at(prefix_key, str(index)), free=rules.free) for index, item in enumerate(prefix)
        ]
    if items is not None:
        out["items"] = rules.visit(items, place.at(items_key), free=rules.free)
    elif rules.free and "array" in rules.types:
        out["items"] = rules.visit(True, place.at(items_key), free=True)  # noqa: FBT003 - the schema `true`


# -- objects -----------------------------------------------------------------------------------------------------------


def narrow_object(schema: JsonObject, place: Place, rules: Rules, out: dict[str, object]) -> None:
    """Properties, in the schema's order, and how many there may be."""
    _counts(schema, place, out, "minProperties", "maxProperties")
    named, matched = _map(schema, place, "properties"), _map(schema, place, "patternProperties")
    required = _required(schema, place)
    rest = _rest(schema, place)
    if "propertyNames" in schema:
        named, matched, rest = _by_names(schema["propertyNames"], place, named, matched, rest)
    # A property that both name is merged of two schemas.
    free = rules.free and not (named and matched)
    if named:
        out["properties"] = {name: rules.visit(s, place.at("properties", name), free=free) for name, s in named.items()}
    if matched:
        out["patternProperties"] = {
            _regex(name, place, "patternProperties"): rules.visit(s, place.at("patternProperties", name), free=free)
            for name, s in matched.items()
        }
    if required:
        out["required"] = required
    if rest is not None:
        out["additionalProperties"] = rules.visit(rest, place.at("additionalProperties"), free=free)
    elif free and "object" in rules.types:
        closed = (
            any(s is not False for s in named.values())
            and not matched
            and "minProperties" not in schema
            and named.keys() >= set(required)
        )
        out["additionalProperties"] = not closed and rules.visit(True, place, free=True)  # noqa: FBT003
    _check_count(out, named, required, place)


def _map(schema: JsonObject, place: Place, key: str) -> dict[str, object]:
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise RequestError(f'"{key}" at {place.path} must be an object')
    if any(len(name) > MAX_TEXT for name in value):
        raise RequestError(f'"{key}" at {place.path} has a name of more than {MAX_TEXT} characters')
    return value


def _required(schema: JsonObject, place: Place) -> list[str]:
    value = schema.get("required", [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RequestError(f'"required" at {place.path} must be a list of property names')
    return list(dict.fromkeys(value))


def _rest(schema: JsonObject, place: Place) -> object:
    """The schema of the properties that are not named, None if there is none."""
    if schema.get("unevaluatedProperties", True) is not True:
        if schema.keys() & COMBINATORS:
            raise RequestError(
                f'the keyword "unevaluatedProperties" at {place.path} is not supported next to a combination of schemas'
            )
        return schema.get("additionalProperties", schema["unevaluatedProperties"])
    return schema.get("additionalProperties")


_Properties = tuple[dict[str, object], dict[str, object], object]


def _by_names(
    names: object, place: Place, named: dict[str, object], matched: dict[str, object], rest: object
) -> _Properties:
    """`propertyNames` by way of the other keywords, as far as it goes."""
    allowed = {"type", "enum", "const", "pattern", "format", "minLength", "maxLength", "title", "description"}
    told = names.keys() - {"type", "title", "description"} if isinstance(names, dict) else set()
    if names is False:
        return {}, {}, False
    if names is True or (isinstance(names, dict) and not told and names.get("type", "string") == "string"):
        return named, matched, rest
    if not isinstance(names, dict) or named or matched or names.keys() - allowed or len(told - {"maxLength"}) > 1:
        raise RequestError(f'the keyword "propertyNames" at {place.path} is not supported in this form')
    value = True if rest is None else rest
    values = names.get("enum", [names["const"]] if "const" in names else None)
    if values is not None:
        if not isinstance(values, list) or not all(isinstance(name, str) for name in values) or len(told) > 1:
            raise RequestError(f'the keyword "propertyNames" at {place.path} is not supported in this form')
        return dict.fromkeys(values, value), {}, False
    return {}, {_names_pattern(names, place): value}, False


def _names_pattern(names: JsonObject, place: Place) -> str:
    inside = place.at("propertyNames")
    if "format" in names and names["format"] in PATTERNS and "maxLength" not in names:
        return pattern(str(names["format"]))
    if "pattern" in names and "maxLength" not in names:
        return _regex(names["pattern"], inside, "pattern")
    if "pattern" in names or "format" in names:
        raise RequestError(f'the keyword "propertyNames" at {place.path} is not supported in this form')
    lengths: dict[str, object] = {}
    _counts(names, inside, lengths, "minLength", "maxLength")
    return f"^[\\s\\S]{{{lengths.get('minLength', 0)},{lengths.get('maxLength', '')}}}$"


def _check_count(out: JsonObject, named: JsonObject, required: list[str], place: Place) -> None:
    """A grammar cannot see that a free property comes twice, so it cannot count several of them."""
    if len(named.keys() - set(required)) > MAX_OPTIONAL:
        raise RequestError(f"the schema at {place.path} has more than {MAX_OPTIONAL} optional properties")
    least = out.get("minProperties", 0)
    assert isinstance(least, int)
    if least - len(required) >= 2:
        raise RequestError(
            f'the keyword "minProperties" at {place.path} is only supported up to one more than required'
        )
