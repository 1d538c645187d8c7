"""Which template is used, what is found out about it, and how conversations are bent to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from minka.chat.builtin import BUILTIN
from minka.chat.formats.find import find_format
from minka.chat.messages import Message, TextPart, ToolCall
from minka.chat.probe import probe
from minka.chat.profile import ReasoningField
from minka.chat.program import Program
from minka.chat.template import ChatTemplate, LegacyTemplate, Template, generation_prompt, select_template
from minka.errors import ModelError, RequestError, UnsupportedError, UsageError
from tests.chat import sources
from tests.chat.sources import WEATHER, template

USER = Message("user", "hi")
PARTS = Message("user", (TextPart("one"), TextPart("two")))


def call(call_id: str = "call_abc", city: str = "Lima") -> Message:
    arguments = json.dumps({"city": city})
    return Message("assistant", None, tool_calls=(ToolCall(call_id, "get_weather", arguments),))


def result(call_id: str = "call_abc", text: str = "rain") -> Message:
    return Message("tool", text, tool_call_id=call_id)


@pytest.mark.parametrize(
    ("source", "yes"),
    [
        (sources.STRING_ONLY, "string_content system_role"),
        (sources.TYPED_ONLY, "typed_content system_role"),
        (sources.BOTH, "string_content typed_content system_role"),
        (sources.NO_SYSTEM, "string_content"),
        (sources.TOOLS, "string_content system_role tools tool_calls parallel_tool_calls object_arguments"),
        (sources.STRING_ARGUMENTS, "string_content system_role tools tool_calls parallel_tool_calls"),
        (sources.CALLS_ONLY, "string_content system_role tool_calls parallel_tool_calls object_arguments"),
        (sources.ONE_CALL, "string_content system_role tools tool_calls object_arguments"),
        (sources.THINKING, "string_content system_role preserve_reasoning reasoning_effort"),
    ],
)
def test_caps(source: str, yes: str) -> None:
    caps = template(source).caps
    found = [name for name in caps.__slots__ if getattr(caps, name)]
    assert sorted(found) == sorted(f"supports_{name}" for name in yes.split())


def test_a_template_that_shows_only_the_first_part_of_a_system_message_gets_strings() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.role == 'system' %}"
        "{{ m.content[0].text }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}"
    )
    system = Message("system", (TextPart("first"), TextPart("second")))
    assert not template(source).caps.supports_typed_content
    assert template(source).render([system, USER]) == "first\nsecond;hi;"


def test_string_only_joins_parts() -> None:
    assert template(sources.STRING_ONLY).render([PARTS]) == "<s><user>one\ntwo</user>\n<assistant>"


def test_typed_only_wraps_strings() -> None:
    assert template(sources.TYPED_ONLY).render([USER, Message("assistant", "yo"), PARTS]) == (
        "<user>hi|<assistant>yo|<user>one|two|<assistant>"
    )


def test_both_passes_parts_on() -> None:
    assert template(sources.BOTH).render([USER, PARTS]) == "<user>hi<user>one+two+<assistant>"


def test_null_content_is_empty() -> None:
    text = template(sources.STRING_ONLY).render([USER, Message("assistant", None), USER], add_generation_prompt=False)
    assert text == "<s><user>hi</user>\n<assistant></assistant>\n<user>hi</user>\n"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([Message("system", "be brief"), USER], "<user>be brief\nhi\n"),
        ([Message("developer", "be brief"), USER], "<user>be brief\nhi\n"),
        ([Message("system", "a"), Message("system", "b"), PARTS], "<user>a\nb\none\ntwo\n"),
        ([USER, Message("assistant", "yo"), Message("system", "a"), USER], "<user>hi\n<assistant>yo\n<user>a\nhi\n"),
        ([Message("system", "alone")], "<user>alone\n"),
    ],
)
def test_no_system_role(messages: list[Message], expected: str) -> None:
    assert template(sources.NO_SYSTEM).render(messages, add_generation_prompt=False) == expected


def test_developer_is_system_except_for_channels() -> None:
    developer = Message("developer", "be brief")
    assert "<system>be brief" in template(sources.STRING_ONLY).render([developer, USER])
    assert "<|start|>developer<|message|>be brief" in template(sources.CHANNELS).render([developer, USER])


def test_function_role_is_tool() -> None:
    assert "<tool>42</tool>" in template(sources.STRING_ONLY).render([USER, Message("function", "42", name="f")])


def test_tools_and_calls() -> None:
    text = template(sources.TOOLS).render([USER, call(), result()], tools=[WEATHER])
    tools, *rest = text.splitlines()
    assert json.loads(tools.removeprefix("TOOLS ")) == [
        {"type": "function", "function": {k: v for k, v in _function().items() if k != "strict"}}
    ]
    assert rest == ["<user>hi", "CALL call_abc get_weather(city=Lima)", "RESULT call_abc rain", "<assistant>"]


def _function() -> dict[str, object]:
    function = WEATHER["function"]
    assert isinstance(function, dict)
    return function


def test_string_arguments_are_left_alone() -> None:
    text = template(sources.STRING_ARGUMENTS).render([USER, call(), result()])
    assert 'CALL call_abc get_weather({"city": "Lima"})' in text


def test_arguments_that_are_no_json() -> None:
    broken = Message("assistant", None, tool_calls=(ToolCall("c", "f", '{"city": '),))
    with pytest.raises(RequestError, match="Failed to parse tool call arguments as JSON"):
        template(sources.TOOLS).render([USER, broken])
    empty = Message("assistant", None, tool_calls=(ToolCall("c", "f", ""),))
    assert "CALL c f()" in template(sources.TOOLS).render([USER, empty])
    assert 'CALL c f({"city": )' in template(sources.STRING_ARGUMENTS).render([USER, broken])


def test_ids_are_shortened_only_where_they_must_be() -> None:
    text = template(sources.SHORT_IDS).render([USER, call(), result(), call("abcdef123"), result("abcdef123")])
    lines = text.splitlines()
    assert lines[1].split()[1] == lines[2].split()[1] != "call_abc"
    assert lines[3].split()[1] == lines[4].split()[1] == "abcdef123"


def test_tools_for_a_template_without_any() -> None:
    turns = [Message("system", "be brief"), USER, call("a"), result("a"), call("b"), result("b", "sun"), USER]
    text = template(sources.STRING_ONLY).render(turns, tools=[WEATHER])
    system, rest = text.split("</system>\n")
    assert system.startswith("<s><system>be brief\n\nYou can call functions")
    assert '"description": "Weather of a city"' in system
    assert '{"tool_calls": [{"name": "FUNCTION_NAME"' in system
    assert '<assistant>{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Lima"}}]}</assistant>' in rest
    assert "<tool>rain</tool>" in rest


def test_tools_for_a_template_without_system_and_tool_roles() -> None:
    turns = [
        USER,
        call("a"),
        result("a"),
        result("b", "sun"),
        Message("user", "and?"),
        Message("assistant", "ok"),
        USER,
    ]
    text = template(sources.NO_SYSTEM).render(turns, tools=[WEATHER])
    assert text.startswith("<user>You can call functions")
    assert '<user>{"tool_result": "rain"}\n\n{"tool_result": "sun"}\n\nand?\n<assistant>ok\n<user>hi' in text


NO_CALLS = """\
{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}
{% for m in messages %}<{{ m.role }}>{{ m.content + '' }}</{{ m.role }}>{% endfor %}"""


def test_calls_that_a_template_does_not_show_are_written_as_its_family_writes_them() -> None:
    text = template(NO_CALLS).render([USER, call("a"), result("a")], tools=[WEATHER])
    assert '<assistant><|tool_call_start|>[get_weather(city="Lima")]<|tool_call_end|></assistant>' in text
    assert "You can call functions" not in text


def test_a_template_without_calls_that_no_family_knows_asks_for_the_form_that_is_read() -> None:
    text = template(NO_CALLS.replace("|tool_list_", "|")).render([USER, call("a")], tools=[WEATHER])
    assert '{"tool_calls": [{"name": "FUNCTION_NAME"' in text
    assert '<assistant>{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Lima"}}]}</assistant>' in text


def test_calls_of_a_conversation_that_goes_on_without_tools() -> None:
    hidden = sources.TOOLS.replace("{% elif m.tool_calls %}", "{% elif m.tool_calls and tools %}")
    turns = [USER, call("a"), result("a")]
    assert "CALL a get_weather(city=Lima)" in template(hidden).render(turns, tools=[WEATHER])
    text = template(hidden).render(turns)
    assert '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Lima"}}]}' in text


PHI = """\
{% for message in messages %}
{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}
{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("system", ["", "be brief"])
def test_phi_4_mini_finds_its_tools_in_the_system_message(system: str) -> None:
    turns = [*([Message("system", system)] if system else []), USER, call("a"), result("a")]
    chosen = template(PHI)
    text = chosen.render(turns, tools=[WEATHER])
    head, rest = text.split("<|/tool|><|end|>")
    assert head.startswith(f'<|system|>{system}<|tool|>[{{"name": "get_weather", "description": "Weather of a city"')
    assert '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Lima"}}]<|/tool_call|><|end|>' in rest
    assert find_format(chosen).name == "phi-4-mini"
    assert "<|tool|>" not in chosen.render(turns[:1])


def test_a_template_that_writes_calls_but_lists_no_tools_shows_its_own_form() -> None:
    text = template(sources.CALLS_ONLY).render([USER], tools=[WEATHER])
    assert "CALL call00001 FUNCTION_NAME(ARGUMENT=VALUE)" in text
    assert '{"tool_calls"' not in text


def test_a_tool_without_description_or_parameters() -> None:
    text = template(sources.TOOLS).render([USER], tools=[{"type": "function", "function": {"name": "f"}}])
    assert '{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}' in text
    with pytest.raises(RequestError, match="function"):
        template(sources.TOOLS).render([USER], tools=[{"type": "function"}])


def test_the_tool_use_template_renders_what_has_tools() -> None:
    both = template(sources.STRING_ONLY, tool_use=sources.TOOLS)
    assert both.render([USER]) == "<s><user>hi</user>\n<assistant>"
    assert both.render([USER], tools=[]) == "<s><user>hi</user>\n<assistant>"
    assert both.render([USER], tools=[WEATHER]).startswith("TOOLS [")
    assert both.caps.supports_tools
    assert (both.source, both.tool_use_source) == (sources.STRING_ONLY, sources.TOOLS)


def test_a_broken_tool_use_template_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    both = template(sources.STRING_ONLY, tool_use="{% if %}")
    both.check()
    assert "tool_use template is ignored" in caplog.text
    assert "get_weather" in both.render([USER], tools=[WEATHER])


def test_a_broken_template() -> None:
    with pytest.raises(ModelError, match="line 1"):
        template("{% if %}").check()


def test_a_misspelt_name_is_no_template() -> None:
    with pytest.raises(UsageError, match=r"'lama3' is no built-in one and no Jinja; did you mean llama3\?"):
        select_template("{{ messages }}", None, "lama3")
    with pytest.raises(UsageError, match=r"'zzz' is no built-in one and no Jinja; the names are .*chatml"):
        select_template(None, None, "zzz")
    for text in ("{{ 'zzz' }}", "This is every prompt."):
        assert select_template(None, None, text).source == text


def test_variables() -> None:
    source = (
        "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ tools is defined }}{{ add_generation_prompt }}{{ x }}"
    )
    assert template(source).render([USER]) == "<s></s>FalseFalseTrue"
    kwargs: dict[str, object] = {"enable_thinking": True, "x": {"a": [1]}, "bos_token": "B"}
    text = template(source).render([USER], kwargs=kwargs, add_generation_prompt=False)
    assert text == "B</s>TrueFalseFalse{'a': [1]}"


def test_thinking_is_on_for_templates_that_know_it() -> None:
    show = "{{ enable_thinking }}"
    assert template(show).render([USER]) == "False"
    for knows in (sources.THINKING, sources.OPENS_THINKING, "{{ '/think' if enable_thinking else '/no_think' }}"):
        assert template(knows + show).render([USER]).endswith("True")
        assert template(knows + show).render([USER], kwargs={"enable_thinking": False}).endswith("False")


def test_results_go_into_the_call_for_the_first_gemma_4_templates() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}{{ '<|tool_call>call:' }}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% for r in m.tool_responses or [] %}"
        "({{ r.name }}={{ r.response | tojson }}){% endfor %}{{ m.content + '' }};{% endfor %}"
    )
    turns = [USER, call("a"), result("a", '{"sky": 1}'), Message("assistant", "It rains."), USER]
    assert template(source).render(turns) == (
        '<user>hi;<assistant><|tool_call>call:get_weather{"city": "Lima"}(get_weather={"sky": 1})It rains.;<user>hi;'
    )
    turns = [USER, call("a"), result("x", "no json"), call("b"), result("b")]
    assert template(source).render(turns).count("(get_weather=") == 2
    newer = "{#- OpenAI Chat Completions: -#}" + source
    assert "<tool>" in template(newer).render(turns)


def test_dates() -> None:
    assert template(sources.DATES).render([USER]) == "04 Mar 2026|Mar 04 2026|2026-03-04"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_fields_of_the_request_are_no_kwargs(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        template(sources.BOTH).render([USER], kwargs={name: []})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_reasoning_variables() -> None:
    thought = Message("assistant", "yo", reasoning_content="hm")
    thinking = template(sources.THINKING)
    assert "hm" not in thinking.render([USER, thought, USER])
    assert "<think>\nhm\n</think>\nyo" in thinking.render([USER, thought, USER], kwargs={"preserve_reasoning": True})
    assert "effort=low/low" in thinking.render([USER], kwargs={"reasoning_effort": "low"})
    explicit = {"reasoning_effort": "low", "reasoning_strength": "mine"}
    assert "effort=low/mine" in thinking.render([USER], kwargs=explicit)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (sources.THINKING, ReasoningField.REASONING_CONTENT),
        (sources.THINKING_FIELD, ReasoningField.THINKING),
        (sources.THINKING_PART, ReasoningField.PART),
    ],
)
def test_reasoning_goes_where_the_template_looks(source: str, field: ReasoningField) -> None:
    def render(variables: Mapping[str, object]) -> str | None:
        try:
            return Program(source).render(variables)
        except RequestError:
            return None

    assert probe(render).reasoning_field is field
    text = template(source).render([USER, Message("assistant", "yo", reasoning_content="hmm")])
    assert -1 < text.find("hmm") < text.find("yo")


def test_channels_take_no_content_beside_reasoning_and_calls() -> None:
    turn = Message("assistant", "yo", reasoning_content="hm", tool_calls=(ToolCall("c", "f", "{}"),))
    text = template(sources.CHANNELS).render([USER, turn], add_generation_prompt=False)
    assert "analysis<|message|>hm" in text
    assert "yo" not in text


def test_generation_tag_loop_controls_and_lists() -> None:
    turns = [Message("system", "s"), USER, Message("assistant", "a"), USER]
    assert template(sources.LOOP_CONTROLS).render(turns) == "s\nhi\na\n"
    assert template(sources.GENERATION).render(turns[1:3]) == "Q:hi\nA:aFalse\n"
    assert template(sources.QUEUE).render([USER, call(), result()]) == '{"city": "Lima"} -> rain\n'


def test_bos_and_eos_that_the_tokenizer_adds_are_cut() -> None:
    source = "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert template(source).render([USER]) == "<s><s>hi</s>"
    assert template(source, add_bos=True).render([USER]) == "<s>hi</s>"
    assert template(source, add_bos=True, add_eos=True).render([USER]) == "<s>hi"


def test_refusals_come_with_the_templates_words() -> None:
    with pytest.raises(RequestError, match=r"^Roles must alternate$"):
        template(sources.NO_SYSTEM).render([USER, USER])
    with pytest.raises(RequestError, match=r"^one call only$"):
        template(sources.ONE_CALL).render([USER, Message("assistant", tool_calls=call().tool_calls * 2)])


@pytest.mark.parametrize("source", [sources.GPT_OSS_CHECK, sources.MISTRAL_CHECK])
def test_two_known_checks_are_dropped(source: str) -> None:
    turns = [Message("user", "a <|channel|>final<|message|>"), Message("assistant", "")]
    assert template(source).render(turns).endswith("ok")
    assert template(source).source == source


def test_stepfun_texts_are_trimmed() -> None:
    source = "{# You have access to the following functions in JSONSchema format #}" + sources.STRING_ONLY
    turns = [Message("user", "  hi \n"), Message("assistant", (TextPart(" a "), TextPart("b ")))]
    assert template(source).render(turns) == "<s><user>hi</user>\n<assistant>a\nb</assistant>\n<assistant>"


def test_firefunction_gets_its_tools_as_text() -> None:
    source = "functools[{{ 'F:' + functions }} {% for m in messages %}{{ m.content + '' }}{% endfor %}"
    assert template(source).render([USER]) == "functools[F: hi"
    assert '"name": "get_weather"' in template(source).render([USER], tools=[WEATHER])


def test_generation_prompt() -> None:
    assert generation_prompt(template(sources.STRING_ONLY), [USER]) == "<assistant>"
    thinking = template(sources.THINKING)
    assert generation_prompt(thinking, [USER]) == "<|assistant|>\n"
    assert (
        generation_prompt(thinking, [USER], kwargs={"enable_thinking": False}) == "<|assistant|>\n<think>\n\n</think>\n"
    )
    assert generation_prompt(template(sources.LOOP_CONTROLS), [USER]) == ""


# -- selection ---------------------------------------------------------------------------------------------------------


def select(model: str | None, tool_use: str | None, override: str | None) -> Template:
    return select_template(model, tool_use, override, bos_token="<s>", eos_token="</s>")


def test_selection() -> None:
    assert select("M", None, None).source == "M"
    assert (select("M", "T", None).source, select("M", "T", None).tool_use_source) == ("M", "T")
    assert (select("M", "T", "{{ O }}").source, select("M", "T", "{O}").tool_use_source) == ("{{ O }}", None)
    assert select("M", "T", "zephyr").source == BUILTIN["zephyr"]
    assert select(None, None, None).source == BUILTIN["chatml"]
    assert select(None, "T", None).source == "T"
    assert select("chatml", None, None).source == BUILTIN["chatml"]
    assert select("M", None, "chatml").source == BUILTIN["chatml"]
    assert select("", None, "").source == BUILTIN["chatml"]


def test_chatml() -> None:
    turns = [Message("system", "s"), USER, Message("assistant", "yo"), PARTS]
    assert select(None, None, None).render(turns) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
        "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    )


def legacy(name: str, chat: Sequence[tuple[str, str]], add_assistant: bool) -> str:
    if name not in ("chatml", "{{ known }}"):
        raise ValueError(name)
    return f"{name}:{list(chat)}:{add_assistant}"


def test_legacy_mode() -> None:
    chosen = select_template("{{ known }}", "T", None, legacy=legacy)
    assert isinstance(chosen, LegacyTemplate)
    chosen.check()
    assert chosen.render([USER, PARTS]) == "{{ known }}:[('user', 'hi'), ('user', 'one\\ntwo')]:True"
    assert chosen.render([USER], tools=[], add_generation_prompt=False).endswith(":False")
    assert chosen.caps.supports_system_role
    assert not chosen.caps.supports_tools
    with pytest.raises(UnsupportedError, match=r"^tools param requires --jinja flag$"):
        chosen.render([USER], tools=[WEATHER])


def test_legacy_mode_without_a_template_is_chatml() -> None:
    assert select_template(None, None, None, legacy=legacy).source == "chatml"


def test_legacy_mode_with_an_unknown_template() -> None:
    with pytest.raises(ModelError, match="this custom template is not supported, try using --jinja"):
        select_template("{{ odd }}", None, None, legacy=legacy).check()


def test_one_rendering_does_not_see_another() -> None:
    chosen: ChatTemplate = template("{% for m in messages %}{% set _ = tags.append(m.role) %}{% endfor %}{{ tags }}")
    kwargs: dict[str, object] = {"tags": []}
    assert chosen.render([USER], kwargs=kwargs) == chosen.render([USER], kwargs=kwargs) == "['user']"
    assert kwargs == {"tags": []}
