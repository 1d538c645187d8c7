from __future__ import annotations

import pytest

from minka.errors import RequestError, UnsupportedError
from minka.protocols.anthropic_request import decode_request

USER = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def chat(**fields: object) -> dict[str, object]:
    return dict(decode_request({"model": "m", "max_tokens": 8, "messages": USER, **fields}).chat)


def messages(*turns: object, **fields: object) -> object:
    return chat(messages=[*turns], **fields)["messages"]


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: object) -> dict[str, object]:
    return {"role": "assistant", "content": [*blocks]}


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_text_and_a_system_prompt() -> None:
    assert messages(*USER, system="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_a_system_prompt_of_blocks() -> None:
    blocks = [
        {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Two."},
    ]
    assert messages(*USER, system=blocks)[0] == {"role": "system", "content": "One.\n\nTwo."}  # type: ignore[index]


def test_a_clients_note_of_what_it_is_changes_no_prompt() -> None:
    def asked(note: str) -> object:
        return messages(*USER, system=[{"type": "text", "text": note}, {"type": "text", "text": "Be brief."}])

    one = asked("x-anthropic-billing-header: cc_version=2.1.1.abc; cc_entrypoint=cli; cch=0a1b2;")
    assert one == asked("x-anthropic-billing-header: cc_version=2.1.1.fed; cch=fffff;")
    assert one == messages(*USER, system="Be brief.")


def test_turns_of_one_side_in_a_row_are_one() -> None:
    turns = messages(user({"type": "text", "text": "a"}), *USER, assistant({"type": "text", "text": "b"}))
    assert turns == [{"role": "user", "content": "a\nhi"}, {"role": "assistant", "content": "b"}]


def test_a_system_message_in_the_midst_is_the_users() -> None:
    assert messages(*USER, {"role": "system", "content": "Now in French."}) == [
        {"role": "user", "content": "hi\n<system-reminder>\nNow in French.\n</system-reminder>"}
    ]


def test_a_whole_tool_turn() -> None:
    turns = messages(
        *USER,
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "ñ"}},
        ),
        user(
            {"type": "text", "text": "and?"},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
        ),
    )
    assert turns == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "id": "t1", "function": {"name": "f", "arguments": '{"a": "ñ"}'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "tool", "tool_call_id": "t2", "content": "The tool failed."},
        {"role": "user", "content": "and?"},
    ]


def test_documents_and_search_results_are_text() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    found = {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "R"}]}
    assert messages(user(document, found)) == [{"role": "user", "content": "T\nD\nS\nu\nR"}]


def test_no_messages_at_all_is_an_empty_turn() -> None:
    assert chat(messages=[])["messages"] == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("turn", "path"),
    [
        (user(PNG), "messages.0.content.0"),
        (user({"type": "tool_result", "tool_use_id": "t", "content": [PNG]}), "messages.0.content.0.content.0"),
    ],
)
def test_images_are_refused(turn: object, path: str) -> None:
    with pytest.raises(UnsupportedError, match="image input is not supported") as caught:
        messages(turn)
    assert caught.value.param == path


@pytest.mark.parametrize(
    ("turns", "param"),
    [
        ("x", "messages"),
        ([1], "messages.0"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([user("x")], "messages.0.content.0"),
        ([user({"text": "x"})], "messages.0.content.0.type"),
        ([user({"type": "text"})], "messages.0.content.0.text"),
        ([user({"type": "text", "text": 1})], "messages.0.content.0.text"),
        ([user({"type": "tool_result", "content": "x"})], "messages.0.content.0.tool_use_id"),
        ([user({"type": "tool_use", "id": "a", "name": "b", "input": {}})], "messages.0.content.0.type"),
        ([assistant({"type": "tool_use", "id": "a", "name": "b", "input": "{}"})], "messages.0.content.0.input"),
        ([user({"type": "document", "source": {"type": "base64"}})], "messages.0.content.0.source.type"),
        ([assistant({"type": "server_tool_use"})], "messages.0.content.0.type"),
    ],
)
def test_a_wrong_message_is_named(turns: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(messages=turns)
    assert caught.value.param == param


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    made = chat(tools=[{**TOOL, "cache_control": {"type": "ephemeral"}, "strict": True}])
    function = {"name": "f", "description": "d", "parameters": TOOL["input_schema"], "strict": True}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert "tool_choice" not in made


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"type": "auto", "disable_parallel_tool_use": False}, {"tool_choice": "auto"}),
    ],
)
def test_tool_choice(choice: object, fields: dict[str, object]) -> None:
    made = chat(tools=[TOOL], tool_choice=choice)
    assert {name: made[name] for name in ("tool_choice", "parallel_tool_calls") if name in made} == fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools.0"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}, "tools.1.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_wrong_tools_are_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param


# -- other fields ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        (
            {"type": "enabled", "budget_tokens": 50},
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 50},
        ),
        ({"type": "adaptive"}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"type": "between_tools"}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"type": "disabled"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (None, {}),
    ],
)
def test_thinking(thinking: object, fields: dict[str, object]) -> None:
    made = chat(thinking=thinking)
    names = ("chat_template_kwargs", "thinking_budget_tokens")
    assert {name: made[name] for name in names if name in made} == fields


def test_thinking_that_shall_not_be_shown() -> None:
    body = {"max_tokens": 8, "messages": USER, "thinking": {"type": "adaptive", "display": "omitted"}}
    assert not decode_request(body).shows_thinking
    assert decode_request({"max_tokens": 8, "messages": USER}).shows_thinking


def test_the_clients_own_template_variables_stand() -> None:
    made = chat(thinking={"type": "adaptive"}, chat_template_kwargs={"enable_thinking": False, "x": 1})
    assert made["chat_template_kwargs"] == {"enable_thinking": False, "x": 1}


@pytest.mark.parametrize("fields", [{"output_config": {"format": 1}}, {"output_format": 1}])
def test_a_schema(fields: dict[str, object]) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    given = {name: {"format": form} if name == "output_config" else form for name in fields}
    assert chat(**given)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
    }


@pytest.mark.parametrize(("effort", "word"), [("low", "low"), ("xhigh", "high"), ("max", "high")])
def test_effort(effort: str, word: str) -> None:
    assert chat(output_config={"effort": effort})["reasoning_effort"] == word


def test_sampling_stops_and_what_llama_server_has_besides() -> None:
    made = chat(temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["\n", "", "END"], min_p=0.1, seed=7, stream=True)
    assert made["stop"] == ["\n", "END"]
    assert made["max_tokens"] == 8
    kept = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "stream": True}
    assert kept.items() <= made.items()
    assert decode_request({"max_tokens": 1, "messages": USER, "stop_sequences": ["a"]}).stops == ("a",)


def test_fields_that_change_nothing() -> None:
    plain = chat()
    accepted = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "betas": ["x"],
        "inference_geo": "eu",
        "cache_control": {"type": "ephemeral"},
        "mcp_servers": [],
    }
    assert chat(**accepted) == plain


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]},
        {"messages": [user({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}})]},
    ],
)
def test_a_mark_of_what_is_to_be_cached_is_seen(fields: dict[str, object]) -> None:
    assert decode_request({"max_tokens": 8, "messages": USER, **fields}).marks_cache
    assert not decode_request({"max_tokens": 8, "messages": USER}).marks_cache


def test_counting_needs_no_max_tokens() -> None:
    assert decode_request({"messages": USER}, counting=True).chat["messages"] == [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match="max_tokens: Field required"):
        decode_request({"messages": USER})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"metadata": "x"}, "metadata"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"system": 1}, "system"),
        ({"system": [PNG]}, "system.0"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
