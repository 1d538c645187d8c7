"""The output of an OpenAI response as it is written: reasoning, message and call items with all their events.

The events of a stream and the output of the whole response come from one writer. It numbers no events and knows no
request and no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from minka.chat.formats.format import CallArguments, CallBroken, CallEnd, CallStart, Content, Delta, Reasoning
from minka.protocols.body import new_id
from minka.protocols.responses_items import sealed
from minka.protocols.responses_tools import INPUT, Tool

Event = dict[str, object]


class Kind(StrEnum):
    """Kinds of items; the values are OpenAI's types."""

    REASONING = "reasoning"
    MESSAGE = "message"
    FUNCTION = "function_call"
    CUSTOM = "custom_tool_call"


_PREFIXES: Mapping[Kind, str] = {
    Kind.REASONING: "rs_",
    Kind.MESSAGE: "msg_",
    Kind.FUNCTION: "fc_",
    Kind.CUSTOM: "ctc_",
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a client wants its output: `summary`, reasoning as a summary; `seals`, with what it may send back."""

    summary: bool = False
    seals: bool = False


@dataclass(slots=True)
class Item:
    """One item; `pieces` are its text, or a call's arguments, or a free-form tool's input."""

    kind: Kind
    style: Style
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    id: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = new_id(_PREFIXES[self.kind])

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    def object(self, status: str) -> Event:
        """The item; without its text while it is in progress."""
        begun = status == "in_progress"
        match self.kind:
            case Kind.REASONING:
                return self._reasoning(status, begun=begun)
            case Kind.MESSAGE:
                content = [] if begun else [self.part()]
                return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}
            case Kind.FUNCTION:
                call: Event = {"id": self.id, "type": "function_call", "call_id": self.call_id, "name": self.name}
                call |= {"arguments": self.text, "status": status}
                return call | ({"namespace": self.namespace} if self.namespace else {})
            case Kind.CUSTOM:
                custom: Event = {"id": self.id, "type": "custom_tool_call", "call_id": self.call_id}
                return custom | {"name": self.name, "input": self.text, "status": status}

    def _reasoning(self, status: str, *, begun: bool) -> Event:
        parts = [] if begun else [self.part()]
        found: Event = {"id": self.id, "type": "reasoning", "summary": parts if self.style.summary else []}
        if not self.style.summary:
            found["content"] = parts
        if self.style.seals and not begun:
            found["encrypted_content"] = sealed(self.text)
        return {**found, "status": status}

    def part(self, *, empty: bool = False) -> Event:
        """The one part that a message or reasoning has."""
        text = "" if empty else self.text
        if self.kind is Kind.REASONING:
            return {"type": "summary_text" if self.style.summary else "reasoning_text", "text": text}
        return {"type": "output_text", "annotations": [], "logprobs": [] if empty else self.logprobs, "text": text}


class Output:
    """The items of a response. `tools` by name say which calls are free-form, and whose they are."""

    def __init__(self, style: Style, tools: Mapping[str, Tool]) -> None:
        self._style, self._tools = style, tools
        self._items: list[Item] = []
        self._ends: list[str] = []
        self._input: InputText | None = None

    def items(self) -> list[Event]:
        """All items that have ended."""
        return [item.object(status) for item, status in zip(self._items, self._ends, strict=False)]

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "".join(item.text for item in self._items if item.kind is Kind.MESSAGE)

    @property
    def _is_open(self) -> bool:
        return len(self._ends) < len(self._items)

    def add(self, deltas: Iterable[Delta], logprobs: Sequence[object] = (), *, whole: bool = False) -> Iterator[Event]:
        """Take deltas; the events that they make.

        `logprobs` are those of the token that brought them; they go to its message text. `whole`: nobody has seen the
        events, so a call can be taken back.
        """
        for delta in deltas:
            match delta:
                case Reasoning():
                    yield from self._more(Kind.REASONING, delta.text)
                case Content():
                    yield from self._more(Kind.MESSAGE, delta.text, logprobs)
                    logprobs = ()
                case CallStart():
                    yield from self._call(delta)
                case CallArguments():
                    yield from self._arguments(delta.text)
                case CallEnd():
                    yield from self.stop("completed")
                case CallBroken() if whole:
                    self._take_back()
                case CallBroken():
                    yield from self.stop("incomplete")

    def _call(self, delta: CallStart) -> Iterator[Event]:
        tool = self._tools.get(delta.name)
        custom = tool is not None and tool.is_custom
        self._input = InputText() if custom else None
        kind = Kind.CUSTOM if custom else Kind.FUNCTION
        yield from self._start(Item(kind, self._style, delta.id, delta.name, tool.namespace if tool else ""))

    def _arguments(self, piece: str) -> Iterator[Event]:
        if self._input is not None:
            piece = self._input.feed(piece)
        if piece and self._is_open:
            yield from self._piece(piece, ())

    def _more(self, kind: Kind, piece: str, logprobs: Sequence[object] = ()) -> Iterator[Event]:
        if not piece and not logprobs:
            return
        if not self._is_open or self._items[-1].kind is not kind:
            yield from self._start(Item(kind, self._style))
        yield from self._piece(piece, logprobs)

    def _piece(self, piece: str, logprobs: Sequence[object]) -> Iterator[Event]:
        item = self._items[-1]
        item.pieces.append(piece)
        item.logprobs += logprobs
        event = self._event(self._names(item)[0], delta=piece)
        if item.kind is Kind.MESSAGE:
            event["logprobs"] = list(logprobs)
        yield event

    def _start(self, item: Item) -> Iterator[Event]:
        yield from self.stop("completed")
        self._items.append(item)
        index = len(self._items) - 1
        yield {"type": "response.output_item.added", "output_index": index, "item": item.object("in_progress")}
        if item.kind in (Kind.MESSAGE, Kind.REASONING):
            yield self._event(self._part_name(item, "added"), part=item.part(empty=True))

    def stop(self, status: str) -> Iterator[Event]:
        """End the item that is open, if one is; `status` is `completed` or `incomplete`."""
        if not self._is_open:
            return
        item = self._items[-1]
        self._ends.append(status)
        yield self._done(item)
        if item.kind in (Kind.MESSAGE, Kind.REASONING):
            yield self._event(self._part_name(item, "done"), part=item.part())
        index = len(self._items) - 1
        yield {"type": "response.output_item.done", "output_index": index, "item": item.object(status)}

    def _done(self, item: Item) -> Event:
        name = self._names(item)[1]
        match item.kind:
            case Kind.MESSAGE:
                return self._event(name, text=item.text, logprobs=item.logprobs)
            case Kind.REASONING:
                return self._event(name, text=item.text)
            case Kind.FUNCTION:
                return self._event(name, name=item.name, arguments=item.text)
            case Kind.CUSTOM:
                return self._event(name, input=item.text)

    def _names(self, item: Item) -> tuple[str, str]:
        """The events that bring more text, and all of it."""
        match item.kind:
            case Kind.MESSAGE:
                stem = "output_text"
            case Kind.REASONING:
                stem = "reasoning_summary_text" if self._style.summary else "reasoning_text"
            case Kind.FUNCTION:
                stem = "function_call_arguments"
            case Kind.CUSTOM:
                stem = "custom_tool_call_input"
        return f"response.{stem}.delta", f"response.{stem}.done"

    def _part_name(self, item: Item, what: str) -> str:
        summary = item.kind is Kind.REASONING and self._style.summary
        return f"response.{'reasoning_summary_part' if summary else 'content_part'}.{what}"

    def _event(self, type_: str, **members: object) -> Event:
        item = self._items[-1]
        event: Event = {"type": type_, "item_id": item.id, "output_index": len(self._items) - 1}
        if item.kind is Kind.REASONING and self._style.summary:
            event["summary_index"] = 0
        elif item.kind in (Kind.MESSAGE, Kind.REASONING):
            event["content_index"] = 0
        return event | members

    def _take_back(self) -> None:
        """The open call was none: what the model wrote comes as text, and goes on from the text before."""
        self._items.pop()
        if self._items and self._items[-1].kind is Kind.MESSAGE:
            self._ends.pop()


class InputText:
    """Reads the string out of a free-form call's arguments, `{"input": "..."}`, as they come."""

    _ESCAPES: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}

    def __init__(self) -> None:
        self._raw = ""
        self._inside = self._over = False
        self._high = ""

    def feed(self, piece: str) -> str:
        """Take more of the arguments; what more of the string is certain."""
        self._raw += piece
        if not self._inside:
            key = self._raw.find(f'"{INPUT}"')
            quote = self._raw.find('"', self._raw.find(":", key) + 1) if key >= 0 and ":" in self._raw[key:] else -1
            if quote < 0:
                return ""
            self._inside, self._raw = True, self._raw[quote + 1 :]
        return "" if self._over else "".join(self._characters())

    def _characters(self) -> Iterator[str]:
        at = 0
        while at < len(self._raw):
            char, taken = self._raw[at], 1
            if char == '"':
                self._over = True
                break
            if char == "\\":
                taken = 6 if self._raw[at + 1 : at + 2] == "u" else 2
                if at + taken > len(self._raw):
                    break
                char = self._unescaped(self._raw[at + 1 : at + taken])
            at += taken
            yield char
        self._raw = self._raw[at:]

    def _unescaped(self, text: str) -> str:
        if text[0] != "u":
            return self._ESCAPES.get(text, text)
        code = int(text[1:], 16)
        if 0xD800 <= code < 0xDC00:
            self._high = chr(code)
            return ""
        if 0xDC00 <= code < 0xE000:
            pair, self._high = self._high + chr(code), ""
            return pair.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return chr(code)
