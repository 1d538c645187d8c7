"""The answer of one choice: the engine's events become deltas of content, reasoning and calls, and fold into a whole.

Every chat protocol uses it, and gives deltas and whole their own shape. Knows no wire JSON.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import replace

from minka.chat.formats.format import CallArguments, CallBroken, CallEnd, CallStart, Content, Delta, Reasoning
from minka.chat.messages import ToolCall
from minka.chat.turn import Turn
from minka.protocols.transcript import Transcript
from minka.types import Event, Finished, FinishReason, Job, Token

_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id(prefix: str = "call_") -> str:
    """A random id of a call."""
    return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(24))


class Answer:
    """One choice that is being written.

    `add` takes the choice's events in order and returns what is new. Every `CallStart` has an id: the format's own, or
    one that starts with `id_prefix`. A call that was cut off is a call all the same, and its arguments end where the
    text does. One that turns out to be none (`CallBroken`) is content; only a stream has told of its beginning, too.
    """

    def __init__(self, turn: Turn, job: Job, index: int, *, id_prefix: str = "call_") -> None:
        self.transcript = Transcript(index, job)
        self.n_reasoning_tokens = 0
        """Generated tokens of the reasoning."""
        self._turn, self._id_prefix = turn, id_prefix
        self._parser = turn.parser()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._open: ToolCall | None = None
        self._arguments: list[str] = []

    @property
    def index(self) -> int:
        """The number of the choice."""
        return self.transcript.index

    def add(self, event: Event) -> list[Delta]:
        """Take the choice's next event; the deltas that it brings."""
        self.transcript.add(event)
        match event:
            case Token():
                thought = self._parser.thinks
                deltas = self._take(self._parser.feed(event.text) if event.text else [])
                self.n_reasoning_tokens += thought or any(isinstance(delta, Reasoning) for delta in deltas)
                return deltas
            case Finished():
                return self._take([*self._parser.feed(event.text), *self._parser.end()])
            case _:
                return []

    def _take(self, deltas: Sequence[Delta]) -> list[Delta]:
        return [self._fold(delta) for delta in deltas]

    def _fold(self, delta: Delta) -> Delta:
        match delta:
            case Content():
                self._content.append(delta.text)
            case Reasoning():
                self._reasoning.append(delta.text)
            case CallStart():
                delta = replace(delta, id=delta.id or new_call_id(self._id_prefix))
                self._open, self._arguments = ToolCall(delta.id, delta.name, ""), []
            case CallArguments():
                self._arguments.append(delta.text)
            case CallEnd():
                assert self._open is not None, "a call ends that did not begin"
                self._calls.append(replace(self._open, arguments="".join(self._arguments)))
                self._open = None
            case CallBroken():
                self._open = None
        return delta

    # -- the whole -----------------------------------------------------------------------------------------------------

    @property
    def content(self) -> str:
        """The text that is neither reasoning nor a call. With `deepseek-legacy` the reasoning stands in front of it."""
        content = "".join(self._content)
        tags = self._turn.format.reasoning
        if self._turn.settings.reasoning_format == "deepseek-legacy" and self._reasoning and tags is not None:
            return f"{tags.start}{self.reasoning}{tags.ends[0]}{content}"
        return content

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order. Their arguments are JSON objects; of a call that was cut off, the beginning of one."""
        cut_off = [replace(self._open, arguments="".join(self._arguments))] if self._open else []
        return (*self._calls, *cut_off)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for the end: `stop`, `length` or `tool_calls`, the last only if all calls are complete."""
        if self.transcript.ended.reason is FinishReason.LIMIT:
            return "length"
        return "tool_calls" if self._calls and self._open is None else "stop"


class Answers:
    """The answers of all choices of a request, found by job id."""

    def __init__(self, turn: Turn, jobs: tuple[Job, ...], *, id_prefix: str = "call_") -> None:
        self.all = tuple(Answer(turn, job, index, id_prefix=id_prefix) for index, job in enumerate(jobs))
        self._by_id = {answer.transcript.job.id: answer for answer in self.all}

    def add(self, event: Event) -> tuple[Answer, list[Delta]]:
        """Take an event; the answer that it belongs to, and the deltas that it brings."""
        answer = self._by_id[event.id]
        return answer, answer.add(event)
