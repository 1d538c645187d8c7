"""The tiers under the KV cache: keeps the text of sequences that lose their cells, and brings it back.

It carries out what `store` and `snapshots` find, on the backend. The caller keeps its ledgers equal to what it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from minka.engine.prefix_cache import MIN_SHARED
from minka.engine.snapshots import Snapshots
from minka.engine.store import BLOCK, Archive, Store
from minka.native.protocol import Backend

log = logging.getLogger("minka.engine")


@dataclass(frozen=True, slots=True)
class Recalled:
    """A sequence after memory was asked: `kept` positions it had before, and its `length` now."""

    kept: int
    length: int


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """`limit`: bytes for kept states, 0 for none. `step`: tokens between two snapshots of a model that needs them, 0
    for none but at the end of a prompt. `n_snapshots`: the most of them. `clear_idle`: idle text gives its cells back
    when a request starts. `block`: tokens in a full block."""

    limit: int = 0
    step: int = 8192
    n_snapshots: int = 256
    clear_idle: bool = True
    block: int = BLOCK


class Memory:
    """Kept states of one backend. Only the engine's thread uses it."""

    def __init__(self, backend: Backend, config: MemoryConfig, archive: Archive | None = None) -> None:
        self._backend = backend
        self._config = config
        self.store = Store(config.limit, archive, size=config.block)
        self.snapshots = Snapshots(config.limit, config.n_snapshots)

    @property
    def clears_idle(self) -> bool:
        """Whether idle text moves here when a request starts."""
        return self.enabled and self._config.clear_idle

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._config.limit > 0

    def known(self, tokens: Sequence[int], salt: str) -> int:
        """How many leading tokens could be brought back."""
        if not self.enabled:
            return 0
        if self._backend.sliceable:
            return self.store.find(tokens, salt).n
        entry = self.snapshots.find(tokens, salt)
        return len(entry.tokens) if entry is not None else 0

    def recall(self, seq: int, tokens: Sequence[int], salt: str) -> Recalled:
        """Bring back all that is known of `tokens`, of which the sequence may hold a shorter prefix already.

        In the split layout it must hold nothing.
        """
        recalled = self._insert if self._backend.sliceable else self._restore
        return recalled(seq, tokens, salt)

    def _insert(self, seq: int, tokens: Sequence[int], salt: str) -> Recalled:
        hit = self.store.find(tokens, salt)
        start = self._backend.length(seq) if self._backend.kv_unified else 0
        blocks = self.store.load(hit, start, hit.n)
        if blocks:
            self._backend.insert(seq, blocks)
        kept = blocks[0].start if blocks else self._backend.length(seq)
        return Recalled(kept, self._backend.length(seq))

    def _restore(self, seq: int, tokens: Sequence[int], salt: str) -> Recalled:
        entry = self.snapshots.find(tokens, salt)
        if entry is None:  # what was kept since it was found has taken its place
            return Recalled(self._backend.length(seq), self._backend.length(seq))
        self.snapshots.touch(entry)
        self._backend.restore(seq, entry.state)
        return Recalled(0, self._backend.length(seq))

    def keep(self, seq: int, tokens: Sequence[int], salt: str) -> None:
        """Keep what the sequence holds, which is exactly `tokens`."""
        if not self.enabled or len(tokens) < MIN_SHARED:
            return
        if not self._backend.sliceable:
            if not self.snapshots.has(tokens, salt):
                self.snapshots.put(tokens, self._backend.save(seq), salt)
        elif ranges := self.store.missing(tokens, salt):
            self.store.put(tokens, self._backend.extract(seq, ranges), salt)

    def is_due(self, n_past: int, n_before: int) -> bool:
        """Whether a sequence that grew from `n_before` to `n_past` positions needs a snapshot on the way."""
        step = self._config.step
        return self.enabled and not self._backend.sliceable and step > 0 and n_past // step > n_before // step
