"""Tools and reasoning of OpenAI's chat completions, by hand-made events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minka.chat.formats.find import find_format
from minka.errors import NotSupportedError, RequestError
from minka.grammar.compiler import Grammars
from minka.protocols.chat_body import chat_text
from minka.protocols.openai_chat import ChatExchange, decode
from minka.types import FinishReason
from tests.chat.test_turn import QUIET
from tests.fakes import FakeVocab
from tests.protocols.values import Play, at, frames, made_served, probs, whole

VOCAB = FakeVocab()
PLAIN = made_served(VOCAB, template=QUIET)
SERVED = replace(PLAIN, format=find_format(PLAIN.template), grammars=Grammars(VOCAB))
USER = {"role": "user", "content": "hi"}
WEATHER: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, object] = {"type": "function", "function": {"name": "get_time"}}
CALL = ['<tool_call>\n{"name": "get_', 'weather", "argum', 'ents": {"city"', ': "Pa', 'ris"}}\n</tool_', "call>"]


def chat(**fields: object) -> ChatExchange:
    return decode({"messages": [USER], "tools": [WEATHER, TIME], **fields}, SERVED)


def deltas(made: list[dict[str, object]]) -> list[Any]:
    return [at(chunk, "choices", 0, "delta") for chunk in made if chunk["choices"]]


# -- whole answers -----------------------------------------------------------------------------------------------------


def test_calls_are_openais() -> None:
    answer = whole(chat(), Play(CALL))
    choice: Any = at(answer, "choices", 0)
    (call,) = choice["message"]["tool_calls"]
    assert choice == {
        "finish_reason": "tool_calls",
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    "id": call["id"],
                }
            ],
        },
    }


def test_content_stays_beside_calls() -> None:
    assert at(whole(chat(), Play(["I look.\n", *CALL])), "choices", 0, "message", "content") == "I look."


def test_reasoning_is_apart_and_counted() -> None:
    answer = whole(chat(), Play(["<think>\n", "H", "m.", "\n</think>\n\n", "Hello"]))
    assert at(answer, "choices", 0, "message") == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm.",
    }
    assert at(answer, "usage", "completion_tokens_details") == {"reasoning_tokens": 3}


@pytest.mark.parametrize(
    ("format", "content", "reasoning"),
    [
        ("none", "<think>\nHm.\n</think>\n\nHello", None),
        ("auto", "Hello", "Hm."),
        ("deepseek", "Hello", "Hm."),
        ("deepseek-legacy", "<think>Hm.</think>Hello", "Hm."),
    ],
)
def test_reasoning_goes_where_the_client_wants_it(format: str, content: str, reasoning: str | None) -> None:
    message: Any = at(
        whole(chat(reasoning_format=format), Play(["<think>\nHm.\n</think>\n\nHello"])), "choices", 0, "message"
    )
    assert message["content"] == content
    assert message.get("reasoning_content") == reasoning


def test_a_broken_call_is_content() -> None:
    answer = whole(chat(), Play([*CALL[:3], ": nonsense}}"]))
    assert at(answer, "choices", 0, "message") == {
        "role": "assistant",
        "content": "".join(CALL[:3]) + ": nonsense}}",
    }
    assert at(answer, "choices", 0, "finish_reason") == "stop"


def test_every_choice_has_its_own_calls() -> None:
    answer = whole(chat(n=2), Play(CALL), Play(["Hello"]))
    assert [at(answer, "choices", i, "finish_reason") for i in range(2)] == ["tool_calls", "stop"]
    assert "tool_calls" not in at(answer, "choices", 1, "message")  # type: ignore[operator]


def test_older_clients_get_a_function_call() -> None:
    body = {"messages": [USER], "functions": [WEATHER["function"]]}
    answer = whole(decode(body, SERVED), Play(CALL))
    assert at(answer, "choices", 0, "message", "function_call") == {
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
    }
    assert at(answer, "choices", 0, "finish_reason") == "function_call"
    told = deltas(frames(decode({**body, "stream": True}, SERVED), Play(CALL)))
    assert told[1] == {"function_call": {"name": "get_weather", "arguments": ""}}
    assert "".join(delta["function_call"]["arguments"] for delta in told[1:-1]) == '{"city": "Paris"}'


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_streamed_call_names_itself_once_and_then_adds_arguments() -> None:
    chunks = frames(chat(stream=True), Play(["<think>Hm.</think>", "So.", *CALL]))
    first, thought, said, start, *more, last = deltas(chunks)
    assert first == {"role": "assistant", "content": None}
    assert (thought, said, last) == ({"reasoning_content": "Hm."}, {"content": "So."}, {})
    (call,) = start["tool_calls"]
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert all(set(delta) == {"tool_calls"} for delta in more)
    added = [delta["tool_calls"][0] for delta in more]
    assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in added)
    assert "".join(piece["function"]["arguments"] for piece in added) == '{"city": "Paris"}'
    assert [at(chunk, "choices", 0, "finish_reason") for chunk in chunks][-1] == "tool_calls"
    assert "timings" in chunks[-1]


def test_two_calls_have_two_indices() -> None:
    second = '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    told = [delta["tool_calls"][0] for delta in deltas(frames(chat(stream=True), Play([*CALL, second])))[1:-1]]
    named = [call for call in told if "id" in call]
    assert [call["index"] for call in named] == [0, 1]
    assert len({call["id"] for call in named}) == 2


def test_a_call_that_breaks_in_a_stream_is_not_told_again() -> None:
    play = Play(CALL[:4], reason=FinishReason.LIMIT)
    chunks = frames(chat(stream=True), play)
    assert all("content" not in delta for delta in deltas(chunks)[1:])
    assert at(chunks[-1], "choices", 0, "finish_reason") == "length"


def test_old_clients_find_the_reasoning_in_the_content_of_a_stream() -> None:
    play = Play(["<think>Hm.</think>", "Hi"])
    told = deltas(frames(chat(stream=True, reasoning_format="deepseek-legacy"), play))
    assert "".join(delta.get("content") or "" for delta in told) == "<think>Hm.</think>Hi"
    assert not any("reasoning_content" in delta for delta in told)


def test_probabilities_of_tokens_that_show_nothing_come_with_the_next() -> None:
    play = Play(["<th", "ink>", "H"], logprobs=[probs("<"), probs("i"), probs("H")])
    chunks = frames(chat(stream=True, logprobs=True), play)
    told: list[Any] = [at(chunk, "choices", 0).get("logprobs") for chunk in chunks]  # type: ignore[attr-defined]
    assert [[entry["token"] for entry in held["content"]] for held in told if held] == [["<", "i", "H"]]


# -- what the engine is asked for --------------------------------------------------------------------------------------


def grammar(**fields: object) -> str:
    constraint = chat(**fields).jobs[0].constraint
    return constraint.grammar if constraint is not None else ""


def test_tool_choice_is_a_grammar() -> None:
    assert "get_time" in grammar()
    assert "get_time" in grammar(tool_choice="required")
    assert grammar(tool_choice="none") == ""
    named = grammar(tool_choice={"type": "function", "function": {"name": "get_time"}})
    assert "get_time" in named
    assert "get_weather" not in named
    assert grammar(parallel_tool_calls=False) != grammar()


def test_a_schema_goes_together_with_tools_and_a_grammar_does_not() -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
    assert "integer" in grammar(response_format=schema)
    with pytest.raises(RequestError, match="Cannot use custom grammar constraints with tools") as caught:
        chat(grammar='root ::= "a"')
    assert caught.value.param == "grammar"
    assert grammar(grammar='root ::= "a"', tool_choice="none")


def test_a_schema_that_cannot_be_kept_to_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        chat(
            tools=[
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "#/x"}}}}}
            ]
        )
    assert caught.value.status == 400


def test_a_server_that_cannot_constrain_says_so() -> None:
    with pytest.raises(NotSupportedError):
        decode({"messages": [USER], "tools": [TIME]}, replace(SERVED, grammars=None))


def test_reasoning_is_watched_if_it_is_limited() -> None:
    for name in ("reasoning_budget_tokens", "thinking_budget_tokens"):
        constraint = chat(**{name: 7}, reasoning_budget_message="!", tools=[]).jobs[0].constraint
        assert constraint is not None
        assert constraint.thinking is not None
        assert (constraint.thinking.budget, constraint.thinking.message) == (7, "!")
    assert chat(tools=[]).jobs[0].constraint is None
    assert chat(tools=[], reasoning_control=True).jobs[0].constraint is not None


def test_effort_none_closes_the_reasoning() -> None:
    text = chat_text({"messages": [USER], "reasoning_effort": "none"}, SERVED)
    assert text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ({"reasoning_control": "yes"}, "reasoning_control"),
        ({"tool_choice": "any"}, "tool_choice"),
        (
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [TIME]}]},
            "messages[1].function_call",
        ),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_calls_of_earlier_answers_are_in_the_prompt() -> None:
    asked = {"role": "assistant", "function_call": {"name": "get_time", "arguments": "{}"}}
    result = {"role": "function", "name": "get_time", "content": "noon"}
    text = chat_text({"messages": [USER, asked, result]}, SERVED)
    assert '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>' in text
    assert "noon" in text


def test_the_verbose_answer_names_the_format() -> None:
    answer = whole(chat(verbose=True), Play(["Hi"]))
    assert at(answer, "__verbose", "generation_settings", "chat_format") == "hermes"
