"""Bends a conversation to what a template can render: the message workarounds of llama-server, in one place.

Messages in, the template's variables `messages` and `tools` out. A client may send developer messages, null content,
lists of parts, tools and tool results to any model; templates know only some of that. It renders nothing itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from minka.chat.formats.format import PastCall
from minka.chat.formats.generic import generic
from minka.chat.messages import Message, TextPart, ToolCall
from minka.chat.profile import Json, Profile, with_reasoning
from minka.errors import RequestError

CALL_FORM = '{"tool_calls": [{"name": "FUNCTION_NAME", "arguments": {"ARGUMENT_NAME": "VALUE"}}]}'
"""How a model is asked to write a call if its template has no form of its own."""

Write = Callable[[Sequence[PastCall]], str]
"""How the family of a template writes calls (`Format.write`)."""

TOOLS_TEXT = """You can call functions to help with the request. These are the functions, as JSON:

{tools}

To call functions, answer with nothing but this:

{form}

The results come with the next message. If no function is of use, answer as usual."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a family of templates needs and no rendering shows; found in the source, as llama.cpp finds it."""

    developer_role: bool
    """gpt-oss has developer messages, and no room for content beside reasoning in a message that calls a tool."""

    trim: bool
    """StepFun's model thinks in circles if texts end in white space."""

    functions_text: bool
    """Firefunction wants its tools as text, in a variable `functions`."""

    merged_results: bool
    """The first templates of Gemma 4 want the results of a call in the message that made it."""

    tools_in_message: bool
    """Phi-4-mini wants its tools as text, in a key `tools` of the system message."""

    @classmethod
    def of(cls, source: str) -> Quirks:
        """The quirks of a template source."""
        return cls(
            developer_role="<|channel|>" in source,
            trim="You have access to the following functions in JSONSchema format" in source,
            functions_text="functools[" in source,
            merged_results="'<|tool_call>call:'" in source and "{#- OpenAI Chat Completions:" not in source,
            tools_in_message="'<|tool|>' + message['tools']" in source,
        )

    def extended(self, variables: Json) -> Json:
        """Template variables with those that only this family has."""
        tools = _list(variables.get("tools"))
        if self.tools_in_message and tools:
            text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
            first, *rest = turns = _list(variables["messages"])
            if first["role"] != "system":
                first, rest = {"role": "system", "content": ""}, turns
            return {**variables, "messages": [{**first, "tools": text}, *rest]}
        if not self.functions_text or "functions" in variables:
            return variables
        return {**variables, "functions": json.dumps(tools, ensure_ascii=False, indent=4) if tools else ""}


def adapt(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]],
    profile: Profile,
    quirks: Quirks,
    write: Write | None = None,
) -> tuple[list[Json], list[Json]]:
    """The template's `messages` and `tools` (empty if there are none, or if the system message tells of them).

    `write` is how the model writes calls, None if no family knows its template: calls that the template does not show
    are written so, or in the generic form. Raises RequestError if a call's arguments are no JSON object and the
    template, or the family, needs one.
    """
    caps = profile.caps
    described = [_tool(tool) for tool in tools]
    turns = [_role(_trimmed(message) if quirks.trim else message, quirks) for message in messages]
    shows_tools = caps.supports_tools and (caps.supports_tool_calls or write is not None)
    shows_calls = caps.supports_tool_calls and (bool(tools) or not profile.calls_need_tools)
    if not shows_calls:
        own = write if shows_tools and write else generic(None).write
        turns = [_call_as_text(turn, own) for turn in turns]
    if not profile.tool_role:
        turns = _results_as_user(turns)
    if described and not shows_tools:
        form = profile.call_example or CALL_FORM
        text = TOOLS_TEXT.format(tools=json.dumps(described, ensure_ascii=False, indent=2), form=form)
        turns = _with_system(turns, text)
        described = []
    if not caps.supports_system_role:
        turns = _without_system(turns)
    wires = [_wire(turn, profile, quirks) for turn in turns]
    return _merge_results(wires) if quirks.merged_results else wires, described


def _trimmed(message: Message) -> Message:
    content = message.content
    if isinstance(content, tuple):
        content = tuple(TextPart(part.text.strip()) for part in content)
    elif content is not None:
        content = content.strip()
    reasoning = message.reasoning_content and message.reasoning_content.strip()
    return replace(message, content=content, reasoning_content=reasoning)


def _role(message: Message, quirks: Quirks) -> Message:
    if message.role == "function":
        return replace(message, role="tool")
    if message.role == "developer" and not quirks.developer_role:
        return replace(message, role="system")
    return message


def _call_as_text(message: Message, write: Write) -> Message:
    """An assistant's calls as content, as it wrote them."""
    if not message.tool_calls:
        return message
    calls = [PastCall(call.name, _parsed(call.arguments), call.id) for call in message.tool_calls]
    return replace(message, content=_joined([message.text(), write(calls)], "\n\n"), tool_calls=())


def _results_as_user(turns: Iterable[Message]) -> list[Message]:
    """Tool results as user messages, one with what follows: many templates insist that user and assistant alternate."""
    result: list[Message] = []
    after_result = False
    for turn in turns:
        is_result = turn.role == "tool"
        if is_result:
            turn = Message("user", json.dumps({"tool_result": turn.text()}, ensure_ascii=False))
        if result and result[-1].role == turn.role == "user" and (is_result or after_result):
            result[-1] = replace(result[-1], content=_joined([result[-1].text(), turn.text()], "\n\n"))
        else:
            result.append(turn)
        after_result = is_result or (after_result and turn.role == "user")
    return result


def _with_system(turns: list[Message], text: str) -> list[Message]:
    if turns and turns[0].role in ("system", "developer"):
        return [replace(turns[0], content=_joined([turns[0].text(), text], "\n\n")), *turns[1:]]
    return [Message("system", text), *turns]


def _without_system(turns: Iterable[Message]) -> list[Message]:
    """System texts in front of the next user message; as a user message of their own if none follows."""
    result: list[Message] = []
    held: list[str] = []
    for turn in turns:
        if turn.role == "system":
            held.append(turn.text())
        elif turn.role == "user" and held:
            result.append(_prefixed("\n".join(held), turn))
            held.clear()
        else:
            result.append(turn)
    if held:
        result.append(Message("user", "\n".join(held)))
    return result


def _prefixed(text: str, message: Message) -> Message:
    if isinstance(message.content, tuple):
        return replace(message, content=(TextPart(text), *message.content))
    return replace(message, content=f"{text}\n{message.text()}")


def _wire(message: Message, profile: Profile, quirks: Quirks) -> Json:
    wire: Json = {"role": message.role, "content": _content(message, profile)}
    if message.name is not None:
        wire["name"] = message.name
    if message.tool_call_id is not None:
        wire["tool_call_id"] = _call_id(message.tool_call_id, profile)
    if message.tool_calls:
        wire["tool_calls"] = [_wire_call(call, profile) for call in message.tool_calls]
    if message.reasoning_content:
        wire = with_reasoning(wire, message.reasoning_content, profile.reasoning_field)
        if quirks.developer_role and message.tool_calls:
            del wire["content"]
    return wire


def _merge_results(wires: Iterable[Json]) -> list[Json]:
    """Tool results as `tool_responses` of the message with the calls, and the answer after them as its content."""
    merged: list[Json] = []
    caller: Json = {}
    for wire in wires:
        answers = wire["role"] == "assistant" and not wire.get("tool_calls") and bool(wire["content"])
        if wire["role"] == "tool" and caller:
            responses = _list(caller.get("tool_responses"))
            caller["tool_responses"] = [*responses, _response(_list(caller["tool_calls"]), len(responses), wire)]
        elif answers and caller.get("tool_responses") and not caller["content"]:
            caller["content"] = wire["content"]
            caller = {}
        else:
            merged.append(wire)
            caller = wire if wire.get("tool_calls") else {}
    return merged


def _response(calls: list[Json], index: int, result: Json) -> Json:
    """A tool's result with the name of the function: the call's that has its id, else that of the call in its place."""
    by_id = [call for call in calls if call.get("id") == result.get("tool_call_id")]
    call = next(iter(by_id or calls[index : index + 1]), None)
    function = call["function"] if call else {}
    name = function["name"] if isinstance(function, dict) and function else result.get("name", "")
    content = result["content"]
    return {"name": name, "response": _parsed(content) if isinstance(content, str) else content}


def _list(value: object) -> list[Json]:
    return value if isinstance(value, list) else []


def _content(message: Message, profile: Profile) -> object:
    """Text for templates that know only text, parts for those that know only parts, else as the client sent it."""
    caps = profile.caps
    if message.content is None:
        return ""
    if not caps.supports_typed_content:
        return message.text()
    if isinstance(message.content, tuple):
        return [{"type": "text", "text": part.text} for part in message.content]
    if caps.supports_string_content:
        return message.content
    return [{"type": "text", "text": message.content}]


def _wire_call(call: ToolCall, profile: Profile) -> Json:
    arguments: object = call.arguments
    if profile.caps.supports_object_arguments:
        arguments = _parsed(call.arguments, strict=True)
    wire: Json = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return {"id": _call_id(call.id, profile), **wire} if call.id else wire


def _call_id(call_id: str, profile: Profile) -> str:
    """The id itself, or nine letters made of it for templates (Mistral's) that refuse all others."""
    if not profile.short_ids or (len(call_id) == 9 and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _parsed(arguments: str, *, strict: bool = False) -> object:
    """Arguments as a JSON value. An empty text is an empty object: models write that for functions without any."""
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as error:
        if strict:
            raise RequestError(f"Failed to parse tool call arguments as JSON: {error}", param="messages") from error
        return arguments


def _tool(tool: Mapping[str, object]) -> Json:
    """A tool with the keys that templates count on. Others are left out, as they change the prompt (`strict`)."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError("Missing tool function: every tool needs an object 'function'", param="tools")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    kept: Json = {
        "name": function.get("name", ""),
        "description": function.get("description") or "",
        "parameters": parameters,
    }
    if "return" in function:
        kept["return"] = function["return"]
    return {"type": "function", "function": kept}


def _joined(texts: Iterable[str], separator: str) -> str:
    return separator.join(text for text in texts if text)
