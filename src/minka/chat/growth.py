"""Refuses, before it happens, what would make a value too large: `'a' * 10**9`, `s|replace('', s)`, `2 ** 10**9`.

Each check estimates the size of a result from its operands. It knows operands and a budget, nothing of Jinja.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView

from minka.chat.budget import ELEMENT_SIZE, Budget, LimitError

MAX_COUNT = 100_000
"""The largest number of items, and of spaces, that a filter may be asked for, as for `range`."""

MAX_INT_BITS = 4096
MAX_WIDTH = 10_000
WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*?(?:\d{5}|\*)")
WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\d{5}|\{)")


def weigh_container(budget: Budget, value: object) -> None:
    """Refuse a list or mapping whose text would be too large; other values are bounded already."""
    if isinstance(value, (list, tuple, dict)):
        budget.weigh(value)


def bounded_iterables(values: Sequence[object]) -> list[object]:
    """The same values, with iterators, ranges and views as lists: their size is then known, and text shows it."""
    return [
        list(value) if isinstance(value, (Iterator, range, KeysView, ValuesView, ItemsView)) else value
        for value in values
    ]


def check_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """For the operators `+`, `*`, `**` and `%`."""
    match operator:
        case "*":
            _check_product(budget, left, right)
        case "**":
            _check_power(left, right)
        case "%" if isinstance(left, str):
            check_format(budget, left, right)
        case "+" if isinstance(left, str) and isinstance(right, str):
            budget.expect(len(left) + len(right))


def check_method(budget: Budget, receiver: object, name: str, args: Sequence[object]) -> None:
    """For a method of a plain value. Lists and mappings may compare or hash their elements, so those are weighed."""
    for arg in args:
        weigh_container(budget, arg)
    if not isinstance(receiver, str):
        weigh_container(budget, receiver)
    elif name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        budget.expect(len(receiver) + receiver.count(old) * len(new))
    elif name == "join" and args and isinstance(args[0], (str, list, tuple, dict)):
        budget.expect(budget.weigh(args[0]) + len(receiver) * len(args[0]))


def check_format(budget: Budget, template: str, args: object) -> None:
    """For `template % args` and `template.format(args)`."""
    if WIDE_PERCENT.search(template) or WIDE_BRACES.search(template):
        raise LimitError("it formats text to a width of more than four digits")
    n_fields = template.count("%") + template.count("{")
    budget.expect(len(template) + n_fields * (budget.weigh(args) + MAX_WIDTH))


def check_filter(budget: Budget, name: str, values: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """For the filters that can make much out of little; `values[0]` is what is filtered."""
    if not values:
        return
    options = [*values[1:], *kwargs.values()]
    match name:
        case "batch" | "slice" | "truncate":
            _check_counts(name, options)
        case "indent":
            _check_counts(name, options)
            widths = [len(option) if isinstance(option, str) else int(option) for option in _scalars(options)]
            budget.expect((str(values[0]).count("\n") + 1) * max(widths, default=4))
        case "replace":
            check_method(budget, str(values[0]), "replace", options)
        case "join":
            check_method(budget, str(options[0]) if options else "", "join", values[:1])
        case "format":
            check_format(budget, str(values[0]), (values[1:], kwargs))
        case "sum":
            start = kwargs.get("start", values[2] if len(values) > 2 else 0)
            if not isinstance(start, (int, float)):
                raise LimitError("the filter 'sum' adds numbers only")


def _scalars(options: Sequence[object]) -> list[str | int]:
    return [option for option in options if isinstance(option, (str, int))]


def _check_counts(name: str, options: Sequence[object]) -> None:
    if any(isinstance(option, int) and abs(option) > MAX_COUNT for option in options):
        raise LimitError(f"it asks the filter {name!r} for more than {MAX_COUNT} items or spaces")


def _check_product(budget: Budget, left: object, right: object) -> None:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            budget.expect(len(sequence) * count * (1 if isinstance(sequence, str) else ELEMENT_SIZE))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_INT_BITS:
        raise LimitError("it makes a number of too many digits")


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_INT_BITS:
        raise LimitError("it makes a number of too many digits")
