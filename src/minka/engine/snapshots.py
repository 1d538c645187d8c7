"""Whole states of sequences, for models whose memory cannot be cut: recurrent, hybrid, sliding-window ones.

A snapshot serves a prompt that begins with all of its tokens. Knows nothing of what is in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state of a sequence that holds exactly these tokens."""

    tokens: tuple[int, ...]
    salt: str
    state: bytes
    pins: int = 0

    def begins(self, tokens: tuple[int, ...]) -> bool:
        """Whether `tokens` begin with all of its own."""
        n = len(self.tokens)
        return n <= len(tokens) and self.tokens[-1:] == tokens[n - 1 : n] and self.tokens == tokens[:n]


class Snapshots:
    """The most recently used snapshots: at most `limit` bytes and `count` of them. Pinned ones stay."""

    def __init__(self, limit: int, count: int) -> None:
        self._limit = limit
        self._count = count
        self._entries: list[Snapshot] = []
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def n_tokens(self) -> int:
        """Tokens of all snapshots."""
        return sum(len(entry.tokens) for entry in self._entries)

    def find(self, tokens: Sequence[int], salt: str = "") -> Snapshot | None:
        """The longest snapshot whose tokens all begin `tokens`."""
        begun = tuple(tokens)
        fitting = (entry for entry in self._entries if entry.salt == salt and entry.begins(begun))
        return max(fitting, key=lambda entry: len(entry.tokens), default=None)

    def exactly(self, tokens: Sequence[int], salt: str = "") -> Snapshot | None:
        """The snapshot of exactly these tokens."""
        wanted = tuple(tokens)
        return next((entry for entry in self._entries if entry.salt == salt and entry.tokens == wanted), None)

    def touch(self, entry: Snapshot) -> None:
        """Count a snapshot as used."""
        self._entries.remove(entry)
        self._entries.append(entry)

    def put(self, tokens: Sequence[int], state: bytes, salt: str = "") -> None:
        """Keep a snapshot; the ones that were not used for longest make room for it."""
        if len(state) > self._limit or not self._count:
            return
        self._entries.append(Snapshot(tuple(tokens), salt, state))
        self.n_bytes += len(state)
        while self.n_bytes > self._limit or len(self._entries) > self._count:
            self._remove(next(entry for entry in self._entries if not entry.pins))

    def clear(self) -> int:
        """Drop all that are not pinned; returns how many there were."""
        dropped = [entry for entry in self._entries if not entry.pins]
        for entry in dropped:
            self._remove(entry)
        return len(dropped)

    def _remove(self, entry: Snapshot) -> None:
        self._entries.remove(entry)
        self.n_bytes -= len(entry.state)
