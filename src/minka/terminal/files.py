"""Files of the terminal commands: prompts that are read, conversations and transcripts that are written whole or not.

A saved conversation is a JSON object with OpenAI's `messages`; a bare list of messages is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from minka.chat.messages import Message, decode_messages
from minka.errors import RequestError, UsageError
from minka.ggufs.atomic import replacing

FORMAT = "minka-conversation"
VERSION = 1
MAX_ATTACHMENT = 10 * 2**20
"""Bytes of a file that a message can carry: far more than any context holds."""


def read_bytes(path: Path, what: str, limit: int | None = None) -> bytes:
    """A file's bytes. Raises UsageError, which calls it `what`, if it cannot be read or is larger than `limit`."""
    try:
        with path.open("rb") as file:
            data = file.read() if limit is None else file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror or error}") from None
    if limit is not None and len(data) > limit:
        raise UsageError(f"{what} {path} is larger than {limit // 2**20} MiB, more than a message can hold")
    return data


def decode(data: bytes, source: str, *, instead: str = "") -> str:
    """Bytes as text. Raises UsageError that names the `source` if they are no UTF-8; `instead` says what else to do."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is no UTF-8 text (byte {error.start}){instead}") from None


def read_text(path: Path, what: str, *, instead: str = "", limit: int | None = None) -> str:
    """A file's text. Raises UsageError if it cannot be read or is no UTF-8."""
    return decode(read_bytes(path, what, limit), f"{what} {path}", instead=instead)


def without_last_newline(text: str) -> str:
    """Text without the newline that editors and `echo` put at its end."""
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def check_place(path: Path) -> None:
    """Raise UsageError early if no file can be written there."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} does not exist; create it first")


def write(path: Path, data: bytes) -> None:
    """Put a whole file in place. Raises MinkaError if it cannot; what was there then stays."""
    with replacing(path, force=True) as out:
        out.write(data)


# -- conversations


def save_conversation(path: Path, messages: Sequence[Message], model: str) -> None:
    """Write a conversation, over an older one but over no other file.

    Raises UsageError if the file is something else, MinkaError if it cannot be written.
    """
    check_place(path)
    if path.exists() and not _is_saved(path):
        raise UsageError(f"{path} exists and is no saved conversation; give another name")
    body = {"format": FORMAT, "version": VERSION, "model": model, "messages": [_encode(m) for m in messages]}
    write(path, json.dumps(body, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n")


def load_conversation(path: Path) -> tuple[Message, ...]:
    """The messages of a saved conversation, or of any JSON with OpenAI's messages. Raises UsageError."""
    text = read_text(path, "the conversation")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no saved conversation: it is not JSON") from None
    if isinstance(body, dict) and body.get("format") == FORMAT and body.get("version") != VERSION:
        raise UsageError(f"{path} was saved by another version of Minka (format {body.get('version')})")
    messages = body.get("messages") if isinstance(body, dict) else body
    if messages == []:
        return ()
    try:
        return decode_messages(messages)
    except RequestError as error:
        raise UsageError(f"{path} is no saved conversation: {error}") from None


def _is_saved(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(100)
    except OSError as error:
        raise UsageError(f"cannot look into {path}: {error.strerror or error}") from None


def _encode(message: Message) -> dict[str, object]:
    """A message as `decode_messages` reads it."""
    content: object = message.content
    if isinstance(content, tuple):
        content = [{"type": "text", "text": part.text} for part in content]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls or None,
    }
    body: dict[str, object] = {"role": message.role, "content": content}
    return body | {key: value for key, value in optional.items() if value is not None}


# -- transcripts


@dataclass(slots=True)
class Transcript:
    """All that was said, in order, in a file that is replaced after each answer. Without a path it does nothing."""

    path: Path | None
    text: str = ""

    def add(self, question: str, answer: str) -> None:
        """Note a question (empty: the last one was answered again) and its answer. Raises MinkaError."""
        if self.path is None:
            return
        if question:
            self.text += f"User:\n{question}\n\n"
        self.text += f"Assistant:\n{answer}\n\n"
        write(self.path, self.text.encode("utf-8", "replace"))


def read_stream(stream: BinaryIO) -> bytes:
    """All that comes from a stream. Raises UsageError if it cannot be read."""
    try:
        return stream.read()
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror or error}") from None
