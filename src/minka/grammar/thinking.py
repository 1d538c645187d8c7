"""A matcher that watches the reasoning: it counts its tokens and forces its end.

States as llama.cpp has them: outside, inside (counting), waiting for a character to be complete, forcing, outside
again. What comes before, between and after is up to the grammar, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minka.grammar.utf8 import is_complete
from minka.types import Matcher, Thinking


class ThinkingWatch:
    """Implements `minka.types.Matcher`. `inner` is the grammar's matcher, None for any text.

    `piece` gives a token's bytes, special ones included; `ending` are the tokens that end the reasoning when it is cut:
    those of the message and of the first end tag.
    """

    def __init__(
        self, thinking: Thinking, inner: Matcher | None, piece: Callable[[int], bytes], ending: Sequence[int]
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
        self._decide()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher."""
        if self._left:
            kept = logits[self._left[0]]
            logits.fill(-np.inf)
            logits[self._left[0]] = kept
        elif self.inner is not None:
            self.inner.apply(logits)

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        if self._left:
            return self._left
        return self.inner.forced() if self.inner is not None else ()

    def accept(self, token: int) -> None:
        """See Matcher."""
        if self.inner is not None:
            self.inner.accept(token)
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
        """Begin to force the end if it is time, and no character is cut in half by it."""
        over = 0 <= self._budget <= self._counted
        if self._inside and (self._cut or over) and is_complete(self._tail) and not self._left:
            self._cut = False
            self._left = self._ending
