"""All families, and which of them knows the source of a template."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import minka.chat.formats
from minka.chat.formats.format import Family, Format


@cache
def families() -> tuple[Family, ...]:
    """The families of all modules of this package, in the order in which they are asked."""
    found: list[Family] = []
    for info in pkgutil.iter_modules(minka.chat.formats.__path__, "minka.chat.formats."):
        family = getattr(import_module(info.name), "FAMILY", None)
        if isinstance(family, Family):
            found.append(family)
    return tuple(sorted(found, key=lambda family: family.rank))


def find_family(source: str) -> Format | None:
    """The format of a template's source, if a family knows it."""
    return next(filter(None, (family.make(source) for family in families())), None)
