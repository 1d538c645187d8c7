from __future__ import annotations

from dataclasses import replace

import pytest

from minka.chat.formats.find import find_format
from minka.chat.formats.format import Calls, Tool
from minka.chat.messages import Message
from minka.chat.prefill import Continuation, Prefill
from minka.chat.tools import ToolChoice
from minka.chat.turn import ChatModel, Turn
from minka.params import ChatParams
from minka.types import Thinking
from tests.chat.sources import template
from tests.fakes import FakeVocab

SOURCE = """\
{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}
{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}
{% if add_generation_prompt %}<|assistant|>
OPENS{% endif %}"""
QUIET = SOURCE.replace("OPENS", "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}")
OPENS = SOURCE.replace("OPENS", "<think>\n")
USER = [Message("user", "hi")]
WEATHER = Tool("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
TIME = Tool("get_time", "", {})


def turn(source: str = QUIET, settings: ChatParams | None = None, **more: object) -> Turn:
    chosen = template(source)
    model = ChatModel(chosen, find_format(chosen), settings or ChatParams())
    return model.turn(USER, **more)  # type: ignore[arg-type]


def test_tools_are_shown_and_asked_for() -> None:
    choice = ToolChoice((WEATHER, TIME), Calls.REQUIRED, frozenset({"get_time"}), parallel=False)
    made = turn(choice=choice)
    assert "get_weather" in made.prompt
    assert [tool.name for tool in made.ask.tools] == ["get_time"]
    assert (made.ask.calls, made.ask.parallel) == (Calls.REQUIRED, False)
    assert made.constraint is not None
    assert "get_time" in made.constraint.grammar
    assert "get_weather" not in made.constraint.grammar


def test_tools_that_must_not_be_called_are_shown() -> None:
    made = turn(choice=ToolChoice((WEATHER,), Calls.NONE))
    assert "get_weather" in made.prompt
    assert made.ask.tools == ()
    assert made.constraint is None


def test_any_text_needs_no_constraint() -> None:
    made = turn()
    assert made.format.name == "hermes"
    assert (made.ask.thinks, made.ask.prefill, made.thinking, made.constraint) == (True, "", None, None)


@pytest.mark.parametrize(
    ("settings", "kwargs"),
    [
        (ChatParams(reasoning="off"), {}),
        (ChatParams(reasoning_effort="none"), {}),
        (ChatParams(reasoning="on"), {"enable_thinking": False}),
    ],
)
def test_thinking_is_switched_off(settings: ChatParams, kwargs: dict[str, object]) -> None:
    made = turn(settings=settings, kwargs=kwargs)
    assert made.prompt.endswith("<|assistant|>\n<think>\n\n</think>\n\n")
    assert (made.ask.thinks, made.ask.prefill) == (False, "<think>\n\n</think>\n\n")


def test_thinking_that_a_template_always_opens_is_closed() -> None:
    made = turn(OPENS, ChatParams(reasoning="off"))
    assert made.prompt.endswith("<|assistant|>\n<think>\n</think>")
    assert (made.ask.thinks, made.ask.prefill) == (False, "<think>\n</think>")


def test_thinking_that_a_template_opens_is_the_models() -> None:
    made = turn(OPENS)
    assert (made.ask.thinks, made.ask.prefill) == (True, "<think>\n")
    parser = made.parser()
    told = [*parser.feed("Hm.\n</think>\n\nHello"), *parser.end()]
    assert [getattr(delta, "text", "") for delta in told] == ["Hm.", "Hello"]


def test_a_budget_is_watched() -> None:
    made = turn(settings=ChatParams(reasoning_budget=5, reasoning_budget_message=" enough"))
    assert made.thinking == Thinking("<think>", ("</think>",), is_open=False, budget=5, message=" enough")
    assert made.constraint is not None
    assert made.constraint.grammar == ""
    assert turn(OPENS, ChatParams(reasoning_control=True)).thinking == Thinking("<think>", ("</think>",), is_open=True)


def test_no_budget_without_reasoning() -> None:
    assert turn(settings=ChatParams(reasoning="off", reasoning_budget=5)).constraint is None


def test_effort_and_old_reasoning_are_told_to_the_template() -> None:
    source = QUIET + "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}{{ preserve_thinking }}"
    assert turn(source, ChatParams(reasoning_effort="high")).prompt.endswith("highTrue")
    assert turn(source, ChatParams(reasoning_preserve=False)).prompt.endswith("False")
    assert turn(source, kwargs={"reasoning_effort": "low"}).prompt.endswith("lowTrue")


def test_parsing_can_be_left_out() -> None:
    made = turn(settings=ChatParams(skip_chat_parsing=True), choice=ToolChoice((WEATHER,), Calls.AUTO))
    assert made.format.name == "Content-only"
    assert made.constraint is None


def test_an_answer_that_goes_on() -> None:
    chosen = template(QUIET)
    model = ChatModel(chosen, find_format(chosen))
    made = model.turn([*USER, Message("assistant", "Hello")], prefill=Prefill(continuation=Continuation.CONTENT))
    assert made.ask.prefill.endswith("Hello")
    parser = made.parser()
    assert [getattr(delta, "text", "") for delta in [*parser.feed(" you"), *parser.end()]] == [" you"]


def test_marks_that_are_special_tokens_are_kept_in_the_text() -> None:
    made = turn()
    assert made.preserved(FakeVocab()) == frozenset()
    special = replace(made, format=replace(made.format, more_marks=("<|control|>",)))  # type: ignore[type-var]
    assert special.preserved(FakeVocab()) == {258}
