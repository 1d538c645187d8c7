"""What a request wants its text to match, in every spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from minka.errors import NotSupportedError, RequestError
from minka.grammar.bodies import choice, gbnf, json_object, json_schema, lark, regex, source
from minka.grammar.lazy import split
from minka.protocols.constraint import Content, check, decode_content, default_content
from minka.protocols.native import decode as decode_native
from minka.protocols.openai_chat import decode as decode_chat
from minka.protocols.openai_completions import decode as decode_completions
from minka.protocols.settings import settings_object
from minka.protocols.triggers import decode_triggers
from tests.fake_vocab import FakeVocab
from tests.grammar.matching import GRAMMARS, accepts
from tests.protocols.values import made_served

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GBNF = 'root ::= "a" | "b"'
LARK = 'start: "a" | "b"'
TAG = {"format": {"type": "const_string", "value": "a"}}
SERVED = made_served()
HERE = replace(SERVED, grammars=GRAMMARS)


def body_of(body: Mapping[str, object]) -> str | None:
    content = decode_content(body)
    return content.body if content is not None else None


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ({"response_format": {"type": "json_object"}}, json_object()),
        ({"response_format": {"type": "regex", "regex": "a+"}}, regex("a+")),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, regex("a+")),
        ({"response_format": {"type": "grammar", "grammar": GBNF}}, gbnf(GBNF)),
        ({"response_format": {"type": "lark", "lark": LARK}}, lark(LARK)),
        ({"response_format": {"type": "choice", "choice": ["a"]}}, choice(["a"])),
        ({"json_schema": SCHEMA}, json_schema(SCHEMA)),
        ({"json_schema": {}}, json_schema({"type": "object"})),
        ({"grammar": GBNF}, gbnf(GBNF)),
        ({"grammar": "%llguidance {}\n" + LARK}, lark("%llguidance {}\n" + LARK)),
        ({"lark": LARK}, lark(LARK)),
        ({"regex": "a+"}, regex("a+")),
        ({"choice": ["a", "b"]}, choice(["a", "b"])),
        ({"guided_json": '{"type": "object"}'}, json_schema({"type": "object"}, param="guided_json")),
        ({"guided_regex": "a+"}, regex("a+")),
        ({"guided_choice": ["a"]}, choice(["a"])),
        ({"guided_grammar": GBNF}, gbnf(GBNF)),
        ({"guided_grammar": LARK}, lark(LARK)),
        ({"structured_outputs": {"regex": "a+"}}, regex("a+")),
        ({"structured_outputs": {"json_object": True, "disable_fallback": True}}, json_object()),
        ({"structured_outputs": {"json": SCHEMA}}, json_schema(SCHEMA, param="structured_outputs.json")),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"grammar": ""}, None),
        ({"grammar": None, "response_format": None}, None),
        ({}, None),
    ],
    ids=str,
)
def test_every_spelling_means_a_body(body: dict[str, object], same: str | None) -> None:
    assert body_of(body) == same


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": {"type": "null"}, "json_schema": {"schema": SCHEMA}},
    ],
)
def test_both_nestings_of_a_schema_are_read(form: dict[str, object]) -> None:
    body = body_of({"response_format": form})
    assert body is not None
    assert accepts(source(body), '{"a": 1}')
    assert not accepts(source(body), "{}")


def test_structural_tags_are_read_everywhere() -> None:
    format = {"type": "structural_tag", **TAG}
    for body in ({"structural_tag": TAG}, {"response_format": format}, {"structured_outputs": {"structural_tag": TAG}}):
        found = body_of(body)
        assert found is not None
        assert accepts(source(found), "a")


def test_white_space_as_vllm_asks_for_it() -> None:
    for body in (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
    ):
        found = body_of(body)
        assert found is not None
        assert accepts(source(found), '{"a":1}')


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"json_schema": {}, "grammar": GBNF}, "grammar"),
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "json_schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "strict": "yes", "schema": {}}}, "response_format.strict"),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}, "response_format.schema"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"json_schema": "x"}, "json_schema"),
        ({"json_schema": {"type": 1}}, "json_schema"),
        ({"grammar": 1}, "grammar"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"choice": "a"}, "choice"),
        ({"choice": [1]}, "choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_whitespace_pattern": 1}, "guided_whitespace_pattern"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"xml": "x"}}, "structured_outputs.xml"),
        ({"structural_tag": {"format": {"type": "x"}}}, "structural_tag"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_content(body)
    assert caught.value.param == param


def test_the_servers_own_holds_unless_the_request_says_another() -> None:
    default = default_content(GBNF, "")
    assert default is not None
    assert decode_content({}, default) == default
    assert decode_content({"grammar": ""}, default) is None
    assert decode_content({"response_format": {"type": "text"}}, default) is None
    assert decode_content({"regex": "x"}, default) == Content(regex("x"), "regex")
    schema = default_content("", '{"type": "null"}')
    assert schema is not None
    assert accepts(source(schema.body), "null")
    assert default_content("", "") is None
    for grammar, text in ((GBNF, "{}"), ("root", ""), ("", "{")):
        with pytest.raises(RequestError):
            default_content(grammar, text)


@pytest.mark.parametrize("decode", [decode_native, decode_completions, decode_chat])
def test_all_jobs_of_a_request_have_its_constraint(decode: Any) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n": 2, "regex": "[ab]"}
    jobs = decode(body, HERE).jobs
    assert len(jobs) == 2
    for job in jobs:
        assert job.constraint is not None
        assert accepts(job.constraint.grammar, "a")
        assert not accepts(job.constraint.grammar, "c")
        assert settings_object(job, stream=False)["grammar"] == job.constraint.grammar


@pytest.mark.parametrize("decode", [decode_native, decode_completions, decode_chat])
def test_what_does_not_compile_is_refused_before_any_token(decode: Any) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    wrong = {"json_schema": {"type": "string", "pattern": "(?=a)b"}}
    with pytest.raises(RequestError) as caught:
        decode({**body, **wrong}, HERE)
    assert caught.value.param == "json_schema"
    assert "#" in caught.value.message
    with pytest.raises(NotSupportedError):
        decode({**body, "regex": "a"}, SERVED)


def test_a_grammar_and_tools_exclude_each_other() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    with pytest.raises(RequestError, match="with tools"):
        decode_chat({**body, "grammar": GBNF}, HERE)


def test_nothing_to_check_is_fine() -> None:
    check(None, None, None)


VOCAB = FakeVocab([b"<tool>"])


def test_a_lazy_grammar_begins_at_its_triggers() -> None:
    body = {
        "grammar_lazy": True,
        "grammar_triggers": [
            {"type": 1, "value": "<tool>"},
            {"type": 1, "value": "call:"},
            {"type": 2, "value": "(\\{)"},
            {"type": 3, "value": "x+"},
            {"type": 0, "value": "", "token": 65},
        ],
        "preserved_tokens": ["<tool>", 3],
    }
    triggers = decode_triggers(body, VOCAB)
    assert triggers is not None
    assert triggers.tokens == (259, 65)
    assert (triggers.words, triggers.patterns, triggers.full_patterns) == (("call:",), ("(\\{)",), ("x+",))
    assert decode_triggers({**body, "grammar_lazy": False}, VOCAB) is None


def test_the_settings_show_a_lazy_grammar() -> None:
    body = {"prompt": "x", "grammar": GBNF, "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "ab"}]}
    (job,) = decode_native({**body, "preserved_tokens": [7]}, HERE).jobs
    assert job.constraint is not None
    shown = settings_object(job, stream=False)
    assert shown["grammar"] == split(job.constraint.grammar)[1]
    assert shown["grammar_lazy"] is True
    assert shown["grammar_triggers"] == [{"type": 1, "value": "ab"}]
    assert shown["preserved_tokens"] == [7]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"grammar_lazy": True}, "no triggers set for lazy grammar"),
        ({"grammar_lazy": 1}, "grammar_lazy"),
        ({"grammar_triggers": {}}, "grammar_triggers"),
        ({"grammar_triggers": [1]}, "grammar_triggers[0]"),
        ({"grammar_triggers": [{"type": 9, "value": "x"}]}, "grammar_triggers[0].type"),
        ({"grammar_triggers": [{"type": 1, "value": ""}]}, "grammar_triggers[0].value"),
        ({"grammar_triggers": [{"type": 2, "value": "(a+)+"}]}, "grammar_triggers[0].value"),
        ({"grammar_triggers": [{"type": 0, "value": "", "token": 10**6}]}, "grammar_triggers[0].token"),
        ({"grammar_triggers": [{"type": 1, "value": "<tool>"}]}, "should be marked as preserved token: <tool>"),
        ({"preserved_tokens": "x"}, "preserved_tokens"),
        ({"preserved_tokens": [10**6]}, "preserved_tokens"),
    ],
    ids=str,
)
def test_bad_triggers_are_refused(body: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_triggers(body, VOCAB)
    assert said in caught.value.message
