"""What a family writes of past calls, and that its own parser reads the same calls back: a property of all families."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minka.chat.formats.families import families
from minka.chat.formats.format import Ask, Calls, Format, PastCall, Tool
from minka.errors import RequestError
from tests.chat.formats.every import EVERY, SOURCES
from tests.chat.formats.samples import Sample, accepts, read

TOOL = Tool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {
                "type": "object",
                "properties": {"low": {"type": "number"}, "note": {"type": "string"}},
                "additionalProperties": False,
            },
        },
    },
)
TIME = Tool("get_time", "", {})
ASK = Ask((TOOL, TIME), Calls.AUTO)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\"'\\{}[]<>|"), max_size=30)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": TEXT,
        "days": st.integers(-(10**6), 10**6),
        "exact": st.booleans(),
        "tags": st.lists(TEXT, max_size=3),
        "deep": st.fixed_dictionaries({}, optional={"low": st.floats(-1e6, 1e6), "note": TEXT}),
    },
)


def read_back(format: Format, calls: list[PastCall]) -> list[tuple[str, object]]:
    sample = Sample(format.write(calls), ask=ASK)
    whole = read(format, sample, len(sample.raw))
    assert (whole.content, whole.reasoning, whole.broken, whole.cut) == ("", "", 0, None)
    return [(name, json.loads(arguments)) for name, _, arguments in whole.calls]


def test_no_family_is_left_out() -> None:
    modules = {family.make.__module__ for family in families()}
    tried = {family.make.__module__ for family in families() for source in SOURCES if family.make(source)}
    assert tried == modules


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors])
@given(arguments=ARGUMENTS, more=st.booleans())
def test_a_past_call_is_read_back(name: str, arguments: dict[str, object], more: bool) -> None:
    calls = [PastCall("get_weather", arguments), PastCall("get_time", {})]
    expected: list[tuple[str, object]] = [("get_weather", arguments), ("get_time", {})]
    n_calls = 2 if more else 1
    assert read_back(EVERY[name].format, calls[:n_calls]) == expected[:n_calls]


NUMBERED = {"command-a", "command-r7b"}
"""Their ids are numbers, which a client's are not, so they are left out; a model has to write them."""


@pytest.mark.parametrize("name", [name for name, case in EVERY.items() if case.format.name not in NUMBERED])
def test_a_past_call_is_what_the_grammar_lets_a_model_write(name: str) -> None:
    format = EVERY[name].format
    call = PastCall("get_weather", {"city": "Zürich", "days": 3, "tags": ["a", "b"]}, "abcdef123")
    text = format.write([call]).removeprefix(">>>" if format.name == "functionary-v3.2" else "")
    assert accepts(format, ASK, text)


@pytest.mark.parametrize("name", ["qwen-coder", "gemma-4", "lfm2", "minimax-m3"])
def test_arguments_that_are_no_object_are_refused_by_name(name: str) -> None:
    format = next(case.format for case in EVERY.values() if case.format.name == name)
    with pytest.raises(RequestError, match="the arguments of the call of 'f' in 'messages' are no JSON object"):
        format.write([PastCall("f", "{cut")])
