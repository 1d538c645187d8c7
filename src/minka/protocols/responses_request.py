"""OpenAI's Responses request, read as the chat request that says the same.

What only this API has is checked here; the chat layer reads the rest. It knows no model and no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Never

from minka.errors import NotFoundError, RequestError, UnsupportedError
from minka.params import json_type
from minka.protocols.body import JsonObject, new_id
from minka.protocols.openai_completions import MAX_LOGPROBS
from minka.protocols.responses_events import Style
from minka.protocols.responses_items import chat_messages
from minka.protocols.responses_store import Shelf, items_of
from minka.protocols.responses_tools import Tool, decode_choice, decode_tools

TAKEN = frozenset(
    {
        "background", "client_metadata", "context_management", "conversation", "include", "input", "instructions",
        "max_completion_tokens", "max_output_tokens", "max_tokens", "max_tool_calls", "messages", "metadata",
        "moderation", "n", "n_cmpl", "n_predict", "previous_response_id", "prompt", "reasoning", "store",
        "stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation", "verbosity",
    }
)  # fmt: skip
"""Fields that are read or left aside here; all others go on to the parameter table."""

_EFFORTS: Mapping[str, str] = {"minimal": "low", "xhigh": "high", "max": "high"}
_LOGPROBS, _SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
_PREFIXES: Mapping[str, str] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}
_MAX_METADATA = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks.

    `items` are its own, with ids; `chat` holds the whole conversation. `echo` are the members of the response object
    that repeat the request. `n_top`: log probabilities are told, with so many alternatives. `cuts`: the conversation's
    beginning may be left out if it is too long.
    """

    chat: JsonObject
    items: Sequence[JsonObject]
    tools: Mapping[str, Tool]
    style: Style
    echo: Mapping[str, object]
    n_top: int | None = None
    cuts: bool = False
    store: bool = True
    background: bool = False
    previous: str = ""


def decode_request(body: JsonObject, shelf: Shelf | None) -> Asked:
    """Read a body of `/v1/responses`; `shelf` has the answers that it may go on from.

    Raises RequestError with the path of what is wrong, NotFoundError for an answer or an item that is not kept.
    """
    for name in ("conversation", "prompt"):
        if body.get(name) is not None:
            raise UnsupportedError(f'"{name}" is not supported: it is kept at OpenAI', param=name)
    previous = _text(body, "previous_response_id")
    history = _history(previous, shelf)
    items = _items(body, shelf, required=not history)
    instructions = _text(body, "instructions")
    tools = decode_tools(body.get("tools"))
    n_top = _n_top(body)
    reasoning = _Reasoning.decode(body)
    include = _include(body)
    store, background = _flag(body, "store", default=True), _flag(body, "background", default=False)
    if background and not store:
        _fail("background", 'needs "store": true, since only a kept response can be asked for')
    messages = chat_messages(instructions, [*history, *items], first=len(history))
    return Asked(
        chat={"messages": messages, **reasoning.fields, **_chat(body, tools)},
        items=items,
        tools={tool.name: tool for tool in tools},
        style=Style(summary=reasoning.summary is not None, seals=_SEALED in include),
        echo=_echo(body, reasoning, instructions=instructions, store=store, background=background),
        n_top=0 if n_top is None and _LOGPROBS in include else n_top,
        cuts=_word(body, "truncation", ("auto", "disabled"), "disabled") == "auto",
        store=store and shelf is not None,
        background=background,
        previous=previous,
    )


def _chat(body: JsonObject, tools: Sequence[Tool]) -> dict[str, object]:
    """The chat request but for its messages and its reasoning."""
    chat: dict[str, object] = {name: value for name, value in body.items() if name not in TAKEN}
    if tools:
        chat["tools"] = [tool.chat for tool in tools]
    if body.get("parallel_tool_calls") is not None:
        chat["parallel_tool_calls"] = body["parallel_tool_calls"]
    return {**chat, **decode_choice(body.get("tool_choice"), tools), **_format(body), **_limits(body)}


# -- input -------------------------------------------------------------------------------------------------------------


def _history(previous: str, shelf: Shelf | None) -> list[JsonObject]:
    if not previous:
        return []
    chain = shelf.chain(previous) if shelf is not None else None
    if chain is None:
        raise NotFoundError(f"Previous response with id {previous[:80]!r} not found.", param="previous_response_id")
    if chain[-1].body.get("status") not in ("completed", "incomplete"):
        _fail("previous_response_id", f"names a response that is {chain[-1].body.get('status')}")
    return [item for kept in chain for item in items_of(kept)]


def _items(body: JsonObject, shelf: Shelf | None, *, required: bool) -> list[JsonObject]:
    """The request's own items, each with its type and an id, and in place of references what they refer to."""
    given = body.get("input")
    if given is None and required:
        _fail("input", "is required")
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list | None):
        _fail("input", f"must be a string or a list of items, but is {json_type(given)}")
    items = [_item(item, f"input[{index}]", shelf) for index, item in enumerate(given or [])]
    if not items and required:
        _fail("input", "must hold at least one item")
    return items


def _item(value: object, path: str, shelf: Shelf | None) -> JsonObject:
    if not isinstance(value, dict):
        _fail(path, f"must be an object, but is {json_type(value)}")
    kind = value.get("type", "message" if "role" in value else None)
    if kind == "item_reference":
        id = value.get("id")
        found = shelf.item(id) if shelf is not None and isinstance(id, str) else None
        if found is None:
            raise NotFoundError(f"Item with id {str(id)[:80]!r} not found.", param=f"{path}.id")
        return found
    if not isinstance(kind, str):
        _fail(f"{path}.type", "is required")
    item: dict[str, object] = {**value, "type": kind}
    if kind == "message" and isinstance(value.get("content"), str):
        part = "output_text" if value.get("role") == "assistant" else "input_text"
        extra: dict[str, object] = {"annotations": []} if part == "output_text" else {}
        item["content"] = [{"type": part, "text": value["content"], **extra}]
    if not isinstance(value.get("id"), str):
        item["id"] = new_id(_PREFIXES.get(kind, "item_"))
    return item


# -- fields ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reasoning:
    """`reasoning`: how much, and whether the client wants it as a summary."""

    effort: str | None = None
    summary: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def decode(cls, body: JsonObject) -> _Reasoning:
        value = body.get("reasoning")
        if value is None:
            return cls()
        if not isinstance(value, dict):
            _fail("reasoning", "must be an object")
        words = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
        effort = _word(value, "effort", words, None, "reasoning.")
        summary = _word(value, "summary", ("auto", "concise", "detailed"), None, "reasoning.")
        summary = summary or _word(value, "generate_summary", ("auto", "concise", "detailed"), None, "reasoning.")
        return cls(effort, summary, {"reasoning_effort": _EFFORTS.get(effort, effort)} if effort else {})


def _format(body: JsonObject) -> dict[str, object]:
    text = body.get("text")
    if text is None:
        return {}
    if not isinstance(text, dict):
        _fail("text", "must be an object")
    _word(text, "verbosity", ("low", "medium", "high"), None, "text.")
    form = text.get("format")
    if form is None:
        return {}
    if not isinstance(form, dict):
        _fail("text.format", "must be an object")
    match form.get("type"):
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            if not isinstance(form.get("schema"), dict):
                _fail("text.format.schema", "must be a JSON schema, an object")
            inner = {name: value for name, value in form.items() if name != "type"}
            return {"response_format": {"type": "json_schema", "json_schema": inner}}
    return _fail("text.format.type", 'must be "text", "json_object" or "json_schema"')


def _limits(body: JsonObject) -> dict[str, object]:
    for name in ("n", "n_cmpl"):
        if body.get(name) not in (None, 1):
            raise UnsupportedError(f'"{name}" is not supported: a response has one answer', param=name)
    value = body.get("max_output_tokens")
    if value is None:
        return {}
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        _fail("max_output_tokens", "must be a whole number, 1 or more")
    return {"max_tokens": value}


def _n_top(body: JsonObject) -> int | None:
    value = body.get("top_logprobs")
    if value is None or value == 0:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_LOGPROBS:
        _fail("top_logprobs", f"must be a number from 0 to {MAX_LOGPROBS}")
    return value


def _include(body: JsonObject) -> frozenset[str]:
    value = body.get("include")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        _fail("include", "must be a list of strings")
    return frozenset(value)


def _echo(
    body: JsonObject, reasoning: _Reasoning, *, instructions: str, store: bool, background: bool
) -> dict[str, object]:
    """The response object's members that say what was asked."""
    text = body.get("text")
    return {
        "background": background,
        "instructions": instructions or None,
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": _metadata(body),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": store,
        "text": {"format": {"type": "text"}, **(text if isinstance(text, dict) else {})},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_told(tool) for tool in _listed(body.get("tools"))],
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": body.get("truncation") or "disabled",
        "user": body.get("user"),
    }


def _listed(value: object) -> Sequence[JsonObject]:
    return value if isinstance(value, list) else ()


def _told(tool: JsonObject) -> JsonObject:
    """A tool with the members that a response's reader may expect."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _metadata(body: JsonObject) -> JsonObject:
    value = body.get("metadata")
    if value is None:
        return {}
    if (
        not isinstance(value, dict)
        or len(value) > _MAX_METADATA
        or not all(isinstance(text, str) and len(text) <= 512 and len(key) <= 64 for key, text in value.items())
    ):
        _fail("metadata", f"must be at most {_MAX_METADATA} pairs of strings, keys up to 64 and values up to 512 long")
    return value


# -- checks ------------------------------------------------------------------------------------------------------------


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str | None):
        _fail(name, f"must be a string, but is {json_type(value)}")
    return value or ""


def _flag(body: JsonObject, name: str, *, default: bool) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        _fail(name, "must be true or false")
    return default if value is None else value


def _word(body: JsonObject, name: str, words: Sequence[str], default: str | None, path: str = "") -> str | None:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in words:
        _fail(f"{path}{name}", f"must be one of {', '.join(words)}")
    return value


def _fail(path: str, what: str) -> Never:
    raise RequestError(f"{path} {what}", param=path)
