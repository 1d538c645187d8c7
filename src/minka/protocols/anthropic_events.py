"""Anthropic's message as it is written: blocks of thinking, text and tool use, each stopped before the next begins.

The events of a stream and the whole message come from one writer. It knows no request and no engine.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from minka.chat.formats.format import CallArguments, CallBroken, CallEnd, CallStart, Content, Delta, Reasoning

Event = dict[str, object]


class Kind(StrEnum):
    """Kinds of blocks; the values are Anthropic's types."""

    THINKING = "thinking"
    TEXT = "text"
    TOOL = "tool_use"


@dataclass(slots=True)
class Block:
    """One block; `pieces` are its text, or the JSON of a tool's input."""

    kind: Kind
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    def begun(self) -> Event:
        """The block as it starts."""
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking", "thinking": "", "signature": ""}
            case Kind.TEXT:
                return {"type": "text", "text": ""}
            case Kind.TOOL:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def delta(self, piece: str) -> Event:
        """More of it."""
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking_delta", "thinking": piece}
            case Kind.TEXT:
                return {"type": "text_delta", "text": piece}
            case Kind.TOOL:
                return {"type": "input_json_delta", "partial_json": piece}

    def whole(self, *, shown: bool) -> Event:
        """The complete block."""
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking", "thinking": self.text if shown else "", "signature": signature(self.text)}
            case Kind.TEXT:
                return {"type": "text", "text": self.text}
            case Kind.TOOL:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": self._input()}

    def _input(self) -> object:
        try:
            value = json.loads(self.text or "{}")
        except ValueError:  # cut off by the token limit
            return {}
        return value if isinstance(value, dict) else {}


def signature(thinking: str) -> str:
    """What clients have to send back with a thinking block. It proves nothing here, and nothing checks it."""
    return base64.b64encode(hashlib.sha256(thinking.encode("utf-8", "replace")).digest()).decode()


class Blocks:
    """The content of a message. `shown`: the text of the thinking is sent, not only that there was some."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._all: list[Block] = []
        self._is_open = False

    def content(self) -> list[Event]:
        """All blocks, complete."""
        return [block.whole(shown=self._shown) for block in self._all]

    def add(self, deltas: Iterable[Delta], *, whole: bool = False) -> Iterator[Event]:
        """Take deltas; the events that they make. `whole`: nobody has seen the events, so a call can be taken back."""
        for delta in deltas:
            match delta:
                case Reasoning():
                    yield from self._more(Kind.THINKING, delta.text)
                case Content():
                    yield from self._more(Kind.TEXT, delta.text)
                case CallStart():
                    yield from self._start(Block(Kind.TOOL, delta.id, delta.name))
                case CallArguments():
                    yield from self._more(Kind.TOOL, delta.text)
                case CallEnd():
                    yield from self.stop()
                case CallBroken() if whole:
                    self._take_back()
                case CallBroken():
                    yield from self.stop()

    def _more(self, kind: Kind, piece: str) -> Iterator[Event]:
        if not piece:
            return
        if not self._is_open or self._all[-1].kind is not kind:
            yield from self._start(Block(kind))
        block = self._all[-1]
        block.pieces.append(piece)
        if self._shown or kind is not Kind.THINKING:
            yield {"type": "content_block_delta", "index": len(self._all) - 1, "delta": block.delta(piece)}

    def _start(self, block: Block) -> Iterator[Event]:
        yield from self.stop()
        self._all.append(block)
        self._is_open = True
        yield {"type": "content_block_start", "index": len(self._all) - 1, "content_block": block.begun()}

    def stop(self) -> Iterator[Event]:
        """Close the block that is open, if one is; a thinking block gets its signature first."""
        if not self._is_open:
            return
        self._is_open = False
        index, block = len(self._all) - 1, self._all[-1]
        if block.kind is Kind.THINKING:
            signed = {"type": "signature_delta", "signature": signature(block.text)}
            yield {"type": "content_block_delta", "index": index, "delta": signed}
        yield {"type": "content_block_stop", "index": index}

    def _take_back(self) -> None:
        """The open call was none: what the model wrote comes as text, and goes on from the text before."""
        self._all.pop()
        self._is_open = bool(self._all) and self._all[-1].kind is Kind.TEXT
