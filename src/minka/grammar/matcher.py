"""A compiled grammar at work on one text: llguidance's matcher behind the engine's interface."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from minka.errors import NativeError, RequestError
from minka.grammar.closing import closing

_TOO_LARGE = ("lexer error", "too many", "too complex", "too big", "max is")
"""What llguidance says at its limits. A token that may not come is an error of other words."""

_NEVER = np.float32(-np.inf)
_BITS = np.arange(32, dtype=np.int32)


def _penalties() -> NDArray[np.float32]:
    """What to add to the logits of eight tokens, by the byte of the mask that is about them; shape (256, 8)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(0), _NEVER).astype(np.float32)


_PENALTIES = _penalties()


def forbid(logits: NDArray[np.float32], mask: NDArray[np.int32]) -> None:
    """Set the logits to minus infinity where the mask's bit is 0. Shapes (n,) and (n / 32 rounded up,).

    Most masks allow nearly nothing (30 us for 50,000 tokens) or, within a string, nearly all (30 to 70 us). One without
    any pattern takes 150 us.
    """
    some = np.flatnonzero(mask)
    if len(some) * 8 < len(mask):
        ids = _allowed(mask, some, len(logits))
        kept = logits[ids]
        logits.fill(_NEVER)
        logits[ids] = kept
    elif np.count_nonzero(mask != -1) * 2 < len(mask):
        logits[np.unpackbits(~mask.view(np.uint8), bitorder="little").view(np.bool_)[: len(logits)]] = _NEVER
    else:
        logits += _PENALTIES[mask.view(np.uint8)].reshape(-1)[: len(logits)]


def _allowed(mask: NDArray[np.int32], words: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """The tokens whose bit is set in some words of the mask."""
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    ids: NDArray[np.intp] = (words[:, np.newaxis] * 32 + _BITS)[bits == 1]
    inside: NDArray[np.intp] = ids[ids < n]
    return inside


class GrammarMatcher:
    """Implements `minka.types.Matcher`."""

    def __init__(self, native: LLMatcher, n_vocab: int, closers: Sequence[int] = ()) -> None:
        self.native = native
        self._n_vocab, self._closers = n_vocab, closers
        self.mask: NDArray[np.int32] = allocate_token_bitmask(1, n_vocab)
        """One bit a token, set where it may come next; shape (1, n_vocab / 32 rounded up)."""
        self.is_fresh = False
        """Whether `mask` is the one of the text as it is now."""
        self._forced: deque[int] | None = None
        """What is forced next, None if nobody looked: finding it takes as long as it is."""

    def fill(self) -> None:
        """Compute the mask of the text as it is now."""
        fill_next_token_bitmask(self.native, self.mask)
        self.is_fresh = True

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher. Raises RequestError if the grammar has become too large to follow."""
        if not self.is_fresh:
            self.fill()
        self._check()
        forbid(logits, self.mask[0])

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        if not self._forced:
            self._forced = deque(self.native.compute_ff_tokens())
        return tuple(self._forced)

    def accept(self, token: int) -> None:
        """See Matcher. Raises RequestError as `apply` does."""
        self.is_fresh = False
        if self._forced and self._forced[0] == token:
            self._forced.popleft()
        else:
            self._forced = None
        if not self.native.consume_token(token):
            if any(words in self.native.get_error() for words in _TOO_LARGE):
                self._check()
            raise NativeError(f"token {token} does not match the grammar")

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens may come next, in this order. Changes nothing."""
        return self.native.validate_tokens(list(tokens)) == len(tokens)

    @property
    def finished(self) -> bool:
        """See Matcher."""
        return self.native.is_stopped() and not self.native.is_error()

    def end_thinking(self) -> bool:
        """See Matcher: a grammar knows nothing of reasoning."""
        return False

    closed = False
    """See Matcher: a grammar ends where it ends."""

    def closing(self, ahead: Sequence[int] = ()) -> list[int] | None:
        """See Closable."""
        return closing(self.native, self._closers, ahead, self._n_vocab)

    def _check(self) -> None:
        if self.native.is_error():
            raise RequestError(f"the grammar cannot be followed any further: {self.native.get_error().splitlines()[0]}")
