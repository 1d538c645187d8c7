"""Every family, with samples of what it writes: for the properties that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minka.chat.formats.format import Format
from tests.chat.formats import test_bare_families, test_hermes, test_spellings, test_tagged_families
from tests.chat.formats.samples import Sample


@dataclass(frozen=True)
class Case:
    """A family and its samples."""

    format: Format
    samples: Mapping[str, Sample]


def _every() -> dict[str, Case]:
    rows = [*test_spellings.SPELLINGS, *test_tagged_families.SPELLINGS]
    spelled = {f"{row.name} {n}": Case(row.format, row.samples()) for n, row in enumerate(rows)}
    bare = {name: Case(format, test_bare_families.SAMPLES[name]) for name, format in test_bare_families.FORMATS.items()}
    return {**spelled, **bare, "hermes": Case(test_hermes.HERMES, test_hermes.SAMPLES)}


EVERY = _every()
SOURCES = (
    *(row.source for row in (*test_spellings.SPELLINGS, *test_tagged_families.SPELLINGS)),
    *test_bare_families.SOURCES.values(),
    test_hermes.SOURCE,
)
"""Texts that the families are found by."""
