"""Families that differ in spelling more than in kind: each a row, all held to the same samples."""

from __future__ import annotations

import json

import pytest

from minka.chat.formats.format import Ask, Calls, Tool
from tests.chat.formats.samples import TOOLS, Sample, accepts, family, real, refuses
from tests.chat.formats.spellings import PARIS, TEXT, TIME, Spelling

CODE = json.dumps(TEXT, ensure_ascii=False)
AUTO = Ask(TOOLS, Calls.AUTO, thinks=True)
NESTED_JSON = f'{{"code": {CODE}, "options": {{"deep": true}}, "mode": "safe"}}'


def listed(
    open_: str, close: str, name: str = "name", arguments: str = "arguments", room: str = ""
) -> tuple[str, str, str]:
    """Calls in a JSON list between two tags: PARIS, PARIS and TIME, NESTED."""
    paris = f'{{"{name}": "get_weather", "{arguments}": {{"city": "Paris"}}}}'
    time = f'{{"{name}": "get_time", "{arguments}": {{}}}}'
    code = f'{{"{name}": "run_code", "{arguments}": {NESTED_JSON}}}'
    start, end, comma = f"{open_}[{room}", f"{room.rstrip(' ')}]{close}", f",{room or ' '}"
    return f"{start}{paris}{end}", f"{start}{paris}{comma}{time}{end}", f"{start}{code}{end}"


def acted(*calls: str) -> str:
    """Cohere's list of actions, numbered."""
    lines = ",\n".join(f'    {{"tool_call_id": "{i}", "tool_name": {call}}}' for i, call in enumerate(calls))
    return f"<|START_ACTION|>[\n{lines}\n]<|END_ACTION|>"


def command(kind: str, template: str) -> Spelling:
    """Command R7B and Command A."""
    paris = '"get_weather", "parameters": {"city": "Paris"}'
    return Spelling(
        "command-a" if kind == "TEXT" else "command-r7b",
        f"<|START_{kind}|> <|START_ACTION|>",
        acted(paris),
        acted(paris, '"get_time", "parameters": {}'),
        acted(f'"run_code", "parameters": {NESTED_JSON}'),
        templates=(template,),
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
        content=(f"<|START_{kind}|>", f"<|END_{kind}|>"),
        before_call="",
        ids=("0", "1"),
        extra={
            "content without tags": Sample("Hello", "Hello"),
            "content that is cut off": Sample(f"<|START_{kind}|>Hello", "Hello"),
        },
    )


SPELLINGS = (
    Spelling(
        "apriel",
        "<tool_calls> [BEGIN FINAL RESPONSE]",
        *listed("<tool_calls>", "</tool_calls>"),
        templates=("unsloth-Apriel-1.5", "Apriel-1.6-15b-Thinker-fixed"),
        think=("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
    ),
    Spelling(
        "nemotron-v2",
        "<TOOLCALL> <TOOL_RESPONSE>",
        *listed("<TOOLCALL>", "</TOOLCALL>"),
        templates=("NVIDIA-Nemotron-Nano-v2",),
    ),
    Spelling(
        "functools",
        "functools[",
        *listed("functools", ""),
        templates=("fireworks-ai-llama-3-firefunction-v2",),
        thinks=False,
        before_call=" ",
    ),
    Spelling("phi-4-mini", "<|tool|> <|/tool|>", *listed("<|tool_call|>", "<|/tool_call|>"), thinks=False),
    Spelling(
        "hunyuan",
        "<tool_calls> <|extra_0|>",
        *listed("<tool_calls>", "</tool_calls>"),
        think=("<think>\n", "\n</think>\n"),
        content=("<answer>", "</answer>"),
        before_call="",
        extra={"answer without tags": Sample("Hello", "Hello")},
    ),
    Spelling(
        "granite-3",
        "<|start_of_role|> <|tool_call|> </think>",
        *listed("<|tool_call|>", ""),
        templates=("ibm-granite-granite-3.3-2B-Instruct",),
        think=("<think>", "</think>"),
        extra={
            "response in tags": Sample("<think>Hm.</think><response>Hello</response>", "Hello", "Hm."),
        },
    ),
    command("RESPONSE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"),
    command("TEXT", "Cohere2MoE"),
    Spelling(
        "command-r-plus",
        'Action: "tool_name":  <|CHATBOT_TOKEN|>',
        *listed("Action:\n```json\n", "```", "tool_name", "parameters", room="\n    "),
        templates=("CohereForAI-c4ai-command-r-plus-tool_use",),
        thinks=False,
    ),
    Spelling(
        "apertus",
        "<|tools_prefix|>",
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"get_time": {}}]<|tools_suffix|>',
        f'<|tools_prefix|>[{{"run_code": {NESTED_JSON}}}]<|tools_suffix|>',
        templates=("Apertus-8B-Instruct",),
        think=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    Spelling(
        "seed-oss",
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        f"<seed:tool_call>\n<function=run_code>\n<parameter=code>{TEXT}</parameter>\n"
        '<parameter=options>{"deep": true}</parameter>\n<parameter=mode>safe</parameter>\n</function>\n'
        "</seed:tool_call>",
        templates=("ByteDance-Seed-OSS",),
        cut="</parameter>\n",
        think=("<seed:think>", "</seed:think>\n"),
    ),
    Spelling(
        "minimax-m2",
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        f'<minimax:tool_call>\n<invoke name="run_code">\n<parameter name="code">{TEXT}</parameter>\n'
        '<parameter name="options">{"deep": true}</parameter>\n<parameter name="mode">safe</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        templates=("MiniMax-M2",),
        cut="</parameter>\n",
    ),
    Spelling(
        "minimax-m1",
        "<tool_calls> <beginning_of_sentence>ai name=assistant",
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_calls>',
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n{"name": "get_time", "arguments": {}}\n'
        "</tool_calls>",
        f'<tool_calls>\n{{"name": "run_code", "arguments": {NESTED_JSON}}}\n</tool_calls>',
        templates=("MiniMax-M1",),
    ),
    Spelling(
        "gigachat-v3.1",
        "<|role_sep|> <|message_sep|> <|function_call|>",
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}',
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}'
        '<|function_call|>{"name": "get_time", "arguments": {}}',
        f'<|function_call|>{{"name": "run_code", "arguments": {NESTED_JSON}}}',
        templates=("GigaChat3.1-10B-A1.8B",),
        thinks=False,
        extra={
            "the end of the message": Sample(
                '<|function_call|>{"name": "get_time", "arguments": {}}<|message_sep|>\n\n', calls=[TIME]
            ),
        },
    ),
    Spelling(
        "gigachat-v3",
        "<|role_sep|> <|message_sep|>",
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris"}}',
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris"}}'
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_time", "arguments": {}}',
        f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "run_code", "arguments": {NESTED_JSON}}}',
        templates=("GigaChat3-10B-A1.8B",),
        thinks=False,
        before_call="",
        extra={
            "the end of the message": Sample(
                '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_time", "arguments": {}}'
                "<|message_sep|>\n\n",
                calls=[TIME],
            ),
        },
    ),
    Spelling(
        "solar-open",
        "<|tool_call:begin|> <|tool_call:args|>",
        '<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}'
        "<|tool_call:end|><|calls|>",
        '<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}'
        "<|tool_call:end|><|tool_call:begin|>0123456789<|tool_call:name|>get_time<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>",
        f"<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>run_code<|tool_call:args|>{NESTED_JSON}"
        "<|tool_call:end|><|calls|>",
        templates=("upstage-Solar-Open-100B",),
        think=("<|think|>", "<|end|><|begin|>assistant"),
        content=("<|content|>", "<|end|>"),
        before_call="<|begin|>assistant",
        ids=("a1b2c3d4e5", "0123456789"),
        dropped=("<|begin|>assistant", "<|end|>"),
    ),
    Spelling(
        "kimi-k3",
        "<|open|> <|close|> <|sep|> <|end_of_msg|>",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
        "<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
        '<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="get_time" index="2"<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        f'<|open|>tools<|sep|><|open|>call tool="run_code" index="1"<|sep|><|open|>argument key="code" type="string"'
        f'<|sep|>{TEXT}<|close|>argument<|sep|><|open|>argument key="options" type="object"<|sep|>{{"deep": true}}'
        '<|close|>argument<|sep|><|open|>argument key="mode" type="string"<|sep|>safe<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        templates=("Kimi-K3",),
        cut="<|close|>argument<|sep|>",
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        content=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        dropped=("<|close|>message<|sep|>",),
        before_call="",
        extra={
            "response that the prompt opened": Sample(
                "Hello<|close|>response<|sep|><|close|>message<|sep|>", "Hello", accepted=True
            ),
            "arguments in one block": Sample(
                '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
                '{"city": "Paris"}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
                calls=[PARIS],
                accepted=False,
            ),
        },
    ),
    Spelling(
        "minicpm5",
        '<function name=" <param name=" </think>',
        '<function name="get_weather"><param name="city">Paris</param></function>',
        '<function name="get_weather"><param name="city">Paris</param></function>\n'
        '<function name="get_time"></function>',
        f'<function name="run_code"><param name="code">{TEXT}</param><param name="options">{{"deep": true}}</param>'
        '<param name="mode">safe</param></function>',
        templates=("openbmb-MiniCPM5-1B",),
        cut="</param>",
        extra={
            "CDATA": Sample(
                '<function name="get_weather"><param name="city"><![CDATA[<a href="/x">hi</a> </param>]]></param>'
                "</function>",
                calls=[("get_weather", {"city": '<a href="/x">hi</a> </param>'})],
            ),
        },
    ),
    Spelling(
        "minimax-m3",
        ']<]minimax[>[ <invoke name="',
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>'
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>'
        ']<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="get_time">]<]minimax[>[</invoke>\n'
        "]<]minimax[>[</tool_call>",
        f']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="run_code">]<]minimax[>[<code>{TEXT}]<]minimax[>[</code>'
        "]<]minimax[>[<options>]<]minimax[>[<deep>true]<]minimax[>[</deep>]<]minimax[>[</options>"
        "]<]minimax[>[<mode>safe]<]minimax[>[</mode>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        templates=("MiniMax-M3",),
        cut="]<]minimax[>[</city>",
        think=("<mm:think>", "</mm:think>"),
        before_call="",
        extra={"no reasoning": Sample("</mm:think>Hello", "Hello")},
    ),
    Spelling(
        "ling-3",
        "<arg_key> <role>ASSISTANT</role>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n"
        "<tool_call>get_time\n</tool_call>",
        f"<tool_call>run_code\n<arg_key>code</arg_key>\n<arg_value>{TEXT}</arg_value>\n<arg_key>options</arg_key>\n"
        '<arg_value>{"deep": true}</arg_value>\n<arg_key>mode</arg_key>\n<arg_value>safe</arg_value>\n</tool_call>',
        templates=("inclusionai-ling-3.0-flash",),
        think=("<think>", "</think>"),
        cut="</arg_value>",
        extra={
            "call inside of reasoning": Sample(
                "Hm.<tool_call>get_time\n</tool_call>",
                reasoning="Hm.",
                calls=[TIME],
                ask=Ask(TOOLS, Calls.AUTO, thinks=True, prefill="<think>"),
            ),
            "no newlines": Sample(
                "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", calls=[PARIS]
            ),
        },
    ),
    Spelling(
        "laguna",
        "<arg_key> </assistant>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
        "<tool_call>get_time</tool_call>",
        f"<tool_call>run_code<arg_key>code</arg_key><arg_value>{TEXT}</arg_value><arg_key>options</arg_key>"
        '<arg_value>{"deep": true}</arg_value><arg_key>mode</arg_key><arg_value>safe</arg_value></tool_call>',
        templates=(
            "poolside-Laguna-S-2.1",
            "poolside-Laguna-XS-2.1",
            "poolside-Laguna-XS.2",
        ),
        think=("<think>", "</think>"),
        cut="</arg_value>",
        extra={},
    ),
    Spelling(
        "hunyuan-3",
        "arg_key set HYTK = ':x'",
        "<tool_calls:x>\n<tool_call:x>get_weather<tool_sep:x>\n<arg_key:x>city</arg_key:x>\n"
        "<arg_value:x>Paris</arg_value:x>\n</tool_call:x>\n</tool_calls:x>",
        "<tool_calls:x>\n<tool_call:x>get_weather<tool_sep:x>\n<arg_key:x>city</arg_key:x>\n"
        "<arg_value:x>Paris</arg_value:x>\n</tool_call:x>\n<tool_call:x>get_time<tool_sep:x>\n</tool_call:x>\n"
        "</tool_calls:x>",
        "<tool_calls:x>\n<tool_call:x>run_code<tool_sep:x>\n<arg_key:x>code</arg_key:x>\n"
        f"<arg_value:x>{TEXT}</arg_value:x>\n<arg_key:x>options</arg_key:x>\n"
        '<arg_value:x>{"deep": true}</arg_value:x>\n<arg_key:x>mode</arg_key:x>\n<arg_value:x>safe</arg_value:x>\n'
        "</tool_call:x>\n</tool_calls:x>",
        templates=("tencent-Hy3",),
        think=("<think:x>", "</think:x>"),
        cut="</arg_value:x>",
    ),
    Spelling(
        "lfm2",
        "<|tool_list_start|> </think>",
        '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
        '<|tool_call_start|>[get_weather(city="Paris"), get_time()]<|tool_call_end|>',
        f'<|tool_call_start|>[run_code(code={CODE}, options={{"deep": true}}, mode="safe")]<|tool_call_end|>',
        templates=("LFM2-8B-A1B", "LFM2.5-Instruct", "LFM2.5-8B-A1B"),
        streams=False,
        think=("<think>", "</think>"),
        extra={
            "single quotes": Sample(
                "<|tool_call_start|>[get_weather(city='Paris', days=3)]<|tool_call_end|>",
                calls=[("get_weather", {"city": "Paris", "days": 3})],
                accepted=False,
            ),
            "backslashes": Sample(
                r"<|tool_call_start|>[get_weather(city='a\ b\n\\c')]<|tool_call_end|>",
                calls=[("get_weather", {"city": "a\\ b\n\\c"})],
                accepted=False,
            ),
            "list in content": Sample("[link](url): [f(1)]", "[link](url): [f(1)]"),
        },
    ),
    Spelling(
        "muse",
        "<atem:function_calls> <|eom|>",
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        "<|eom|><|start|>assistant"
        ' to=get_time<|message|><atem:function_calls>\n<atem:invoke name="get_time">\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>",
        ' to=run_code<|message|><atem:function_calls>\n<atem:invoke name="run_code">\n'
        f'<atem:parameter name="code">{TEXT}</atem:parameter>\n'
        '<atem:parameter name="options">{"deep": true}</atem:parameter>\n'
        '<atem:parameter name="mode">safe</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        templates=("muse-glimmer",),
        cut="</atem:parameter>\n",
        dropped=(" to=get_weather<|message|>",),
        think=(" to=self<|message|>", "<|eom|><|start|>assistant"),
        content=(" to=user<|message|>", ""),
        before_call="<|eom|><|start|>assistant",
        extra={
            "markup in an answer": Sample(
                ' to=user<|message|>So: <atem:function_calls>\n<atem:invoke name="get_time"><|eot|>',
                content='So: <atem:function_calls>\n<atem:invoke name="get_time">',
                accepted=None,
            ),
        },
    ),
)
CASES = [(spelling, name) for spelling in SPELLINGS for name in spelling.samples()]
TEMPLATES = [(spelling.name, template) for spelling in SPELLINGS for template in spelling.templates]


@pytest.mark.parametrize(("spelling", "name"), CASES, ids=[f"{spelling.name}: {name}" for spelling, name in CASES])
def test_samples(spelling: Spelling, name: str) -> None:
    assert spelling.format.name == spelling.name
    spelling.check(name)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.name)
def test_grammar(spelling: Spelling) -> None:
    spelling.check_grammar()


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.name)
def test_many_arguments(spelling: Spelling) -> None:
    properties = {f"argument_{n}": {"type": "string" if n % 2 else "integer"} for n in range(30)}
    tool = Tool("do", "", {"type": "object", "properties": properties})
    assert not accepts(spelling.format, Ask((tool,), Calls.REQUIRED), "")


def test_what_is_required_stands_behind_what_is_not() -> None:
    properties = {"days": {"type": "integer"}, "city": {"type": "string"}}
    ask = Ask((Tool("look", "", {"type": "object", "properties": properties, "required": ["city"]}),), Calls.REQUIRED)
    lfm = family("<|tool_list_start|>")
    for inner in ('city="Paris"', 'days=3, city="Paris"'):
        assert accepts(lfm, ask, f"<|tool_call_start|>[look({inner})]<|tool_call_end|>")
    refuses(lfm, *(f"<|tool_call_start|>[look({inner})]<|tool_call_end|>" for inner in ("", "days=3")), ask=ask)


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_templates(name: str, template: str) -> None:
    assert family(real(template)).name == name
