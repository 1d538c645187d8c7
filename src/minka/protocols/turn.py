"""A turn of a conversation on its way to chat messages: what one side says in a row, in however many pieces it came.

Shared by the APIs whose requests are lists of items or blocks. It knows neither of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minka.protocols.body import JsonObject


@dataclass(slots=True)
class Turn:
    """`side` is a chat role, or a word for results alone; `results` are of the tools that the turn before called."""

    side: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[JsonObject] = field(default_factory=list)
    results: list[JsonObject] = field(default_factory=list)

    def messages(self, glue: str) -> Iterator[JsonObject]:
        """The chat messages: results first, and the side's own, its texts joined, unless results are all there is."""
        yield from self.results
        if self.results and not self.texts:
            return
        message: dict[str, object] = {"role": self.side, "content": glue.join(self.texts)}
        if self.thoughts:
            message["reasoning_content"] = "\n\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        yield message


def turn_of(turns: list[Turn], side: str) -> Turn:
    """The turn that is going on, which is a new one if it was another side's."""
    if not turns or turns[-1].side != side:
        turns.append(Turn(side))
    return turns[-1]
