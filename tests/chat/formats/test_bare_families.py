"""Families whose calls have no tags of their own, or stand in messages: Llama 3, Llama 4, Functionary 3.2, gpt-oss."""

from __future__ import annotations

import json

import pytest

from minka.chat.formats.format import Ask, Calls, Tool
from minka.chat.formats.generic import generic
from tests.chat.formats.samples import TOOLS, Sample, accepts, check, family, real, refuses
from tests.chat.formats.spellings import NESTED, PARIS, TEXT, TIME

CODE = json.dumps(TEXT, ensure_ascii=False)
RUN = f'{{"code": {CODE}, "options": {{"deep": true}}, "mode": "safe"}}'
PYTHON = Tool("python", "", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]})
SEARCH = Tool(
    "brave_search", "", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
)
OWN = Ask((*TOOLS, PYTHON, SEARCH), Calls.AUTO)

SOURCES = {
    "llama-3": '<|start_header_id|> "parameters": <|eot_id|> <|eom_id|>',
    "llama-4": '<|header_start|> "parameters": <|eot|>',
    "pythonic": "[func_name1(params_name1=params_value1)]",
    "functionary-v3.2": ">>>all >>>${recipient}",
    "harmony": "<|channel|> <|message|>",
}
GENERIC = generic(None)

FORMATS = {**{name: family(source) for name, source in SOURCES.items()}, "generic": GENERIC}


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def called(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SAMPLES: dict[str, dict[str, Sample]] = {
    "llama-3": {
        "content": Sample("Hello, wörld", "Hello, wörld"),
        "other JSON": Sample('{"city": "Paris"}', '{"city": "Paris"}'),
        "call": Sample(llama("get_weather", '{"city": "Paris"}'), calls=[PARIS]),
        "call with a type": Sample(
            '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
            calls=[PARIS],
            accepted=False,
        ),
        "call in the other spelling of its function": Sample(
            '{"type": "function", "function": "get_weather", "parameters": {"city": "Paris"}}',
            calls=[PARIS],
            accepted=False,
        ),
        "call behind the tag": Sample("<|python_tag|>" + llama("get_weather", '{"city": "Paris"}'), calls=[PARIS]),
        "content and call": Sample(
            "I look. <|python_tag|>" + llama("get_weather", '{"city": "Paris"}'), "I look.", calls=[PARIS]
        ),
        "two calls": Sample(
            llama("get_weather", '{"city": "Paris"}') + "; " + llama("get_time", "{}"), calls=[PARIS, TIME]
        ),
        "nested arguments": Sample(llama("run_code", RUN), calls=[NESTED]),
        "built-in tool": Sample(
            '<|python_tag|>brave_search.call(query="who?")', calls=[("brave_search", {"query": "who?"})], ask=OWN
        ),
        "code": Sample('<|python_tag|>print("é")\nx = 1', calls=[("python", {"code": 'print("é")\nx = 1'})], ask=OWN),
        "unknown tool": Sample(llama("get_news", "{}"), llama("get_news", "{}"), accepted=False),
        "cut off": Sample('{"name": "get_weather", "parameters": {"city": "Par', cut='{"city": "Par', accepted=False),
    },
    "llama-4": {
        "content": Sample("Hello, wörld", "Hello, wörld"),
        "call": Sample(llama("get_weather", '{"city": "Paris"}'), calls=[PARIS]),
        "call behind the tag": Sample("<|python_start|>" + llama("get_weather", '{"city": "Paris"}'), calls=[PARIS]),
        "two calls": Sample(llama("get_weather", '{"city": "Paris"}') + llama("get_time", "{}"), calls=[PARIS, TIME]),
        "call with the keys of others": Sample(
            '{"name": "get_weather", "arguments": {"city": "Paris"}}', calls=[PARIS], accepted=False
        ),
        "cut off": Sample('{"name": "get_weather", "parameters": {"city": "Par', cut='{"city": "Par', accepted=False),
    },
    "pythonic": {
        "content": Sample("Hello [1] (a)", "Hello [1] (a)"),
        "a list": Sample("[1, 2]", "[1, 2]"),
        "call": Sample('[get_weather(city="Paris")]', calls=[PARIS]),
        "two calls": Sample('[get_weather(city="Paris"), get_time()]', calls=[PARIS, TIME]),
        "nested arguments": Sample(f'[run_code(code={CODE}, options={{"deep": True}}, mode="safe")]', calls=[NESTED]),
        "brackets in strings": Sample(
            "[run_code(code='f(\\'x\\')] )')]", calls=[("run_code", {"code": "f('x')] )"})], accepted=False
        ),
        "unknown tool": Sample("[get_news()]", "[get_news()]", accepted=False),
        "no keywords": Sample('[get_weather("Paris")]', '[get_weather("Paris")]', accepted=False),
        "cut off": Sample('[get_weather(city="Par', '[get_weather(city="Par', accepted=False),
    },
    "functionary-v3.2": {
        "content": Sample("all\nHello >>> there", "Hello >>> there", accepted=None),
        "call": Sample('get_weather\n{"city": "Paris"}', calls=[PARIS]),
        "content and call": Sample('all\nI look.>>>get_weather\n{"city": "Paris"}', "I look.", calls=[PARIS]),
        "two calls": Sample('get_weather\n{"city": "Paris"}>>>get_time\n{}', calls=[PARIS, TIME]),
        "nested arguments": Sample(f"run_code\n{RUN}", calls=[NESTED]),
        "unknown tool": Sample("get_news\n{}", "get_news\n{}", accepted=False),
        "cut off": Sample('get_weather\n{"city": "Par', cut='{"city": "Par', accepted=False),
    },
    "harmony": {
        "content": Sample("<|channel|>final<|message|>Hello", "Hello"),
        "reasoning": Sample(f"{ANALYSIS}<|channel|>final<|message|>Hello", "Hello", "Hm."),
        "call": Sample(called("get_weather", '{"city": "Paris"}'), calls=[PARIS]),
        "call with the recipient first": Sample(
            ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}', calls=[PARIS]
        ),
        "call that is ended": Sample(called("get_time", "{}") + "<|call|>", calls=[TIME], accepted=None),
        "reasoning and call": Sample(ANALYSIS + called("get_weather", '{"city": "Paris"}'), "", "Hm.", [PARIS]),
        "preamble and call": Sample(
            f"{ANALYSIS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            + called("get_weather", '{"city": "Paris"}'),
            "I look.",
            "Hm.",
            [PARIS],
        ),
        "nested arguments": Sample(called("run_code", RUN), calls=[NESTED]),
        "reasoning that never ends": Sample("<|channel|>analysis<|message|>Hm", reasoning="Hm", accepted=False),
        "kept reasoning": Sample(
            f"{ANALYSIS}<|channel|>final<|message|>Hello",
            "<|channel|>analysis<|message|>Hm.<|end|>Hello",
            ask=Ask(TOOLS, Calls.AUTO, thinks=True, keep_reasoning=True),
        ),
        "an answer to go on with": Sample(
            " world", " world", ask=Ask(prefill="<|channel|>final<|message|>Hello", thinks=True)
        ),
        "cut off": Sample(called("get_weather", '{"city": "Par'), cut='{"city": "Par', accepted=False),
        "no tools": Sample(f"{ANALYSIS}<|channel|>final<|message|>Hello", "Hello", "Hm.", ask=Ask(thinks=True)),
    },
    "generic": {
        "content": Sample("Hello {", "Hello {"),
        "other JSON": Sample('{"city": 1}', '{"city": 1}'),
        "call": Sample('{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}', calls=[PARIS]),
        "call on lines": Sample(
            '{\n  "tool_calls": [\n    {"name": "get_time", "arguments": {}}\n  ]\n}', calls=[TIME], accepted=False
        ),
        "two calls": Sample(
            '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
            '{"name": "get_time", "arguments": {}}]}',
            calls=[PARIS, TIME],
        ),
        "nested arguments": Sample(f'{{"tool_calls": [{{"name": "run_code", "arguments": {RUN}}}]}}', calls=[NESTED]),
        "cut off": Sample(
            '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Par', cut='{"city": "Par', accepted=False
        ),
    },
}
CASES = {f"{name}: {case}": (name, sample) for name, rows in SAMPLES.items() for case, sample in rows.items()}
ONE = {name: rows["call"].raw for name, rows in SAMPLES.items()}


@pytest.mark.parametrize(("name", "sample"), CASES.values(), ids=list(CASES))
def test_samples(name: str, sample: Sample) -> None:
    assert FORMATS[name].name == name
    check(FORMATS[name], sample)


@pytest.mark.parametrize("name", FORMATS)
def test_wrong_calls_are_refused(name: str) -> None:
    format, one = FORMATS[name], ONE[name]
    wrong = [
        one.replace("city", "town"),
        one.replace("get_weather", "get_news"),
        one.replace("get_weather", "get_time"),
    ]
    refuses(format, *wrong, "Hello", ask=Ask(TOOLS, Calls.REQUIRED))
    refuses(format, *wrong, ask=Ask(TOOLS, Calls.AUTO))
    two = SAMPLES[name].get("two calls")
    if two is not None:
        assert accepts(format, Ask(TOOLS, Calls.REQUIRED), two.raw)
        refuses(format, two.raw, ask=Ask(TOOLS, Calls.REQUIRED, parallel=False))


@pytest.mark.parametrize("name", FORMATS)
def test_content_beside_tools(name: str) -> None:
    content = Ask(TOOLS, Calls.AUTO, content='%json {"type": "integer"}')
    told = {"functionary-v3.2": "all\n42", "harmony": "<|channel|>final<|message|>42"}.get(name, "42")
    assert accepts(FORMATS[name], content, told)
    assert accepts(FORMATS[name], content, ONE[name])
    refuses(FORMATS[name], told.replace("42", "Hello"), ask=content)


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("llama-3", "meta-llama-Llama-3.1-8B-Instruct"),
        ("llama-3", "meta-llama-Llama-3.2-3B-Instruct"),
        ("llama-3", "meta-llama-Llama-3.3-70B-Instruct"),
        ("functionary-v3.2", "meetkai-functionary-medium-v3.2"),
        ("harmony", "openai-gpt-oss-120b"),
    ],
)
def test_templates(name: str, template: str) -> None:
    assert family(real(template)).name == name
