"""Chat messages as typed values, and the one place that reads them out of an OpenAI `messages` array.

Everything below this module sees `Message`, never the client's JSON. It knows nothing of templates or models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Never

from minka.errors import RequestError, UnsupportedError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MEDIA_TYPES: Mapping[str, str] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
"""Types of content parts that name a medium, with the medium's name."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message whose content is a list."""

    text: str


Part = TextPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made. `arguments` is JSON text as the model wrote it; `id` is empty if it has none."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `content` is None if the client sent null or nothing."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str | None = None

    def text(self, separator: str = "\n") -> str:
        """The content as one string: parts joined with `separator`, empty if there is none."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return separator.join(part.text for part in self.content)


def decode_messages(value: object) -> tuple[Message, ...]:
    """The messages of an OpenAI `messages` array, in order, at least one.

    Raises RequestError whose `param` is the JSON path of what is wrong, UnsupportedError for images, audio and video.
    Unknown keys are ignored: clients send back what servers once added.
    """
    if value is None:
        _fail("'messages' is required", "messages")
    if not isinstance(value, list):
        _fail(f"Expected 'messages' to be an array, got {_kind(value)}", "messages")
    if not value:
        _fail("'messages' must hold at least one message", "messages")
    messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))
    if len(messages) > 1 and messages[-1].role == messages[-2].role == "assistant":
        _fail("Cannot have 2 or more assistant messages at the end of the list.", f"messages[{len(messages) - 1}]")
    return messages


def _message(value: object, path: str) -> Message:
    fields = _object(value, path)
    role = fields.get("role")
    if "role" not in fields:
        _fail(f"Missing 'role' in {path}", f"{path}.role")
    if not isinstance(role, str) or role not in ROLES:
        _fail(f"Unknown role {_show(role)} in {path}: use one of {_listing(ROLES)}", f"{path}.role")
    tool_calls = _tool_calls(fields.get("tool_calls"), f"{path}.tool_calls")
    reasoning = _optional_text(fields, "reasoning_content", path)
    _require_content(fields, role, bool(tool_calls or reasoning), path)
    return Message(
        role=role,
        content=_content(fields.get("content"), f"{path}.content"),
        name=_optional_text(fields, "name", path),
        tool_call_id=_optional_text(fields, "tool_call_id", path),
        tool_calls=tool_calls if role == "assistant" else (),
        reasoning_content=reasoning,
    )


def _require_content(fields: Mapping[str, object], role: str, has_other: bool, path: str) -> None:
    """A key `content` with null counts as content, as it does for llama-server."""
    if fields.get("function_call") is not None:
        raise UnsupportedError("function_call is deprecated: send tool_calls instead", param=f"{path}.function_call")
    if "content" in fields or (role == "assistant" and has_other):
        return
    if role == "assistant":
        _fail("Assistant message must contain either 'content' or 'tool_calls'!", path)
    _fail("All non-assistant messages must contain 'content'", f"{path}.content")


def _content(value: object, path: str) -> str | tuple[Part, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value, path)
    if not isinstance(value, list):
        _fail(f"Expected 'content' to be a string or an array, got {_kind(value)}", path)
    return tuple(_part(item, f"{path}[{index}]") for index, item in enumerate(value))


def _part(value: object, path: str) -> Part:
    fields = _object(value, path)
    if "type" not in fields:
        _fail(f"Missing content part type in {path}", f"{path}.type")
    kind = fields["type"]
    if isinstance(kind, str) and kind in MEDIA_TYPES:
        raise UnsupportedError(
            f"{MEDIA_TYPES[kind]} input is not supported: this model is served without multimodal support",
            param=f"{path}.type",
        )
    if kind != "text":
        _fail(f"unsupported content[].type {_show(kind)}", f"{path}.type")
    if "text" not in fields:
        _fail(f"Missing 'text' in {path}", f"{path}.text")
    return TextPart(_text(fields["text"], f"{path}.text"))


def _tool_calls(value: object, path: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        _fail(f"Expected 'tool_calls' to be an array, got {_kind(value)}", path)
    return tuple(_tool_call(item, f"{path}[{index}]") for index, item in enumerate(value))


def _tool_call(value: object, path: str) -> ToolCall:
    fields = _object(value, path)
    if fields.get("type") != "function":
        _fail(f'Unsupported tool call type {_show(fields.get("type"))}: use "function"', f"{path}.type")
    function = _object(fields.get("function"), f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        _fail("Missing tool call name: it must be a non-empty string", f"{path}.function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        _fail("Tool call arguments must be a string of JSON or an object", f"{path}.function.arguments")
    return ToolCall(
        id=_optional_text(fields, "id", path) or "",
        name=_text(name, f"{path}.function.name"),
        arguments=_text(arguments, f"{path}.function.arguments"),
    )


def _optional_text(fields: Mapping[str, object], key: str, path: str) -> str | None:
    value = fields.get(key)
    return None if value is None else _text(value, f"{path}.{key}")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        _fail(f"Expected {path} to be a string, got {_kind(value)}", path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _fail(f"{path} is no valid text: it holds a lone surrogate", path)
    return value


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        _fail(f"Expected {path} to be an object, got {_kind(value)}", path)
    return value


def _fail(message: str, param: str) -> Never:
    raise RequestError(message, param=param)


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    names: Sequence[tuple[type, str]] = (
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def _show(value: object) -> str:
    """A value for an error message: short, on one line."""
    text = json.dumps(value, ensure_ascii=True) if isinstance(value, str) else _kind(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
