"""A matcher that watches the reasoning: it counts its tokens and forces its end.

States as llama.cpp has them: outside, inside (counting), waiting for a character to be complete, forcing, outside
again. What comes before, between and after is up to the grammar, if there is one; where it does not let the reasoning
end, the end is forced later. A grammar that begins late does not begin within the reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minka.grammar.closing import Closable
from minka.grammar.lazy import LazyMatcher
from minka.grammar.masks import allow_only
from minka.grammar.utf8 import is_complete
from minka.types import Thinking


class ThinkingWatch(Closable):
    """A matcher around another. `inner` is the grammar's matcher, None for any text.

    `piece` gives a token's bytes, special ones included; `ending` are the tokens that end the reasoning when it is cut:
    those of the message and of the first end tag.
    """

    def __init__(
        self, thinking: Thinking, inner: Closable | None, piece: Callable[[int], bytes], ending: Sequence[int]
    ) -> None:
        self.inner = inner
        self._piece, self._ending, self._budget = piece, tuple(ending), thinking.budget
        self._start = thinking.start.encode()
        self._ends = tuple(end.encode() for end in thinking.ends if end)
        self._longest = max(map(len, (self._start, *self._ends)))
        self._inside = thinking.is_open
        self._counted = 0
        self._cut = False
        """Whether the end is to be forced as soon as the last character is complete."""
        self._left: tuple[int, ...] = ()
        """Tokens that are yet to be forced."""
        self._tail = b""
        """The end of the text: as much as can be the beginning of a tag."""
        self._unseen: list[int] = []
        """The last tokens of the reasoning, which a grammar that begins late has not been told of."""
        self._decide()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher."""
        if self._left:
            allow_only(logits, self._left[0])
        elif self.inner is not None:
            self.inner.apply(logits)

    def allows(self, token: int) -> bool:
        """See Matcher."""
        if self._left:
            return token == self._left[0]
        return self.inner is None or self.inner.allows(token)

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        if self._left:
            return self._left
        return self.inner.forced() if self.inner is not None else ()

    def accept(self, token: int) -> None:
        """See Matcher."""
        waits = self._inside and isinstance(self.inner, LazyMatcher) and self.inner.inner is None
        if waits:
            self._unseen = [*self._unseen[-self._longest :], token]
        elif self.inner is not None:
            self.inner.accept(token)
        self._follow(token)
        if waits and not self._inside:
            self._show_end()

    def _follow(self, token: int) -> None:
        if self._left and token == self._left[0]:
            self._left = self._left[1:]
            if not self._left:
                self._inside, self._counted, self._tail = False, 0, b""
            return
        self._left = ()
        self._counted += self._inside
        self._read(self._piece(token))
        self._decide()

    @property
    def finished(self) -> bool:
        """See Matcher."""
        return self.inner is not None and self.inner.finished and not self._left

    def end_thinking(self) -> bool:
        """See Matcher."""
        if not self._inside:
            return False
        self._cut = True
        self._decide()
        return True

    def fits(self, tokens: Sequence[int]) -> bool:
        """See Closable."""
        return self.inner is None or self.inner.fits(tokens)

    def closing(self, ahead: Sequence[int] = ()) -> list[int] | None:
        """See Closable: the reasoning ends first."""
        if self.inner is None:
            return []
        ending = self._left or (self._ending if self._inside else ())
        return self.inner.closing((*ending, *ahead))

    def _show_end(self) -> None:
        """Tell the grammar of the end tag, which may be what begins it."""
        text, at = b"", len(self._unseen)
        while at and not any(end in text for end in self._ends):
            at -= 1
            text = self._piece(self._unseen[at]) + text
        for token in self._unseen[at:]:
            if self.inner is not None:
                self.inner.accept(token)
        self._unseen = []

    def _may_end(self) -> bool:
        """Whether the reasoning can be ended here: no character is cut in half by it, and the grammar allows it."""
        return is_complete(self._tail) and self.fits(self._ending)

    def _read(self, piece: bytes) -> None:
        """Look for tags in what is new. A tag may be one token, several, or a part of one."""
        text = self._tail + piece
        while True:
            tags = self._ends if self._inside else (self._start,)
            found = [(at, tag) for tag in tags if tag and (at := text.find(tag)) >= 0]
            if not found:
                break
            at, tag = min(found)
            text = text[at + len(tag) :]
            self._inside = not self._inside
            self._counted = 0
            self._cut = False
        self._tail = text[-max(self._longest - 1, 3) :]

    def _decide(self) -> None:
        """Begin to force the end if it is time for it."""
        over = 0 <= self._budget <= self._counted
        if self._inside and (self._cut or over) and not self._left and self._may_end():
            self._cut = False
            self._left = self._ending
