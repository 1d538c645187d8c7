"""The items of OpenAI's Responses, as a client sends them and as answers hold them, read as chat messages.

Items of one side in a row are one turn; the results of an assistant's calls are on the side `tool`. It knows no model,
no store and no tools.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Never

from minka.chat.messages import MEDIA_TYPES
from minka.errors import RequestError, UnsupportedError
from minka.params import json_type
from minka.protocols.body import JsonObject
from minka.protocols.responses_tools import INPUT
from minka.protocols.turn import Turn, turn_of

_SEAL = "minka:"
"""How the `encrypted_content` begins that this server gave; the rest is the reasoning in base64. It hides nothing."""

_TEXT = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def chat_messages(instructions: str, items: Sequence[JsonObject], *, first: int = 0) -> list[JsonObject]:
    """The messages of a conversation; `first` is where the request's own input begins, for the paths in errors.

    Raises RequestError that names the item, UnsupportedError for images, files and what only OpenAI can read.
    """
    turns = [Turn("system", [instructions])] if instructions else []
    for index, item in enumerate(items):
        path = f"input[{index - first}]" if index >= first else "previous_response_id"
        _add(turns, item, path)
    return [message for turn in turns for message in turn.messages("\n\n")]


def _add(turns: list[Turn], item: JsonObject, path: str) -> None:
    match item.get("type", "message" if "role" in item else None):
        case "message":
            _message(turns, item, path)
        case "reasoning":
            if text := _reasoning(item, path):
                turn_of(turns, "assistant").thoughts.append(text)
        case "function_call":
            turn_of(turns, "assistant").calls.append(_call(item, _string(item, "arguments", path), path))
        case "custom_tool_call":
            arguments = json.dumps({INPUT: _string(item, "input", path)}, ensure_ascii=False)
            turn_of(turns, "assistant").calls.append(_call(item, arguments, path))
        case "function_call_output" | "custom_tool_call_output":
            result = {
                "role": "tool",
                "tool_call_id": _string(item, "call_id", path),
                "content": _content(item.get("output"), f"{path}.output"),
            }
            turn_of(turns, "tool").results.append(result)
        case None:
            _fail(f"{path}.type", "is required")
        case kind:
            raise UnsupportedError(f"{path}: items of the type {kind!r} are not supported", param=f"{path}.type")


def _message(turns: list[Turn], item: JsonObject, path: str) -> None:
    role, text = item.get("role"), _content(item.get("content"), f"{path}.content")
    match role:
        case "user" | "assistant":
            turn_of(turns, role).texts.append(text)
        case "system" | "developer" if all(turn.side == "system" for turn in turns):
            turn_of(turns, "system").texts.append(text)
        case "system" | "developer":
            # Few templates take a system message in the midst; a user's turn holds it in every one.
            turn_of(turns, "user").texts.append(f"<system-reminder>\n{text}\n</system-reminder>")
        case _:
            _fail(f"{path}.role", 'must be "user", "assistant", "system" or "developer"')


def _call(item: JsonObject, arguments: str, path: str) -> JsonObject:
    function = {"name": _string(item, "name", path), "arguments": arguments}
    return {"type": "function", "id": _string(item, "call_id", path), "function": function}


# -- text --------------------------------------------------------------------------------------------------------------


def _content(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _fail(path, f"must be a string or a list of parts, but is {json_type(value)}")
    return "\n".join(_part(item, f"{path}[{index}]") for index, item in enumerate(value))


def _part(value: object, path: str) -> str:
    if not isinstance(value, dict):
        _fail(path, f"must be an object, but is {json_type(value)}")
    kind = value.get("type")
    if kind in _TEXT:
        return _string(value, "text", path)
    if kind == "refusal":
        return _string(value, "refusal", path)
    if isinstance(kind, str) and kind in MEDIA_TYPES:
        raise UnsupportedError(
            f"{path}: {MEDIA_TYPES[kind]} input is not supported: this model is served without multimodal support",
            param=path,
        )
    raise UnsupportedError(f"{path}: parts of the type {kind!r} are not supported", param=f"{path}.type")


def _reasoning(item: JsonObject, path: str) -> str:
    """What an assistant thought: as it was, else its summary, else what this server sealed."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts:
            return _content(parts, f"{path}.{name}")
    sealed = item.get("encrypted_content")
    return unsealed(sealed) if isinstance(sealed, str) else ""


def sealed(reasoning: str) -> str:
    """Reasoning for a client that keeps the conversation itself and shall send it back."""
    return _SEAL + base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def unsealed(text: str) -> str:
    """The reasoning in what `sealed` made, empty for what others made."""
    if not text.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _string(item: JsonObject, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        _fail(f"{path}.{name}", f"must be a string, but is {json_type(value)}")
    return value


def _fail(path: str, what: str) -> Never:
    raise RequestError(f"{path} {what}", param=path)
