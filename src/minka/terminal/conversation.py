"""A conversation as a plain value: every change gives a new one, so a question that gets no answer changes nothing.

Knows messages only: no model, no screen, no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minka.chat.messages import Message
from minka.errors import UsageError

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that goes out with the next message."""

    name: str
    text: str

    def __str__(self) -> str:
        end = "" if self.text.endswith("\n") else "\n"
        return f"--- File: {self.name} ---\n{self.text}{end}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said. `system` is the system message, `turns` all others, `attached` goes out with the next message."""

    system: str | None = None
    turns: tuple[Message, ...] = ()
    attached: tuple[Attachment, ...] = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        """The conversation that some messages make; a system message at their start becomes `system`."""
        if messages and messages[0].role == SYSTEM:
            return cls(messages[0].text(), tuple(messages[1:]))
        return cls(None, tuple(messages))

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages in order, as a chat template takes them."""
        head = () if self.system is None else (Message(SYSTEM, self.system),)
        return (*head, *self.turns)

    @property
    def is_unanswered(self) -> bool:
        """Whether the last turn waits for an answer."""
        return bool(self.turns) and self.turns[-1].role != "assistant"

    def asked(self, text: str) -> Conversation:
        """With a message of the user at the end, which the attached files go in front of."""
        content = "".join(map(str, self.attached)) + text
        return replace(self, turns=(*self.turns, Message("user", content)), attached=())

    def answered(self, text: str) -> Conversation:
        """With an answer at the end, exactly as the model wrote it."""
        return replace(self, turns=(*self.turns, Message("assistant", text)))

    def reopened(self) -> Conversation:
        """Without the answer at the end, to have it answered again. Raises UsageError if nothing was asked."""
        turns = self.turns
        while turns and turns[-1].role == "assistant":
            turns = turns[:-1]
        if not turns:
            raise UsageError("there is no message to answer again")
        return replace(self, turns=turns)

    def cleared(self) -> Conversation:
        """Nothing but the system message."""
        return Conversation(self.system)
