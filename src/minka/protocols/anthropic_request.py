"""Anthropic's Messages request, read as the chat request that says the same.

Everything that is Anthropic's alone is checked here, with the paths that a client sent; the chat layer reads the rest.
It knows no model and no template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from minka.chat.messages import MEDIA_TYPES
from minka.errors import RequestError, UnsupportedError
from minka.params import json_type
from minka.protocols.body import JsonObject
from minka.protocols.turn import Turn, turn_of

TAKEN = frozenset(
    {
        "betas", "cache_control", "container", "context_management", "diagnostics", "inference_geo", "max_tokens",
        "mcp_servers", "messages", "metadata", "model", "n", "n_cmpl", "n_predict", "max_completion_tokens",
        "output_config", "output_format", "service_tier", "speed", "stop", "stop_sequences", "system", "temperature",
        "thinking", "thread", "tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id",
    }
)  # fmt: skip
"""Fields that are read or left aside here; all others are llama-server's and go on to the parameter table."""

_BILLING = "x-anthropic-billing-header:"
"""How a client's note of what it is begins. It differs from request to request, so that no prefix would stay known."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_EFFORTS: Mapping[str, str] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's words for how much to think, and those that templates know."""

IMAGE = "image input is not supported: this model is served without multimodal support"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks beyond its chat request.

    `shows_thinking`: the text of the reasoning is sent, not only that there was one. `marks_cache`: the client says
    what is to be cached.
    """

    chat: JsonObject
    stops: tuple[str, ...] = ()
    shows_thinking: bool = True
    marks_cache: bool = False


def decode_request(body: JsonObject, *, counting: bool = False) -> Asked:
    """Read a body of `/v1/messages`; `counting` one of its `count_tokens`, which generates nothing.

    Raises RequestError with the path of what is wrong, as in `messages.0.content.1`.
    """
    chat: dict[str, object] = {name: value for name, value in body.items() if name not in TAKEN}
    chat["messages"] = [*_system(body.get("system")), *_messages(body.get("messages"))]
    tools = _tools(body.get("tools"))
    if tools:
        chat["tools"] = tools
    chat |= _tool_choice(body.get("tool_choice"), [_tool_name(tool) for tool in tools])
    thinking = _thinking(body.get("thinking"))
    chat |= thinking.fields(chat)
    chat |= _output(body)
    _check_rest(body)
    if not counting:
        chat["max_tokens"] = _max_tokens(body.get("max_tokens"))
    for name, high in (("temperature", 2.0), ("top_p", 1.0)):
        if body.get(name) is not None:
            chat[name] = _number(body[name], name, high)
    if body.get("top_k") is not None:
        chat["top_k"] = _count(body["top_k"], "top_k")
    stops = _stops(body.get("stop_sequences"))
    if stops:
        chat["stop"] = list(stops)
    return Asked(chat, stops, thinking.shown, _marks_cache(body))


# -- scalars -----------------------------------------------------------------------------------------------------------


def _max_tokens(value: object) -> int:
    if value is None:
        raise RequestError("max_tokens: Field required", param="max_tokens")
    return _count(value, "max_tokens")


def _count(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _fail(path, "must be a whole number, 0 or more")
    return value


def _number(value: object, path: str, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= high:
        _fail(path, f"must be a number from 0 to {high:g}")
    return value


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(stop, str) for stop in value):
        _fail("stop_sequences", "must be a list of strings")
    return tuple(stop for stop in value if stop)


def _check_rest(body: JsonObject) -> None:
    """Fields that change nothing, except where they ask for what is not there."""
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        _fail("metadata", "must be an object")
    if body.get("service_tier") not in (None, "auto", "standard_only"):
        _fail("service_tier", 'must be "auto" or "standard_only"')
    for name in ("mcp_servers", "container"):
        if body.get(name):
            raise UnsupportedError(f"{name}: not supported, since nothing runs at this server", param=name)
    for name in ("n", "n_cmpl"):
        if body.get(name) not in (None, 1):
            raise UnsupportedError(f"{name}: a message has one answer", param=name)


def _marks_cache(body: JsonObject) -> bool:
    """Whether `cache_control` is anywhere in the request."""
    if body.get("cache_control"):
        return True
    open_values: list[object] = [body.get("system"), body.get("messages"), body.get("tools")]
    while open_values:
        match open_values.pop():
            case list() as items:
                open_values.extend(items)
            case dict() as block:
                if block.get("cache_control"):
                    return True
                open_values.append(block.get("content"))
    return False


# -- thinking and the form of the answer -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Thinking:
    """`wanted` None leaves it to the model; `budget` -1 is no limit."""

    wanted: bool | None = None
    budget: int = -1
    shown: bool = True

    def fields(self, chat: JsonObject) -> dict[str, object]:
        """The chat request's fields; what it says itself in `chat_template_kwargs` stands."""
        found: dict[str, object] = {}
        kwargs = chat.get("chat_template_kwargs")
        if self.wanted is not None and (kwargs is None or isinstance(kwargs, dict)):
            found["chat_template_kwargs"] = {"enable_thinking": self.wanted, **(kwargs or {})}
        if self.budget >= 0:
            found["thinking_budget_tokens"] = self.budget
        return found


def _thinking(value: object) -> _Thinking:
    if value is None:
        return _Thinking()
    config = _object(value, "thinking")
    shown = config.get("display") != "omitted"
    match config.get("type"):
        case "enabled":
            return _Thinking(
                wanted=True, budget=_count(config.get("budget_tokens"), "thinking.budget_tokens"), shown=shown
            )
        case "adaptive" | "between_tools":
            return _Thinking(wanted=True, shown=shown)
        case "disabled":
            return _Thinking(wanted=False)
    return _fail("thinking.type", 'must be "enabled", "adaptive", "between_tools" or "disabled"')


def _output(body: JsonObject) -> dict[str, object]:
    """`output_config`, and the older `output_format`."""
    config = {} if body.get("output_config") is None else _object(body["output_config"], "output_config")
    form, path = config.get("format"), "output_config.format"
    if form is None:
        form, path = body.get("output_format"), "output_format"
    found: dict[str, object] = {}
    if form is not None:
        found["response_format"] = _format(_object(form, path), path)
    effort = config.get("effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in _EFFORTS:
            _fail("output_config.effort", f"must be one of {', '.join(_EFFORTS)}")
        found["reasoning_effort"] = _EFFORTS[effort]
    return found


def _format(form: JsonObject, path: str) -> dict[str, object]:
    if form.get("type") != "json_schema":
        _fail(f"{path}.type", 'must be "json_schema"')
    schema = _object(form.get("schema"), f"{path}.schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}


# -- tools -------------------------------------------------------------------------------------------------------------


def _tools(value: object) -> list[JsonObject]:
    if value is None:
        return []
    if not isinstance(value, list):
        _fail("tools", f"must be a list, but is {json_type(value)}")
    tools = [_tool(_object(item, f"tools.{index}"), f"tools.{index}") for index, item in enumerate(value)]
    names = [_tool_name(tool) for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        _fail("tools", f"two tools are called {twice!r}")
    return tools


def _tool(tool: JsonObject, path: str) -> JsonObject:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise UnsupportedError(
            f"{path}: tools of the type {kind!r} are not supported; give the tool a name and an input_schema",
            param=f"{path}.type",
        )
    name = tool.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _fail(f"{path}.name", "must be 1 to 128 letters, digits, _ and -")
    description = tool.get("description", "")
    if not isinstance(description, str | None):
        _fail(f"{path}.description", "must be a string")
    schema = _object(tool.get("input_schema"), f"{path}.input_schema")
    function: dict[str, object] = {"name": name, "description": description or "", "parameters": schema}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_name(tool: JsonObject) -> str:
    function = tool["function"]
    assert isinstance(function, dict), "made by _tool"
    return str(function["name"])


def _tool_choice(value: object, names: Sequence[str]) -> dict[str, object]:
    if value is None:
        return {}
    choice = _object(value, "tool_choice")
    found: dict[str, object]
    match choice.get("type"):
        case "auto":
            found = {"tool_choice": "auto"}
        case "none":
            found = {"tool_choice": "none"}
        case "any":
            found = {"tool_choice": "required"}
        case "tool":
            name = choice.get("name")
            if name not in names:
                _fail("tool_choice.name", f"no tool is called {name!r}")
            found = {"tool_choice": {"type": "function", "function": {"name": name}}}
        case _:
            _fail("tool_choice.type", 'must be "auto", "any", "tool" or "none"')
    if not names and choice["type"] != "none":
        _fail("tool_choice", "needs tools")
    single = choice.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        _fail("tool_choice.disable_parallel_tool_use", "must be true or false")
    return {**found, "parallel_tool_calls": False} if single else found


# -- messages ----------------------------------------------------------------------------------------------------------


def _system(value: object) -> Iterator[JsonObject]:
    texts = [value] if isinstance(value, str) else [text for text in _texts(value, "system") if not _is_billing(text)]
    if text := "\n\n".join(text for text in texts if text):
        yield {"role": "system", "content": text}


def _is_billing(text: str) -> bool:
    return text.startswith(_BILLING)


def _texts(value: object, path: str) -> Iterator[str]:
    """The texts of a list of text blocks."""
    if value is None:
        return
    if not isinstance(value, list):
        _fail(path, f"must be a string or a list of blocks, but is {json_type(value)}")
    for index, item in enumerate(value):
        yield _text_of(_object(item, f"{path}.{index}"), f"{path}.{index}")


def _messages(value: object) -> Iterator[JsonObject]:
    if value is None:
        raise RequestError("messages: Field required", param="messages")
    if not isinstance(value, list):
        _fail("messages", f"must be a list, but is {json_type(value)}")
    turns: list[Turn] = []
    for index, item in enumerate(value):
        path = f"messages.{index}"
        message = _object(item, path)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            _fail(f"{path}.role", 'must be "user", "assistant" or "system"')
        turn = turn_of(turns, "assistant" if role == "assistant" else "user")
        _add(turn, message.get("content"), f"{path}.content", is_system=role == "system")
    for turn in turns or [Turn("user")]:
        yield from turn.messages("" if turn.side == "assistant" else "\n")


def _add(turn: Turn, content: object, path: str, *, is_system: bool) -> None:
    if is_system:
        # Few templates take a system message in the midst; a user's turn holds it in every one.
        texts = [content] if isinstance(content, str) else list(_texts(content, path))
        turn.texts.append("<system-reminder>\n" + "\n".join(texts) + "\n</system-reminder>")
        return
    if isinstance(content, str):
        turn.texts.append(content)
        return
    if not isinstance(content, list):
        _fail(path, f"must be a string or a list of blocks, but is {json_type(content)}")
    for index, item in enumerate(content):
        block = _object(item, f"{path}.{index}")
        (_assistant_block if turn.side == "assistant" else _user_block)(turn, block, f"{path}.{index}")


def _user_block(turn: Turn, block: JsonObject, path: str) -> None:
    if block.get("type") == "tool_result":
        turn.results.append(
            {
                "role": "tool",
                "tool_call_id": _string(block.get("tool_use_id"), f"{path}.tool_use_id"),
                "content": _result_text(block, path),
            }
        )
    else:
        turn.texts.append(_text_of(block, path))


def _result_text(block: JsonObject, path: str) -> str:
    content = block.get("content")
    text = content if isinstance(content, str) else "\n".join(_texts(content, f"{path}.content"))
    return text or ("The tool failed." if block.get("is_error") is True else "")


def _assistant_block(turn: Turn, block: JsonObject, path: str) -> None:
    match block.get("type"):
        case "thinking":
            turn.thoughts.append(_string(block.get("thinking"), f"{path}.thinking"))
        case "redacted_thinking":
            pass  # nobody but Anthropic can read it
        case "tool_use":
            arguments = _object(block.get("input"), f"{path}.input")
            function = {
                "name": _string(block.get("name"), f"{path}.name"),
                "arguments": json.dumps(arguments, ensure_ascii=False),
            }
            turn.calls.append({"type": "function", "id": _string(block.get("id"), f"{path}.id"), "function": function})
        case _:
            turn.texts.append(_text_of(block, path))


def _text_of(block: JsonObject, path: str) -> str:
    """The text of a block that stands for text. Raises RequestError for any other one."""
    kind = block.get("type")
    match kind:
        case "text":
            return _string(block.get("text"), f"{path}.text")
        case "document":
            return _document_text(block, path)
        case "search_result":
            texts = "\n".join(_texts(block.get("content"), f"{path}.content"))
            return f"{block.get('title', '')}\n{block.get('source', '')}\n{texts}"
        case "tool_reference":
            return _string(block.get("tool_name"), f"{path}.tool_name")
        case str() if kind in MEDIA_TYPES:
            raise UnsupportedError(f"{path}: {IMAGE}", param=path)
        case None:
            raise RequestError(f"{path}.type: Field required", param=f"{path}.type")
        case _:
            raise UnsupportedError(f"{path}: blocks of the type {kind!r} are not supported here", param=f"{path}.type")


def _document_text(block: JsonObject, path: str) -> str:
    source = _object(block.get("source"), f"{path}.source")
    match source.get("type"):
        case "text":
            text = _string(source.get("data"), f"{path}.source.data")
        case "content" if isinstance(source.get("content"), str):
            text = str(source["content"])
        case "content":
            text = "\n".join(_texts(source.get("content"), f"{path}.source.content"))
        case kind:
            raise UnsupportedError(
                f"{path}: documents of the source type {kind!r} are not supported; send text",
                param=f"{path}.source.type",
            )
    title = block.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text


# -- checks ------------------------------------------------------------------------------------------------------------


def _object(value: object, path: str) -> JsonObject:
    if value is None:
        raise RequestError(f"{path}: Field required", param=path)
    if not isinstance(value, dict):
        _fail(path, f"must be an object, but is {json_type(value)}")
    return value


def _string(value: object, path: str) -> str:
    if value is None:
        raise RequestError(f"{path}: Field required", param=path)
    if not isinstance(value, str):
        _fail(path, f"must be a string, but is {json_type(value)}")
    return value


def _fail(path: str, what: str) -> Never:
    raise RequestError(f"{path}: {what}", param=path)
