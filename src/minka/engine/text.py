"""From token bytes to text that may be shown: never half a character, never a stop string nor a part of one.

Knows nothing of tokens or models. The result does not depend on how the bytes were cut into pieces.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string found in the text, `start` counted in the part not shown yet."""

    start: int
    word: str


class TextStream:
    """Takes the bytes of one token after another and says what text is safe to show.

    Of several stop strings the one that starts first in the text wins; of two that start together, the shorter.
    With `n_indent` over 0 the text ends in front of the first character that is no space or tab in a line that has
    fewer of these before it; so an empty line ends it. Its first line only goes on another one, and may begin anyhow.
    """

    def __init__(self, stop: tuple[str, ...] = (), n_indent: int = 0) -> None:
        self._stop = tuple(word for word in stop if word)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stop_word = ""
        """The stop string that ended the text, empty so far."""
        self._n_indent = n_indent
        self._indent: int | None = None
        """Spaces and tabs of the line so far, None once it has anything else (and in the first line)."""
        self.outdented = False
        """Whether a line with too little before it ended the text; nothing more should be fed then."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing more should be fed then."""
        return bool(self.stop_word)

    def feed(self, piece: bytes) -> str:
        """Add a token's bytes; returns the text that became safe to show, often empty."""
        self._held += self._decoder.decode(piece)
        match, partial = self._match(), self._partial()
        if match and match.start <= partial:
            return self._indented(self._end(match))
        # Something from `partial` on may become a stop string that starts before any complete one.
        shown, self._held = self._held[:partial], self._held[partial:]
        return self._indented(shown)

    def flush(self) -> str:
        """The end of the text: what was withheld and is no stop string. An unfinished character becomes U+FFFD."""
        if self.outdented:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        if match := self._match():
            return self._indented(self._end(match))
        shown, self._held = self._held, ""
        return self._indented(shown)

    def _indented(self, shown: str) -> str:
        """The text up to where a line ends it that is indented too little."""
        if not self._n_indent:
            return shown
        for index, character in enumerate(shown):
            if self._indent is not None and character in " \t":
                self._indent += 1
            elif self._indent is not None and self._indent < self._n_indent:
                self.outdented, self.stop_word, self._held = True, "", ""
                return shown[:index]
            else:
                self._indent = 0 if character == "\n" else None
        return shown

    def _end(self, match: Match) -> str:
        shown, self._held = self._held[: match.start], ""
        self.stop_word = match.word
        return shown

    def _match(self) -> Match | None:
        """The stop string that starts first; the shorter of two with one start."""
        found = [Match(start, word) for word in self._stop if (start := self._held.find(word)) >= 0]
        return min(found, key=lambda match: (match.start, len(match.word)), default=None)

    def _partial(self) -> int:
        """Where the earliest text starts that could still become a stop string; the end if there is none."""
        return min((self._partial_of(word) for word in self._stop), default=len(self._held))

    def _partial_of(self, word: str) -> int:
        size = len(self._held)
        for length in range(min(len(word) - 1, size), 0, -1):
            if self._held.endswith(word[:length]):
                return size - length
        return size
