"""Grammars that begin late, as llama.cpp's native API has them: any text until a trigger, then all from there on.

The triggers travel in the first line of the grammar's source, as a comment to everybody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minka.grammar.backtracking import steps
from minka.grammar.closing import Closable

_HEADER = "// begins at: "

WINDOW = 2_000
"""Characters at the end of the text in which a pattern is looked for."""

MAX_STEPS = 2e7
"""Steps of all patterns of a text together, after one token: some 100 ms at the very worst."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """What begins the grammar: a token, a word, a pattern anywhere, or one that matches all of the text.

    The grammar begins with the trigger itself; of a pattern, with its first group that matched anything.
    """

    tokens: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    full_patterns: tuple[str, ...] = ()

    def listed(self) -> list[dict[str, object]]:
        """The triggers as llama-server writes them."""
        texts = [(1, self.words), (2, self.patterns), (3, self.full_patterns)]
        return [
            *({"type": 0, "value": "", "token": token} for token in self.tokens),
            *({"type": kind, "value": value} for kind, values in texts for value in values),
        ]


def lazy(source: str, triggers: Triggers) -> str:
    """A grammar's source with its triggers."""
    values = [triggers.tokens, triggers.words, triggers.patterns, triggers.full_patterns]
    return _HEADER + json.dumps(values) + "\n" + source


def split(grammar: str) -> tuple[Triggers | None, str]:
    """The triggers, None if the grammar begins at once, and the source without them."""
    if not grammar.startswith(_HEADER):
        return None, grammar
    header, _, source = grammar.removeprefix(_HEADER).partition("\n")
    tokens, words, patterns, full_patterns = map(tuple, json.loads(header))
    return Triggers(tokens, words, patterns, full_patterns), source


def patterns_problem(triggers: Triggers) -> str:
    """Why the patterns cannot be searched for after each token, empty if they can."""
    n_steps = 0.0
    for pattern in (*triggers.patterns, *triggers.full_patterns):
        try:
            n_steps += steps(pattern, WINDOW) * (WINDOW if pattern in triggers.patterns else 1)
        except ValueError as error:
            return f"the pattern {pattern[:80]!r} {error}"
        if n_steps > MAX_STEPS:
            return f"the pattern {pattern[:80]!r} can match in too many ways: repeat and choose less in it"
    return ""


class LazyMatcher(Closable):
    """A matcher that lets anything come before the trigger, the grammar's after it."""

    def __init__(
        self,
        triggers: Triggers,
        begin: Callable[[], Closable],
        piece: Callable[[int], bytes],
        tokens_of: Callable[[str], Sequence[int]],
    ) -> None:
        self._triggers, self._begin, self._piece, self._tokens_of = triggers, begin, piece, tokens_of
        self._patterns = [re.compile(pattern) for pattern in triggers.patterns]
        self._full = [re.compile(pattern) for pattern in triggers.full_patterns]
        self._raw = b""
        self.inner: Closable | None = None

    def apply(self, logits: NDArray[np.float32]) -> None:
        """See Matcher."""
        if self.inner is not None:
            self.inner.apply(logits)

    def allows(self, token: int) -> bool:
        """See Matcher."""
        return self.inner is None or self.inner.allows(token)

    def forced(self) -> Sequence[int]:
        """See Matcher."""
        return self.inner.forced() if self.inner is not None else ()

    def accept(self, token: int) -> None:
        """See Matcher."""
        if self.inner is not None:
            self.inner.accept(token)
            return
        if token in self._triggers.tokens:
            self.inner = self._begin()
            self.inner.accept(token)
            return
        self._raw = (self._raw + self._piece(token))[-4 * WINDOW :]
        text = self._raw.decode("utf-8", "replace")[-WINDOW:]
        at = self._find(text)
        if at is not None:
            self.inner = self._begin()
            for first in self._tokens_of(text[at:]):
                self.inner.accept(first)

    def _find(self, text: str) -> int | None:
        """Where the earliest trigger begins."""
        found = [at for word in self._triggers.words if (at := text.find(word)) >= 0]
        matches = [pattern.search(text) for pattern in self._patterns]
        matches += [pattern.fullmatch(text) for pattern in self._full]
        for match in matches:
            if match is not None:
                groups = range(1, len(match.groups()) + 1)
                found.append(match.start(next((group for group in groups if match.group(group)), 0)))
        return min(found, default=None)

    @property
    def finished(self) -> bool:
        """See Matcher."""
        return self.inner is not None and self.inner.finished

    def end_thinking(self) -> bool:
        """See Matcher."""
        return self.inner is not None and self.inner.end_thinking()

    def fits(self, tokens: Sequence[int]) -> bool:
        """See Closable: before the trigger anything does."""
        return self.inner is None or self.inner.fits(tokens)

    def closing(self, ahead: Sequence[int] = ()) -> list[int] | None:
        """See Closable."""
        return self.inner.closing(ahead) if self.inner is not None else []
