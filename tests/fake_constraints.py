"""A grammar engine for byte tokens: a pattern in which each character must come as it stands, and `?` may be a to h.

It is stricter than the real one: a matcher that is told of another token than it allowed, or is masked twice for one
token, raises `Misuse`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minka.errors import RequestError
from minka.native.protocol import Logits
from minka.types import Constraint, Matcher
from tests.fake_vocab import EOS
from tests.fakes import Misuse

ANY = b"abcdefgh"
BAD = "(bad)"
"""A grammar that does not compile."""


class FakeMatcher:
    """Implements `minka.types.Matcher`. With `Constraint.thinking` the pattern begins after its end or budget.

    With a `room`, the last of so many tokens is the pattern's last one.
    """

    def __init__(self, constraint: Constraint, room: int = -1) -> None:
        self.room = room
        self.closed = False
        self._pattern = constraint.grammar.encode()
        self._thinking = constraint.thinking
        self._end = constraint.thinking.ends[0].encode() if constraint.thinking else b""
        self._thought = b""
        self.seen: list[int] = []
        self.n_applied = 0
        self._thinks = constraint.thinking is not None
        self._closing: bytes | None = None

    def _allowed(self) -> bytes | None:
        """The bytes that may come, None for any."""
        if self._thinks:
            return None if self._closing is None else self._closing[:1]
        if not self._pattern:
            return b""
        return ANY if self._pattern[:1] == b"?" else self._pattern[:1]

    def apply(self, logits: Logits) -> None:
        self.n_applied += 1
        allowed = self._allowed()
        if allowed is None:
            return
        ids = list(allowed) if allowed else [EOS]
        kept = logits[ids].copy()
        logits[:] = -np.inf
        logits[ids] = kept

    def allows(self, token: int) -> bool:
        allowed = self._allowed()
        return allowed is None or token in (list(allowed) or [EOS])

    def forced(self) -> Sequence[int]:
        if self._thinks:
            return list(self._closing or b"")
        until_closed = self.room - 1 - len(self.seen) if self.room >= 0 else None
        return list(self._pattern.partition(b"?")[0])[:until_closed]

    def accept(self, token: int) -> None:
        self.seen.append(token)
        if self._thinks:
            self._think(token)
            return
        allowed = self._allowed()
        if not (token == EOS and not allowed) and token not in (allowed or b""):
            raise Misuse(f"the matcher was told of {token}, but allows {allowed!r}")
        self._pattern = self._pattern[1:]
        if len(self.seen) == self.room - 1 and len(self._pattern) > 1:
            self._pattern, self.closed = self._pattern[-1:], True

    def _think(self, token: int) -> None:
        assert self._thinking is not None
        self._thought += bytes([token]) if token < 256 else b""
        if self._closing is not None:
            self._closing = self._closing[1:]
        if self._thought.endswith(self._end):
            self._thinks = False
        elif self._closing is None and 0 <= self._thinking.budget <= len(self._thought):
            self._closing = self._end

    @property
    def finished(self) -> bool:
        return not self._thinks and not self._pattern

    def end_thinking(self) -> bool:
        if not self._thinks or self._closing is not None:
            return False
        self._closing = self._end
        return True


class FakeConstraints:
    """Implements `minka.types.Constraints`, and keeps its matchers in the order they were made."""

    def __init__(self) -> None:
        self.matchers: list[FakeMatcher] = []

    def start(self, constraint: Constraint, room: int = -1) -> Matcher:
        if constraint.grammar == BAD:
            raise RequestError("the grammar does not compile", param="grammar")
        self.matchers.append(FakeMatcher(constraint, room))
        return self.matchers[-1]
