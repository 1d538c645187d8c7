"""The tiers under the KV cache: keeps the text of sequences that lose their cells, and brings it back.

It carries out what `store` and `snapshots` find, on the backend. The caller keeps its ledgers equal to what it is told.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from minka.engine.pins import Pins
from minka.engine.prefix_cache import MIN_SHARED
from minka.engine.snapshots import Snapshots
from minka.engine.store import BLOCK, Archive, Store
from minka.errors import RequestError
from minka.native.protocol import Backend, Block
from minka.types import PinView, TierView

log = logging.getLogger("minka.engine")


@dataclass(frozen=True, slots=True)
class Found:
    """What memory holds of a text: blocks up to position `n`, or a state of exactly `n` positions.

    It stays whole whatever memory drops meanwhile.
    """

    n: int
    blocks: tuple[Block, ...] = ()
    state: bytes = b""
    n_disk: int = 0
    """Those of the blocks' positions that were on disk only."""

    @property
    def start(self) -> int:
        """The first position that it brings."""
        return self.blocks[0].start if self.blocks else 0


@dataclass(slots=True)
class Served:
    """What a tier was good for: how often, and how many tokens."""

    hits: int = 0
    tokens: int = 0

    def add(self, n: int) -> None:
        """It brought back `n` tokens."""
        self.hits += n > 0
        self.tokens += n


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
        self._archive = archive
        self._pins = Pins(self.store, self.snapshots, config.limit)
        self._ram, self._disk = Served(), Served()

    @property
    def clears_idle(self) -> bool:
        """Whether idle text moves here when a request starts."""
        return self.enabled and self._config.clear_idle

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._config.limit > 0

    @property
    def in_blocks(self) -> bool:
        """Whether states are kept, and in blocks. Without memory nobody found out whether they could be."""
        return self.enabled and self._backend.sliceable

    def known(self, tokens: Sequence[int], salt: str) -> int:
        """How many leading tokens could be brought back."""
        if not self.enabled:
            return 0
        if self._backend.sliceable:
            return self.store.find(tokens, salt).n
        entry = self.snapshots.find(tokens, salt)
        return len(entry.tokens) if entry is not None else 0

    def fetch(self, tokens: Sequence[int], salt: str, start: int) -> Found:
        """Take out what is known of `tokens` from position `start` on, for `recall`; it may take a read from disk."""
        if not self._backend.sliceable:
            entry = self.snapshots.find(tokens, salt)
            if entry is None:
                return Found(0)
            self.snapshots.touch(entry)
            return Found(len(entry.tokens), state=entry.state)
        hit = self.store.find(tokens, salt)
        cold = [node.block is None for node in hit.nodes if node.end > start]
        blocks = self.store.load(hit, start, hit.n)
        n_disk = sum(block.n_tokens for block, was_cold in zip(blocks, cold, strict=False) if was_cold)
        return Found(blocks[-1].start + blocks[-1].n_tokens if blocks else 0, tuple(blocks), n_disk=n_disk)

    def recall(self, seq: int, found: Found) -> bool:
        """Bring back what was fetched, behind the first `found.start` positions of a sequence that holds just those.

        In the split layout it must hold nothing. False if there was no room; the sequence is as it was then.
        """
        if found.blocks:
            return self._backend.insert(seq, found.blocks)
        return self._backend.restore(seq, found.state)

    def keep(self, seq: int, tokens: Sequence[int], salt: str) -> None:
        """Keep what the sequence holds, which is exactly `tokens`."""
        if not self.enabled or len(tokens) < MIN_SHARED:
            return
        if not self._backend.sliceable:
            if entry := self.snapshots.exactly(tokens, salt):
                self.snapshots.touch(entry)
            else:
                self.snapshots.put(tokens, self._backend.save(seq), salt)
        elif ranges := self.store.missing(tokens, salt):
            self.store.put(tokens, self._backend.extract(seq, ranges), salt)

    def is_due(self, n_past: int, n_before: int) -> bool:
        """Whether a sequence that grew from `n_before` to `n_past` positions needs a snapshot on the way."""
        step = self._config.step
        return self.enabled and not self._backend.sliceable and step > 0 and n_past // step > n_before // step

    # -- control -----------------------------------------------------------------------------------------------------

    def note_served(self, found: Found, n: int) -> None:
        """Count `n` positions that a sequence gained by what was fetched; those from the disk come last."""
        n_disk = min(found.n_disk, n)
        self._disk.add(n_disk)
        self._ram.add(n - n_disk)

    def pin(self, name: str, seq: int, tokens: Sequence[int], salt: str) -> None:
        """Keep what the sequence holds, which is exactly `tokens`, until it is unpinned; a name has one pin.

        Raises RequestError if memory has no room for it beside what is pinned already.
        """
        for _ in range(2):  # the disk may turn out to have lost a part, which is then kept anew
            self.keep(seq, tokens, salt)
            if self._pins.hold(name, tokens, salt, whole=not self._backend.sliceable):
                return
        raise RequestError(
            f"{len(tokens)} tokens cannot be pinned: memory (--cache-ram) has no room for them beside what is pinned"
        )

    def unpin(self, name: str) -> bool:
        """Let go of a pin; False if there is none of that name."""
        return self._pins.drop(name)

    def clear(self) -> int:
        """Drop all that is not pinned, on disk, too; returns the number of blocks and states."""
        return self.store.clear() + self.snapshots.clear()

    def pins(self) -> tuple[PinView, ...]:
        """What is pinned, by name."""
        return self._pins.views()

    def tiers(self) -> tuple[TierView, ...]:
        """How full memory is, and the disk if there is one, and what they were good for."""
        ram = TierView(
            name="ram",
            entries=self.store.n_blocks + len(self.snapshots),
            tokens=self.store.n_tokens + self.snapshots.n_tokens,
            n_bytes=self.store.n_bytes + self.snapshots.n_bytes,
            limit=self._config.limit if self._config.limit < sys.maxsize else None,
            hits=self._ram.hits,
            served=self._ram.tokens,
        )
        if self._archive is None:
            return (ram,)
        fill = self._archive.fill()
        disk = TierView("disk", *fill, hits=self._disk.hits, served=self._disk.tokens)
        return ram, disk
