"""A shape whose calls are one JSON list between two tags: `<tool_calls>[{...}, {...}]</tool_calls>`."""

from __future__ import annotations

from collections.abc import Sequence

from minka.chat.formats.calls import CallStyle
from minka.chat.formats.format import ReasoningTags
from minka.chat.formats.shape import Shape


class Listed(Shape):
    """A Shape of which only the tags may be special tokens, not the brackets beside them."""

    @property
    def marks(self) -> Sequence[str]:
        """See Format."""
        tags = (self.reasoning.start.strip(), *(end.strip() for end in self.reasoning.ends)) if self.reasoning else ()
        return tuple(tag for tag in (*tags, self.trigger, self.close.removeprefix("]")) if tag)


def listed(
    name: str,
    call: CallStyle,
    open: str,
    close: str = "",
    *,
    reasoning: ReasoningTags | None = None,
    stops: Sequence[str] = (),
) -> Listed:
    """The format with these tags around the list."""
    return Listed(
        name,
        call,
        open=f"{open}[",
        close=f"]{close}",
        separator=", ",
        trigger=open,
        reasoning=reasoning,
        stops=stops,
    )
