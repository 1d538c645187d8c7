"""Families whose calls stand in tags: DeepSeek, GLM, Kimi K2, Mistral, Qwen3-Coder, Functionary 3.1, Gemma 4."""

from __future__ import annotations

import json
from typing import TypedDict

import pytest

from tests.chat.formats.samples import Sample, family, real
from tests.chat.formats.spellings import PARIS, TEXT, Spelling

CODE = json.dumps(TEXT, ensure_ascii=False)
NESTED = f'{{"code": {CODE}, "options": {{"deep": true}}, "mode": "safe"}}'
CITY = '{"city": "Paris"}'


class Texts(TypedDict):
    """The calls of a Spelling."""

    one: str
    two: str
    nested: str


def named(head: str, tail: str, open_: str = "", close: str = "", gap: str = "") -> Texts:
    """Calls with a name and JSON; `head` has the place of the name."""

    def call(name: str, arguments: str) -> str:
        return head.format(name) + arguments + tail

    return {
        "one": open_ + call("get_weather", CITY) + close,
        "two": open_ + call("get_weather", CITY) + gap + call("get_time", "{}") + close,
        "nested": open_ + call("run_code", NESTED) + close,
    }


def tagged(head: str, argument: str, tail: str, gap: str = "\n", open_: str = "", close: str = "") -> Texts:
    """Calls with a name and arguments in tags."""

    def call(name: str, **arguments: str) -> str:
        return head.format(name) + "".join(argument.format(key, text) for key, text in arguments.items()) + tail

    return {
        "one": open_ + call("get_weather", city="Paris") + close,
        "two": open_ + call("get_weather", city="Paris") + gap + call("get_time") + close,
        "nested": open_ + call("run_code", code=TEXT, options='{"deep": true}', mode="safe") + close,
    }


def dsml(section: str) -> Texts:
    """DeepSeek's XML; its tags say whether a value is text."""
    texts = tagged(
        '<｜DSML｜invoke name="{}">\n',
        '<｜DSML｜parameter name="{}" string="true">{}</｜DSML｜parameter>\n',
        "</｜DSML｜invoke>\n",
        "",
        f"<｜DSML｜{section}>\n",
        f"</｜DSML｜{section}>",
    )
    as_json = ('name="options" string="true"', 'name="options" string="false"')
    return {"one": texts["one"], "two": texts["two"], "nested": texts["nested"].replace(*as_json)}


R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>"
SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

SPELLINGS = (
    Spelling(
        "deepseek-r1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜> </think>",
        **named(R1, "\n```<｜tool▁call▁end｜>", *SECTION, "\n"),
        templates=("llama-cpp-deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
        extra={
            "call inside of the reasoning": Sample(
                "<think>Hm." + named(R1, "\n```<｜tool▁call▁end｜>", *SECTION)["one"], "", "Hm.", [PARIS]
            ),
        },
    ),
    Spelling(
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜> </think>",
        **named(V31, "<｜tool▁call▁end｜>", *SECTION),
        templates=("deepseek-ai-DeepSeek-V3.1",),
        think=("<think>", "</think>"),
        before_call="",
    ),
    Spelling(
        "deepseek-dsml",
        "DSML invoke function_calls",
        **dsml("function_calls"),
        cut="</｜DSML｜parameter>\n",
        templates=("deepseek-ai-DeepSeek-V3.2",),
        think=("<think>", "</think>"),
        before_call="\n\n",
    ),
    Spelling(
        "deepseek-dsml",
        "DSML invoke tool_calls",
        **dsml("tool_calls"),
        cut="</｜DSML｜parameter>\n",
        templates=("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
        think=("<think>", "</think>"),
        before_call="\n\n",
    ),
    Spelling(
        "glm",
        "<tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value> </think>",
        **tagged("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
        cut="</arg_value>\n",
        templates=("GLM-4.6",),
        think=("<think>", "</think>\n"),
    ),
    Spelling(
        "glm",
        "<tool_call>{name}<arg_key>k</arg_key><arg_value>v</arg_value> </think>",
        **tagged("<tool_call>{}", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>", ""),
        cut="</arg_value>",
        templates=("GLM-4.7-Flash",),
        think=("<think>", "</think>"),
        before_call="",
    ),
    Spelling(
        "mistral-small",
        "[TOOL_CALLS] [CALL_ID] [ARGS]",
        one=f"[TOOL_CALLS]get_weather[CALL_ID]abcdef123[ARGS]{CITY}",
        two=f"[TOOL_CALLS]get_weather[CALL_ID]abcdef123[ARGS]{CITY}[TOOL_CALLS]get_time[CALL_ID]000000001[ARGS]{{}}",
        nested=f"[TOOL_CALLS]run_code[CALL_ID]abcdef123[ARGS]{NESTED}",
        templates=("Mistral-Small-3.2-24B-Instruct-2506",),
        thinks=False,
        before_call="",
        ids=("abcdef123", "000000001"),
    ),
    Spelling(
        "ministral",
        "[TOOL_CALLS] [ARGS] [THINK]",
        **named("[TOOL_CALLS]{}[ARGS]", ""),
        templates=("mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"),
        think=("[THINK]", "[/THINK]"),
        before_call="",
    ),
    Spelling(
        "mistral-nemo",
        "[TOOL_CALLS]",
        one=f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {CITY}, "id": "abcdef123"}}]',
        two=f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {CITY}, "id": "abcdef123"}}, '
        '{"name": "get_time", "arguments": {}, "id": "000000001"}]',
        nested=f'[TOOL_CALLS][{{"name": "run_code", "arguments": {NESTED}, "id": "abcdef123"}}]',
        templates=("mistralai-Mistral-Nemo-Instruct-2407",),
        thinks=False,
        before_call="",
        extra={
            "without an id": Sample(
                f'[TOOL_CALLS] [{{"name":"get_weather","arguments":{CITY}}}]', calls=[PARIS], accepted=False
            ),
        },
    ),
    Spelling(
        "kimi-k2",
        "<|tool_calls_section_begin|> <|tool_call_begin|> </think>",
        one="<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{CITY}<|tool_call_end|><|tool_calls_section_end|>",
        two="<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{CITY}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        nested="<|tool_calls_section_begin|><|tool_call_begin|>functions.run_code:0<|tool_call_argument_begin|>"
        f"{NESTED}<|tool_call_end|><|tool_calls_section_end|>",
        templates=("Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"),
        think=("<think>", "</think>"),
        before_call="",
        ids=("functions.get_weather:0", "functions.get_time:1"),
        extra={
            "nested arguments": Sample(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.run_code:0<|tool_call_argument_begin|>"
                f"{NESTED}<|tool_call_end|><|tool_calls_section_end|>",
                calls=[("run_code", json.loads(NESTED), "functions.run_code:0")],
            ),
            "an id without a number": Sample(
                "<|tool_calls_section_begin|><|tool_call_begin|>get_time<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>",
                calls=[("get_time", {}, "get_time")],
                accepted=False,
            ),
        },
    ),
    Spelling(
        "qwen-coder",
        "<tool_call> <function= <parameter= </think>",
        **tagged(
            "<tool_call>\n<function={}>\n",
            "<parameter={}>\n{}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        cut="\n</parameter>\n",
        templates=(
            "Qwen3-Coder",
            "Qwen3.5-4B",
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "StepFun3.5-Flash",
        ),
        extra={
            "a value with Python's words": Sample(
                "<tool_call>\n<function=run_code>\n<parameter=code>\nx\n</parameter>\n<parameter=options>\n"
                "{'deep': True}\n</parameter>\n</function>\n</tool_call>",
                calls=[("run_code", {"code": "x", "options": {"deep": True}})],
                accepted=False,
            ),
            "lines in a value": Sample(
                "<tool_call>\n<function=run_code>\n<parameter=code>\n\n  if a < b:\n    c()\n\n</parameter>\n"
                "</function>\n</tool_call>",
                calls=[("run_code", {"code": "\n  if a < b:\n    c()\n"})],
            ),
        },
    ),
    Spelling(
        "functionary-v3.1",
        "<function=name>{}</function>",
        **named("<function={}>", "</function>"),
        templates=("meetkai-functionary-medium-v3.1",),
        thinks=False,
        before_call="",
    ),
    Spelling(
        "functiongemma",
        "<start_function_call>",
        one="<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        two="<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
        "<start_function_call>call:get_time{}<end_function_call>",
        nested=f"<start_function_call>call:run_code{{code:<escape>{TEXT}<escape>,mode:<escape>safe<escape>,"
        "options:{deep:true}}<end_function_call>",
        cut="<escape>",
        thinks=False,
    ),
    Spelling(
        "gemma-4",
        "<|tool_call>call:",
        one='<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        two='<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        nested=f'<|tool_call>call:run_code{{code:<|"|>{TEXT}<|"|>,mode:<|"|>safe<|"|>,options:{{deep:true}}}}<tool_call|>',
        templates=("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
        cut='<|"|>',
        think=("<|channel>thought\n", "\n<channel|>"),
        extra={
            "numbers and nothing": Sample(
                '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:-3}<tool_call|><|tool_response>',
                calls=[("get_weather", {"city": "Rome", "days": -3})],
            ),
            "null in JSON's spelling": Sample(
                '<|tool_call>call:get_weather{city:null, days: [1,{a:<|"|>b<|"|>}]}<tool_call|>',
                calls=[("get_weather", {"city": None, "days": [1, {"a": "b"}]})],
                accepted=False,
            ),
        },
    ),
)
CASES = {f"{row.name} {n}: {name}": (row, name) for n, row in enumerate(SPELLINGS) for name in row.samples()}


@pytest.mark.parametrize(("row", "name"), CASES.values(), ids=list(CASES))
def test_samples(row: Spelling, name: str) -> None:
    row.check(name)


@pytest.mark.parametrize("row", SPELLINGS, ids=[f"{row.name} {n}" for n, row in enumerate(SPELLINGS)])
def test_grammar(row: Spelling) -> None:
    assert row.format.name == row.name
    row.check_grammar()


@pytest.mark.parametrize(("name", "template"), [(row.name, file) for row in SPELLINGS for file in row.templates])
def test_templates(name: str, template: str) -> None:
    assert family(real(template)).name == name
