"""The official JSON-Schema-Test-Suite, where a copy of it is at hand, and random schemas everywhere.

Nothing invalid may be written. Something valid that cannot be is allowed only where `schema` says what it narrows.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from minka.errors import RequestError
from minka.grammar.bodies import json_schema, source
from tests.grammar.matching import accepts, schema_accepts, started, written
from tests.grammar.random_schemas import explicit, random_schema
from tests.grammar.random_values import random_value
from tests.grammar.suite import Outcome, count, find_suite, groups, outcomes

SUITE = find_suite()
FILES = sorted(groups(SUITE)) if SUITE else []

ANNOTATIONS = ("idn-", "iri", "regex.json", "relative-json-pointer", "uri-reference", "uri-template", "unknown")
"""Formats that are not enforced."""

UNSUPPORTED = frozenset({"refRemote"})
"""Keywords of which the suite has no schema that is taken."""


@pytest.mark.skipif(SUITE is None, reason="no copy of JSON-Schema-Test-Suite (set MINKA_SCHEMA_SUITE to its archive)")
@pytest.mark.parametrize("file", FILES)
def test_nothing_invalid_can_be_written(file: str) -> None:
    wrong = [case for case in outcomes(SUITE, file) if case.outcome is Outcome.WRONG]
    if "format/" in file and any(name in file for name in ANNOTATIONS):
        return
    # Rust's \S takes U+FEFF, which JavaScript calls white space.
    assert [case for case in wrong if "zero-width" not in case.test] == []


@pytest.mark.skipif(SUITE is None, reason="no copy of JSON-Schema-Test-Suite (set MINKA_SCHEMA_SUITE to its archive)")
@pytest.mark.parametrize("file", [file for file in FILES if "/" not in file])
def test_what_is_supported_is_and_what_is_not_is_refused(file: str) -> None:
    counts = count(outcomes(SUITE, file))
    name = file.removesuffix(".json")
    if name in UNSUPPORTED:
        assert counts[Outcome.REACHED] == 0
        assert counts[Outcome.REFUSED] > 0
    elif name not in ("defs", "format"):
        assert counts[Outcome.REACHED] > 0


@cache
def _validator(text: str) -> Any:
    return Draft202012Validator(
        json.loads(text, parse_float=Decimal), format_checker=Draft202012Validator.FORMAT_CHECKER
    )


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_written_is_valid(seed: int) -> None:
    dice = random.Random(seed)
    schema = random_schema(dice)
    try:
        grammar = source(json_schema(schema))
        started(grammar)
    except RequestError as error:
        if "#" not in error.message:
            pytest.fail(f"no place in {error.message}")
        return
    for _ in range(3):
        text = written(started(grammar), dice)
        if text is not None:
            errors = list(_validator(json.dumps(schema)).iter_errors(json.loads(text, parse_float=Decimal)))
            assert not errors, f"{text!r} for {json.dumps(schema)}"


@pytest.mark.parametrize("seed", range(1_000, 1_060))
def test_what_can_be_written_is_valid_and_most_of_what_is_valid_can_be(seed: int) -> None:
    dice = random.Random(seed)
    schema = random_schema(dice)
    try:
        grammar = source(json_schema(schema))
        started(grammar)
    except RequestError:
        return
    for _ in range(12):
        value = random_value(dice, schema, schema)
        text = json.dumps(value, ensure_ascii=False)
        if accepts(grammar, text):
            assert _is_valid(schema, text), f"{text} for {json.dumps(schema)}"


def test_what_is_valid_can_be_written_where_nothing_is_narrowed() -> None:
    reached = missed = 0
    for seed in range(2_000, 2_150):
        dice = random.Random(seed)
        schema = explicit(random_schema(dice))
        try:
            grammar = source(json_schema(schema))
            started(grammar)
        except RequestError:
            continue
        for _ in range(8):
            text = json.dumps(random_value(dice, schema, schema), ensure_ascii=False)
            if _is_valid(schema, text):
                reached += accepts(grammar, text)
                missed += not accepts(grammar, text)
    # Formats that the oracle does not know, numbers beyond 10^18, "$" in front of a line end.
    assert missed < reached * 0.03


def _is_valid(schema: Any, text: str) -> bool:
    try:
        return bool(_validator(json.dumps(schema)).is_valid(json.loads(text, parse_float=Decimal)))
    except RecursionError:
        return False  # the oracle follows references without end


def test_a_bare_keyword_speaks_of_its_type_only() -> None:
    assert schema_accepts({"minimum": 3}, 4)
    assert not schema_accepts({"minimum": 3}, 2)
    assert not schema_accepts({"minimum": 3}, "a")  # valid, but not what somebody means who writes this


def test_the_suite_is_found_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINKA_SCHEMA_SUITE", str(tmp_path / "none.tar.gz"))
    assert find_suite() is None
