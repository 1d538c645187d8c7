"""A compiled grammar at work on one text: llguidance's matcher behind the engine's interface."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from minka.errors import NativeError, RequestError
from minka.grammar.closing import Closable, closing
from minka.grammar.masks import forbid

_TOO_LARGE = ("lexer error", "too many", "too complex", "too big", "max is")
"""What llguidance says at its limits. A token that may not come is an error of other words."""


class GrammarMatcher(Closable):
    """The matcher of a grammar alone."""

    def __init__(self, native: LLMatcher, n_vocab: int, closers: Sequence[int] = ()) -> None:
        self.native = native
        self._n_vocab, self._closers = n_vocab, closers
        self._mask: NDArray[np.int32] = allocate_token_bitmask(1, n_vocab)
        """One bit a token, set where it may come next; shape (1, n_vocab / 32 rounded up)."""
        self._forced: Sequence[int] | None = None
        """What is forced next, None if nobody looked: finding it takes as long as it is."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher. Raises RequestError if the grammar has become too large to follow."""
        fill_next_token_bitmask(self.native, self._mask)
        self._check()
        forbid(logits, self._mask[0])

    def allows(self, token: int) -> bool:
        """See Matcher."""
        # Where something is forced, only that is: of other tokens that spell it the mask allows none.
        return token == forced[0] if (forced := self.forced()) else self.fits((token,))

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        if self._forced is None:
            self._forced = self.native.compute_ff_tokens()
        return self._forced

    def accept(self, token: int) -> None:
        """See Matcher. Raises RequestError as `apply` does."""
        rest = self._forced[1:] if self._forced and self._forced[0] == token else ()
        self._forced = rest or None
        if not self.native.consume_token(token):
            if any(words in self.native.get_error() for words in _TOO_LARGE):
                self._check()
            raise NativeError(f"token {token} does not match the grammar")

    def fits(self, tokens: Sequence[int]) -> bool:
        """See Closable."""
        return self.native.validate_tokens(list(tokens)) == len(tokens)

    @property
    def finished(self) -> bool:
        """See Matcher."""
        return self.native.is_stopped() and not self.native.is_error()

    def end_thinking(self) -> bool:
        """See Matcher: a grammar knows nothing of reasoning."""
        return False

    def closing(self, ahead: Sequence[int] = ()) -> list[int] | None:
        """See Closable."""
        return closing(self.native, self._closers, ahead, self._n_vocab)

    def _check(self) -> None:
        if self.native.is_error():
            raise RequestError(f"the grammar cannot be followed any further: {self.native.get_error().splitlines()[0]}")
