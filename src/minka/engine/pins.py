"""Prefixes that stay in memory whatever happens, each under a name. Pure bookkeeping on `store` and `snapshots`.

Pins do not outlive the process: what they hold may be on disk as well, and is there like any other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minka.engine.snapshots import Snapshot, Snapshots
from minka.engine.store import Hit, Store
from minka.types import PinView


@dataclass(frozen=True, slots=True)
class _Pin:
    n_tokens: int
    kept: Hit | Snapshot

    @property
    def n_bytes(self) -> int:
        if isinstance(self.kept, Snapshot):
            return len(self.kept.state)
        return sum(node.block.n_bytes for node in self.kept.nodes if node.block is not None)


class Pins:
    """Law: what is pinned is in memory, all of it, and memory is within its limit of bytes."""

    def __init__(self, store: Store, snapshots: Snapshots, limit: int) -> None:
        self._store = store
        self._snapshots = snapshots
        self._limit = limit
        self._pins: dict[str, _Pin] = {}

    def hold(self, name: str, tokens: Sequence[int], salt: str, *, whole: bool) -> bool:
        """Pin what is stored of exactly `tokens`, in blocks or as a whole; an older pin of that name is let go.

        False, and nothing is changed, if not all of it is there, or if memory has no room for all that is pinned then.
        """
        kept = self._take_whole(tokens, salt) if whole else self._take_blocks(tokens, salt)
        if kept is None:
            return False
        self.drop(name)  # only now, so that what both have stays
        self._pins[name] = _Pin(len(tokens), kept)
        return True

    def _take_whole(self, tokens: Sequence[int], salt: str) -> Snapshot | None:
        entry = self._snapshots.exactly(tokens, salt)
        if entry is not None:
            entry.pins += 1
        return entry

    def _take_blocks(self, tokens: Sequence[int], salt: str) -> Hit | None:
        hit = self._store.find(tokens, salt)
        self._store.pin(hit, 1)
        # Some may be on disk only; reading them makes others give way, if there are others.
        n_read = len(self._store.load(hit, 0, hit.n))
        if hit.n == len(tokens) and n_read == len(hit.nodes) and self._store.n_bytes <= self._limit:
            return hit
        self._store.pin(hit, -1)
        return None

    def drop(self, name: str) -> bool:
        """Let go of a pin; what it held is from now on text like any other. False if there is none of that name."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        if isinstance(pin.kept, Snapshot):
            pin.kept.pins -= 1
        else:
            self._store.pin(pin.kept, -1)
        return True

    def views(self) -> tuple[PinView, ...]:
        """All pins by name."""
        return tuple(PinView(name, pin.n_tokens, pin.n_bytes) for name, pin in sorted(self._pins.items()))
