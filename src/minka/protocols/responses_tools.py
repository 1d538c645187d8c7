"""The tools of OpenAI's Responses as functions of a chat request: functions, free-form tools, tools in a namespace.

A free-form tool becomes a function with one string, which its grammar, if it has one, describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from minka.errors import RequestError, UnsupportedError
from minka.params import json_type
from minka.protocols.body import JsonObject
from minka.protocols.lark_regex import lark_regex

INPUT = "input"
"""The name of the one argument that a free-form tool's function has."""

IGNORED = "web_search"
"""How the types of hosted tools begin that clients name whether a server has them or not; nothing calls them."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be called. `is_custom`: it takes free text; `namespace`: whose it is, often empty."""

    name: str
    function: JsonObject
    is_custom: bool = False
    namespace: str = ""

    @property
    def chat(self) -> JsonObject:
        """As chat requests name it."""
        return {"type": "function", "function": self.function}


def decode_tools(value: object) -> tuple[Tool, ...]:
    """The `tools` of a request. Raises RequestError for tools that run at OpenAI, and names the index."""
    if value is None:
        return ()
    if not isinstance(value, list):
        _fail("tools", f"must be a list, but is {json_type(value)}")
    tools = [tool for index, item in enumerate(value) for tool in _tools(item, f"tools[{index}]")]
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        _fail("tools", f"two tools are called {twice!r}")
    return tuple(tools)


def _tools(value: object, path: str) -> Sequence[Tool]:
    item = _object(value, path)
    kind = item.get("type")
    match kind:
        case "function":
            return [_function(item, path)]
        case "custom":
            return [_custom(item, path)]
        case "namespace":
            return _namespace(item, path)
        case str() if kind.startswith(IGNORED):
            return []
        case _:
            raise UnsupportedError(
                f"{path}: tools of the type {kind!r} are not supported; function and custom are", param=f"{path}.type"
            )


def _function(item: JsonObject, path: str, namespace: str = "") -> Tool:
    name = _name(item, path)
    parameters = item.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        _fail(f"{path}.parameters", "must be a JSON schema, an object")
    function: dict[str, object] = {
        "name": name,
        "description": _description(item, path),
        "parameters": parameters or {},
    }
    strict = item.get("strict")
    if not isinstance(strict, bool | None):
        _fail(f"{path}.strict", "must be true or false")
    if strict:
        function["strict"] = True
    return Tool(name, function, namespace=namespace)


def _namespace(item: JsonObject, path: str) -> list[Tool]:
    name, inner = _name(item, path), item.get("tools")
    if not isinstance(inner, list):
        _fail(f"{path}.tools", "must be a list of functions")
    return [
        _function(_object(tool, f"{path}.tools[{index}]"), f"{path}.tools[{index}]", name)
        for index, tool in enumerate(inner)
    ]


def _custom(item: JsonObject, path: str) -> Tool:
    name, description = _name(item, path), _description(item, path)
    text: dict[str, object] = {"type": "string"}
    form = {} if item.get("format") is None else _object(item["format"], f"{path}.format")
    match form.get("type", "text"):
        case "text":
            pass
        case "grammar":
            definition = form.get("definition")
            if not isinstance(definition, str):
                _fail(f"{path}.format.definition", "must be a string")
            text["pattern"] = _pattern(form.get("syntax"), definition, f"{path}.format")
            description += f"\n\nThe input must match this {form.get('syntax')} grammar:\n{definition}"
        case _:
            _fail(f"{path}.format.type", 'must be "text" or "grammar"')
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    function = {"name": name, "description": description.strip(), "parameters": parameters, "strict": True}
    return Tool(name, function, is_custom=True)


def _pattern(syntax: object, definition: str, path: str) -> str:
    if syntax == "regex":
        return f"^(?:{definition})$"
    if syntax == "lark":
        return f"^(?:{lark_regex(definition, f'{path}.definition')})$"
    return _fail(f"{path}.syntax", 'must be "lark" or "regex"')


def _name(item: JsonObject, path: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        _fail(f"{path}.name", "must be a string that is not empty")
    return name


def _description(item: JsonObject, path: str) -> str:
    text = item.get("description")
    if not isinstance(text, str | None):
        _fail(f"{path}.description", "must be a string")
    return text or ""


# -- which of them may be called ---------------------------------------------------------------------------------------


def decode_choice(value: object, tools: Sequence[Tool]) -> dict[str, object]:
    """The chat request's `tool_choice` for that of a Responses request."""
    if value is None:
        return {}
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            _fail("tool_choice", 'must be "none", "auto", "required" or an object')
        if value == "required" and not tools:
            _fail("tool_choice", "wants a call, but the request has no tools that can be called")
        return {"tool_choice": value} if tools else {}
    choice = _object(value, "tool_choice")
    match choice.get("type"):
        case "function" | "custom":
            return {"tool_choice": _named(choice, tools, "tool_choice")}
        case "allowed_tools":
            mode = choice.get("mode")
            if mode not in ("auto", "required"):
                _fail("tool_choice.mode", 'must be "auto" or "required"')
            listed = choice.get("tools")
            if not isinstance(listed, list) or not listed:
                _fail("tool_choice.tools", "must be a list of tools, at least one")
            allowed = [
                _named(_object(item, f"tool_choice.tools[{index}]"), tools, f"tool_choice.tools[{index}]")
                for index, item in enumerate(listed)
                if not _is_ignored(item)
            ]
            return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}}
        case kind:
            raise UnsupportedError(f"tool_choice: the type {kind!r} is not supported", param="tool_choice.type")


def _is_ignored(item: object) -> bool:
    return isinstance(item, Mapping) and str(item.get("type", "")).startswith(IGNORED)


def _named(choice: JsonObject, tools: Sequence[Tool], path: str) -> JsonObject:
    name = choice.get("name")
    if name not in {tool.name for tool in tools}:
        _fail(f"{path}.name", f"no tool is called {name!r}")
    return {"type": "function", "function": {"name": name}}


def _object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        _fail(path, f"must be an object, but is {json_type(value)}")
    return value


def _fail(path: str, what: str) -> Never:
    raise RequestError(f"{path} {what}", param=path)
