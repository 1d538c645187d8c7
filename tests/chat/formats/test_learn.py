"""Formats that are learned from what a template writes."""

from __future__ import annotations

import pytest

from minka.chat.formats.find import find_format
from minka.chat.formats.format import Ask, Calls, Format
from minka.chat.formats.learn import learn, reasoning_of
from minka.chat.template import ChatTemplate, LegacyTemplate
from tests.chat.formats.samples import TOOLS, Sample, accepts, check, real, refuses
from tests.chat.formats.spellings import PARIS, TIME
from tests.chat.sources import STRING_ONLY, template

FRAME = """\
{%% if tools %%}TOOLS {{ tools | tojson }}
{%% endif %%}
{%% for m in messages %%}<|{{ m.role }}|>
{%%- if m.reasoning_content %%}<thought>{{ m.reasoning_content }}</thought>{%% endif %%}
{%%- if m.content %%}{{ m.content }}{%% endif %%}
{%%- if m.tool_calls %%}%s{%% endif %%}<|end|>
{%% endfor %%}
{%% if add_generation_prompt %%}<|assistant|>{%% endif %%}"""


def made(calls: str) -> ChatTemplate:
    return template(FRAME % calls)


LOOP = "{%% for c in m.tool_calls %%}%s{%% endfor %%}"
WHOLE = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
TAGS = "{% for k, v in c.function.arguments.items() %}<arg {{ k }}>{{ v }}</arg>{% endfor %}"

TEMPLATES = {
    "JSON in tags": (
        LOOP % ("<call>" + WHOLE + "</call>"),
        '<call>{"name": "get_weather", "arguments": {"city": "Paris"}}</call>',
    ),
    "a list in a section": (
        "<calls>[" + LOOP % (WHOLE + "{% if not loop.last %}, {% endif %}") + "]</calls>",
        '<calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</calls>',
    ),
    "a name and JSON": (
        LOOP % "<call>{{ c.function.name }}<args>{{ c.function.arguments | tojson }}</call>",
        '<call>get_weather<args>{"city": "Paris"}</call>',
    ),
    "arguments in tags": (
        "<calls>" + LOOP % ("<call {{ c.function.name }}>" + TAGS + "</call>") + "</calls>",
        "<calls><call get_weather><arg city>Paris</arg></call></calls>",
    ),
    "an object without tags": (
        LOOP % (WHOLE + "{% if not loop.last %}\n{% endif %}"),
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    ),
    "an object around the function": (
        LOOP % ('<call>{"type": "function", "function": ' + WHOLE + "}</call>"),
        '<call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}</call>',
    ),
    "an id first": (
        LOOP
        % (
            '<call>{"id": "{{ c.id }}", "tool": "{{ c.function.name }}", '
            '"args": {{ c.function.arguments | tojson }}}</call>'
        ),
        '<call>{"id": "abcdef123", "tool": "get_weather", "args": {"city": "Paris"}}</call>',
    ),
}


def learned(calls: str) -> Format:
    format = learn(made(calls), None)
    assert format is not None
    return format


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_learned(name: str) -> None:
    calls, one = TEMPLATES[name]
    format = learned(calls)
    call = (*PARIS, "abcdef123") if "id" in name.split() else PARIS
    check(format, Sample(one, calls=[call], ask=Ask(TOOLS, Calls.AUTO)))
    check(format, Sample("Hello <there>", "Hello <there>", ask=Ask(TOOLS, Calls.AUTO)))
    check(
        format, Sample(f"Hello {one}", "Hello", calls=[call], ask=Ask(TOOLS, Calls.AUTO))
    ) if "without" not in name else None
    refuses(format, one.replace("get_weather", "get_news"), one.replace("city", "town"))


def test_calls_after_each_other() -> None:
    calls, one = TEMPLATES["JSON in tags"]
    two = one + '<call>{"name": "get_time", "arguments": {}}</call>'
    check(learned(calls), Sample(two, calls=[PARIS, TIME], ask=Ask(TOOLS, Calls.AUTO)))
    assert not accepts(learned(calls), Ask(TOOLS, Calls.REQUIRED, parallel=False), two)


def test_reasoning_is_learned() -> None:
    calls, one = TEMPLATES["JSON in tags"]
    format = find_format(made(calls))
    assert format.name == "learned"
    assert format.reasoning is not None
    check(format, Sample(f"<thought>Hm.</thought>{one}", "", "Hm.", [PARIS]))


def test_a_template_without_calls_has_the_generic_form() -> None:
    format = find_format(template(STRING_ONLY))
    assert format.name == "generic"
    one = '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}'
    check(format, Sample(one, calls=[PARIS], ask=Ask(TOOLS, Calls.AUTO)))


def test_what_is_not_understood_is_not_learned() -> None:
    assert learn(made(LOOP % "{{ c.function.name }} of {{ c.function.arguments.values() | list }}"), None) is None


def test_a_legacy_template_writes_content() -> None:
    format = find_format(LegacyTemplate("chatml", lambda name, chat, add: "text"))
    assert format.reasoning is None
    check(format, Sample("Hello ", "Hello ", ask=Ask()))


def test_a_family_whose_template_has_no_place_for_tools() -> None:
    chosen = template(real("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"))
    format = find_format(chosen)
    assert format.name == "generic"
    one = '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}'
    check(format, Sample(f"<think>Hm.</think>{one}", "", "Hm.", [PARIS]))


@pytest.mark.parametrize(
    "name",
    [
        "Qwen-Qwen3-0.6B",
        "GLM-4.6",
        "Qwen3-Coder",
        "deepseek-ai-DeepSeek-V3.1",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "unsloth-mistral-Devstral-Small-2507",
        "MiniMax-M2",
        "fireworks-ai-llama-3-firefunction-v2",
    ],
)
def test_what_families_know_can_be_learned(name: str) -> None:
    chosen = template(real(name))
    assert learn(chosen, reasoning_of(chosen)) is not None


def test_the_generic_form_is_not_learned_from_a_template_that_shows_no_calls() -> None:
    chosen = template("{% if tools %}{{ tools }}{% endif %}{% for m in messages %}<{{ m.content }}>{% endfor %}")
    assert chosen.caps.supports_tools
    paris, time = '{"name": "get_weather", "arguments": {"city": "Paris"}}', '{"name": "get_time", "arguments": {}}'
    two = f'{{"tool_calls": [{paris}, {time}]}}'
    check(find_format(chosen), Sample(two, calls=[PARIS, TIME]))
