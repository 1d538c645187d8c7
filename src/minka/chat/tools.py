"""The tools of a request as typed values, and the one place that reads them out of an OpenAI chat body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from minka.chat.formats.format import Calls, Tool
from minka.errors import RequestError

MAX_TOOLS = 1024
FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "parse_tool_calls")
"""The fields of a body that `decode_tools` reads."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a request says about tools.

    `tools` are all of them, which the model is shown. `calls`: whether it may, must or must not call some; `names` are
    those that it may call, None for all. `parallel`: several calls in one answer.
    """

    tools: tuple[Tool, ...] = ()
    calls: Calls = Calls.NONE
    names: frozenset[str] | None = None
    parallel: bool = True

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.calls is Calls.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.names is None or tool.name in self.names)

    def described(self) -> list[Mapping[str, object]]:
        """The tools as chat templates want them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for tool in self.tools
        ]


NO_TOOLS = ToolChoice()


def choose(
    tools: Sequence[Tool], calls: Calls, names: frozenset[str] | None, *, parallel: bool, param: str = "tool_choice"
) -> ToolChoice:
    """A choice that makes sense: RequestError if a tool is named that is not there, or must be called and is not."""
    known = {tool.name for tool in tools}
    if unknown := sorted((names or frozenset()) - known):
        raise RequestError(f"'{param}' names the tool {unknown[0]!r}, which is not in 'tools'", param=param)
    if calls is Calls.REQUIRED and not tools:
        raise RequestError(f"'{param}' wants a call, but the request has no tools", param=param)
    return ToolChoice(tuple(tools), calls if tools else Calls.NONE, names, parallel)


def decode_tools(body: Mapping[str, object], *, parallel: bool = True) -> ToolChoice:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`, or `functions` and `function_call` of older clients.

    `parallel` is the default. Raises RequestError whose `param` is the path of what is wrong.
    """
    tools = tuple(_tools(body))
    wanted = _flag(body, "parallel_tool_calls", default=parallel)
    if not _flag(body, "parse_tool_calls", default=True):
        return choose(tools, Calls.NONE, None, parallel=wanted)
    older = _function_call(body.get("function_call"))
    if body.get("functions") is not None and body.get("tool_choice") is None:
        return choose(tools, *older, parallel=False, param="function_call")
    return choose(tools, *decode_choice(body.get("tool_choice")), parallel=wanted)


def _flag(body: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        _fail(f"'{name}' must be true or false", name)
    return default if value is None else value


def _tools(body: Mapping[str, object]) -> Sequence[Tool]:
    if body.get("functions") is not None and body.get("tools") is not None:
        _fail("'functions' is the older form of 'tools': send only one of them", "functions")
    field = "functions" if body.get("functions") is not None else "tools"
    items = body.get(field)
    if items is None:
        return ()
    if not isinstance(items, list):
        _fail(f"'{field}' must be an array", field)
    if len(items) > MAX_TOOLS:
        _fail(f"'{field}' has {len(items)} entries, at most {MAX_TOOLS} are allowed", field)
    read = _tool if field == "tools" else decode_function
    tools = [read(item, f"{field}[{index}]") for index, item in enumerate(items)]
    return unique(tools, field)


def unique(tools: Sequence[Tool], field: str) -> Sequence[Tool]:
    """The tools, if no two have one name."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            _fail(f"two tools have the name {tool.name!r}", f"{field}[{index}]")
        seen.add(tool.name)
    return tools


def _tool(value: object, path: str) -> Tool:
    if not isinstance(value, Mapping):
        _fail(f"'{path}' must be an object", path)
    if value.get("type") != "function":
        _fail(f"'{path}.type' must be \"function\"", f"{path}.type")
    return decode_function(value.get("function"), f"{path}.function")


def decode_function(value: object, path: str, parameters: str = "parameters") -> Tool:
    """A tool of an object with name, description, and the schema of its arguments under the key `parameters`."""
    if not isinstance(value, Mapping):
        _fail(f"'{path}' must be an object with the name of a function", path)
    name, description, strict = value.get("name"), value.get("description"), value.get("strict")
    if not isinstance(name, str) or not name.strip():
        _fail(f"'{path}.name' must be a string that is not empty", f"{path}.name")
    if not isinstance(description, str | None):
        _fail(f"'{path}.description' must be a string", f"{path}.description")
    if not isinstance(strict, bool | None):
        _fail(f"'{path}.strict' must be true or false", f"{path}.strict")
    path = f"{path}.{parameters}"
    return Tool(name, description or "", _parameters(value.get(parameters), path), bool(strict), path)


def _parameters(value: object, path: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _fail(f"'{path}' must be a JSON schema, an object", path)
    if value and value.get("type", "object") not in ("object", ["object"]):
        _fail(f"'{path}.type' must be \"object\": arguments have names", f"{path}.type")
    if not isinstance(value.get("properties", {}), Mapping):
        _fail(f"'{path}.properties' must be an object", f"{path}.properties")
    if not isinstance(value.get("required", []), list):
        _fail(f"'{path}.required' must be an array of names", f"{path}.required")
    return {"type": "object", **value} if value else value


def decode_choice(value: object) -> tuple[Calls, frozenset[str] | None]:
    """`tool_choice`: a word, a function, or a list of allowed tools. Names are the ones that may be called."""
    if value is None:
        return Calls.AUTO, None
    if isinstance(value, str) and value in tuple(Calls):
        return Calls(value), None
    if not isinstance(value, Mapping):
        shown = repr(value) if isinstance(value, str) else type(value).__name__
        return _fail(f'Invalid tool_choice: {shown}; use "auto", "none", "required" or a function', "tool_choice")
    match value.get("type"):
        case "function":
            return Calls.REQUIRED, frozenset({_named(value, "tool_choice")})
        case "allowed_tools":
            return _allowed(value.get("allowed_tools", value))
        case _:
            return _fail('\'tool_choice.type\' must be "function" or "allowed_tools"', "tool_choice.type")


def _named(value: Mapping[str, object], path: str) -> str:
    """The name in `{"type": "function", "function": {"name": ...}}`, or without the inner object."""
    inner = value.get("function", value)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        _fail(f"'{path}.function.name' must be the name of a tool", f"{path}.function.name")
    return name


def _allowed(value: object) -> tuple[Calls, frozenset[str] | None]:
    path = "tool_choice.allowed_tools"
    if not isinstance(value, Mapping):
        _fail(f"'{path}' must be an object", path)
    mode, tools = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        _fail(f'\'{path}.mode\' must be "auto" or "required"', f"{path}.mode")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, Mapping) for tool in tools):
        _fail(f"'{path}.tools' must be an array of tools, at least one", f"{path}.tools")
    names = frozenset(_named(tool, f"{path}.tools[{index}]") for index, tool in enumerate(tools))
    return Calls(mode), names


def _function_call(value: object) -> tuple[Calls, frozenset[str] | None]:
    if value is None or (isinstance(value, str) and value in ("auto", "none")):
        return Calls(value or "auto"), None
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return Calls.REQUIRED, frozenset({str(value["name"])})
    return _fail('\'function_call\' must be "auto", "none" or an object with a name', "function_call")


def _fail(message: str, param: str) -> Never:
    raise RequestError(message, param=param)
