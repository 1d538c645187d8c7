"""The shortest end of a constrained text, and a matcher that brings it about before the room for the text is over.

Cut anywhere, JSON is of no use. So when what is left is about what the end takes, the end is written: open strings,
lists and objects are closed, and members that a schema requires get the least value that it allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from minka.grammar.masks import allow_only
from minka.types import Matcher

MAX_CLOSING = 600
"""Tokens of an end. While it takes more, it is not looked at: finding them would stop everybody for over 15 ms."""

MARGIN = 24
"""Tokens between the room that is left and the end that is known: the next one may open an object, and its end is
longer by all the members that it requires. With 8, one text in fifty of a recursive schema had no room any more."""

_CLOSERS = tuple(bytes([char]) for char in b'"}],:0123456789ntf[{-ea')
"""What brings JSON to its end soonest, best first: a quote also ends a string that could go on with a brace, and any
other value is sooner over than a list or an object, which may hold another one for ever."""


class Closable(Matcher, Protocol):
    """A matcher that knows how its text can end, and leaves it to others to bring that about."""

    @property
    def closed(self) -> bool:
        """See Matcher."""
        return False

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens may come next, in this order. Changes nothing."""

    def closing(self, ahead: Sequence[int] = ()) -> list[int] | None:
        """Tokens that lead to the end from here, beginning with `ahead`; none if the text may end here, None if
        no end is known. Changes nothing."""


def closers(pieces: Sequence[bytes]) -> list[int]:
    """Those of a vocabulary's tokens that close JSON, best first."""
    found = {piece: token for token, piece in enumerate(pieces) if len(piece) == 1}
    return [found[piece] for piece in _CLOSERS if piece in found]


def closing(native: LLMatcher, tokens: Sequence[int], ahead: Sequence[int], n_vocab: int) -> list[int] | None:
    """See Closable: a walk that takes at each place what is forced, else the first of `tokens` that may come there."""
    trial = native.deep_copy()
    path = list(ahead)
    if ahead and not trial.consume_tokens(path):
        return None
    forced: list[int] = []
    while len(path) < MAX_CLOSING:
        if trial.is_accepting():
            return path
        forced = forced or trial.compute_ff_tokens()[::-1]
        token = forced.pop() if forced else _closer(trial, tokens, n_vocab)
        if token is None or not trial.consume_token(token):
            return None
        path.append(token)
    return None


def _closer(trial: LLMatcher, tokens: Sequence[int], n_vocab: int) -> int | None:
    for token in tokens:
        if trial.validate_tokens([token]):
            return token
    mask = allocate_token_bitmask(1, n_vocab)
    fill_next_token_bitmask(trial, mask)
    words = np.flatnonzero(mask[0])
    if not len(words):
        return None
    word = int(mask[0][words[0]]) & 0xFFFFFFFF
    return int(words[0]) * 32 + (word & -word).bit_length() - 1


class ClosingWatch:
    """Implements `minka.types.Matcher`: `inner`, until the rest of the text's `room` tokens is what its end takes."""

    def __init__(self, inner: Closable, room: int) -> None:
        self.inner = inner
        self._room = room
        """Tokens that the text may still have."""
        self._look_at = room
        """How much room is left when the end is looked for again."""
        self._end: list[int] = []
        """Tokens of the end that are yet to come."""
        self.closed = False
        """See Matcher."""
        self._look()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher."""
        if self._end:
            allow_only(logits, self._end[0])
        else:
            self.inner.apply(logits)

    def allows(self, token: int) -> bool:
        """See Matcher."""
        return token == self._end[0] if self._end else self.inner.allows(token)

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        return self._end or self.inner.forced()

    def accept(self, token: int) -> None:
        """See Matcher."""
        self.inner.accept(token)
        self._room -= 1
        if self._end and token == self._end[0]:
            del self._end[0]
        elif self._end:
            self._end, self.closed = [], False
            self._look()
        elif self._room <= self._look_at and not self.finished:
            self._look()

    @property
    def finished(self) -> bool:
        """See Matcher."""
        return self.inner.finished or (self.closed and not self._end)

    def end_thinking(self) -> bool:
        """See Matcher."""
        return not self.closed and self.inner.end_thinking()

    def _look(self) -> None:
        """Begin the end if it is time for it, or decide when to look again: halfway to the time that it is now."""
        end = self.inner.closing()
        spare = self._room - len(end or ()) - MARGIN
        if end and -MARGIN <= spare <= 0:
            self._end, self.closed = end, True
        # Where nothing is open, that is soon told, and anything may be opened.
        self._look_at = self._room - max(1, spare // 2 if end != [] else min(spare // 2, 16))
