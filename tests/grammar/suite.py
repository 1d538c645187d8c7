"""JSON-Schema-Test-Suite as generation tests: can what is valid be written, and nothing else?"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from minka.errors import RequestError
from minka.grammar.bodies import json_schema, source
from tests.grammar.matching import accepts, started

DRAFT = "tests/draft2020-12/"


class Outcome(StrEnum):
    """What became of one instance of the suite, or of a whole schema."""

    REACHED = "valid and can be written"
    BARRED = "invalid and cannot be written"
    NARROWED = "valid but cannot be written"
    WRONG = "invalid but can be written"
    REFUSED = "the schema is refused"


class Case(NamedTuple):
    """An instance of the suite; for a refused schema there is one, with the error as its test."""

    group: str
    test: str
    outcome: Outcome


def find_suite() -> Path | None:
    """The suite's archive: what MINKA_SCHEMA_SUITE names, or the one next to the checkout; None without it."""
    named = os.environ.get("MINKA_SCHEMA_SUITE")
    roots = Path(__file__).resolve().parents
    places = [Path(named)] if named else [root / "shared/assets/schemas" for root in roots]
    for place in places:
        archives = [place] if place.is_file() else sorted(place.glob("JSON-Schema-Test-Suite*.tar.gz"))
        if archives:
            return archives[0]
    return None


@cache
def groups(archive: Path) -> dict[str, list[dict[str, Any]]]:
    """The test groups of each file of the draft."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = member.name.removeprefix("./")
            file = tar.extractfile(member) if name.startswith(DRAFT) and name.endswith(".json") else None
            if file is not None:
                found[name.removeprefix(DRAFT)] = json.load(file)
    return found


def outcomes(archive: Path | None, file: str) -> Iterator[Case]:
    """What becomes of every instance in a file."""
    assert archive is not None
    for group in groups(archive)[file]:
        try:
            grammar = source(json_schema(group["schema"]))
            started(grammar)
        except RequestError as error:
            yield Case(group["description"], error.message, Outcome.REFUSED)
            continue
        for test in group["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            taken = accepts(grammar, text.encode("utf-8", "surrogatepass"))
            if test["valid"]:
                outcome = Outcome.REACHED if taken else Outcome.NARROWED
            else:
                outcome = Outcome.WRONG if taken else Outcome.BARRED
            yield Case(group["description"], test["description"], outcome)


def count(cases: Iterable[Case]) -> Counter[Outcome]:
    """How many of each."""
    return Counter(case.outcome for case in cases)
