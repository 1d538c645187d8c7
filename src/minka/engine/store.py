"""What was computed once and is kept outside the KV cache: blocks of tokens with their KV rows, in a tree by tokens.

Conversations with a common stem share the blocks of it. Two tiers: memory, and under it an archive of files. Pure
bookkeeping: it knows neither libllama nor what is in a block.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import NamedTuple, Protocol

from minka.engine.prefix_cache import common_prefix
from minka.native.protocol import Block

BLOCK = 64
"""Tokens in a full block. Only a full one can have others after it."""


class Fill(NamedTuple):
    """How full a tier is: entries, tokens and bytes, and the bytes that it may have."""

    entries: int
    tokens: int
    n_bytes: int
    limit: int


class Archive(Protocol):
    """The tier below memory. Calls return at once, except `read`."""

    def write(self, node: Node) -> None:
        """Keep a node's block, some time soon; marks the node as archived if it takes it."""

    def read(self, node: Node) -> Block | None:
        """A block that was written, None if it is gone or damaged."""

    def forget(self, node: Node) -> None:
        """Delete what was written of a node."""

    def lost(self) -> Sequence[Node]:
        """Nodes it took and does not have any more, because there was no room or the disk failed. Each is told once."""

    def fill(self) -> Fill:
        """How full it is."""


@dataclass(slots=True, eq=False)
class Node:
    """A block in the tree. `block` is None while only the archive has it."""

    tokens: tuple[int, ...]
    start: int
    """Position of its first token."""
    parent: Node | None
    salt: str
    key: bytes
    """Names the block for good: a hash of all tokens up to its end, and the salt."""
    block: Block | None = None
    archived: bool = False
    pins: int = 0
    worth: float = 0.0
    """When it may be dropped, compared to others."""
    children: list[Node] = field(default_factory=list)
    """In the order of their tokens."""
    n_held: int = 0
    """Children with a block in memory."""

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.tokens)

    @property
    def usable(self) -> bool:
        """Whether its block can be had. One that cannot stays in the tree while others depend on it."""
        return self.block is not None or self.archived

    @property
    def evictable(self) -> bool:
        """Whether its block can leave memory: only the end of a branch can."""
        return self.block is not None and not self.pins and not self.n_held

    def place(self, tokens: tuple[int, ...]) -> int:
        """The index in `children` where these tokens are, or would be."""
        return bisect_left(self.children, tokens, key=_tokens)

    def exactly(self, tokens: tuple[int, ...]) -> Node | None:
        """The child with these tokens."""
        at = self.place(tokens)
        return self.children[at] if at < len(self.children) and self.children[at].tokens == tokens else None

    def closest(self, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """The usable child that begins most like `tokens`, and how many of its tokens are the same.

        In sorted order that is one of the two next to where they would be.
        """
        same = self.exactly(tokens)
        if same is not None and same.usable:
            return same, len(tokens)
        at = self.place(tokens)
        after = next((i for i in range(at, len(self.children)) if self.children[i].usable), None)
        before = next((i for i in range(at - 1, -1, -1) if self.children[i].usable), None)
        best, length = None, 0
        for node in (self.children[i] for i in (after, before) if i is not None):
            n = common_prefix(node.tokens, tokens)
            if n > length:
                best, length = node, n
        return best, length


def _tokens(node: Node) -> tuple[int, ...]:
    return node.tokens


def _key(parent: Node, tokens: tuple[int, ...]) -> bytes:
    raw = b"".join(token.to_bytes(4, "little") for token in tokens)
    return blake2b(raw, digest_size=20, key=parent.key).digest()


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored prefix of `n` tokens: all of the nodes' tokens, of the last node perhaps only the first ones."""

    n: int = 0
    nodes: tuple[Node, ...] = ()


class Store:
    """The tree, bounded to `limit` bytes of blocks in memory; a full block has `size` tokens."""

    def __init__(self, limit: int, archive: Archive | None = None, *, size: int = BLOCK) -> None:
        self._limit = limit
        self._size = size
        self._archive = archive
        self._roots: dict[str, Node] = {}
        self._clock = 0.0
        self._numbers = count()
        self._heap: list[tuple[float, int, Node]] = []
        """Every evictable node with its worth, and entries that are out of date."""
        self.n_blocks = 0
        """Blocks in memory."""
        self.n_bytes = 0
        """Bytes of blocks in memory."""
        self.n_tokens = 0
        """Tokens in memory."""

    # -- look --------------------------------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int], salt: str = "") -> Hit:
        """The longest stored prefix of `tokens` among what was stored with the same salt."""
        self._note_lost()
        tokens = tuple(tokens)
        node, n, path = self._roots.get(salt), 0, []
        while node is not None:
            node, length = node.closest(tokens[n : n + self._size])
            if node is None:
                break
            n += length
            path.append(node)
            if length < self._size:
                break
        return Hit(n, tuple(path))

    def load(self, hit: Hit, start: int, end: int) -> list[Block]:
        """The hit's blocks for positions start..end; shorter if the archive has lost one. `start` may be any position.

        The first block may begin before `start`: blocks are only cut at their end.
        """
        blocks: list[Block] = []
        for node in hit.nodes:
            if node.end <= start:
                continue
            if node.start >= end:
                break
            block = node.block or self._fetch(node)
            if block is None:
                break
            self._value(node)
            blocks.append(block.slice(min(node.end, end) - node.start))
        self._shrink()
        return blocks

    def _fetch(self, node: Node) -> Block | None:
        block = self._archive.read(node) if self._archive is not None and node.archived else None
        if block is None:
            node.archived = False
            self._prune(node)
            return None
        self._hold(node, block)
        return block

    def _note_lost(self) -> None:
        for node in self._archive.lost() if self._archive is not None else ():
            node.archived = False
            self._prune(node)

    # -- put ---------------------------------------------------------------------------------------------------------

    def missing(self, tokens: Sequence[int], salt: str = "") -> list[tuple[int, int]]:
        """The ranges of positions that have to be put to store `tokens`, in order; empty if all of it is stored."""
        hit = self.find(tokens, salt)
        whole = hit.n if hit.n == len(tokens) else hit.n - hit.n % self._size
        starts = range(whole, len(tokens), self._size)
        return [(start, min(start + self._size, len(tokens))) for start in starts]

    def put(self, tokens: Sequence[int], blocks: Sequence[Block], salt: str = "") -> None:
        """Store blocks for the ranges that `missing` named for these tokens.

        Nothing is stored if the archive has lost since what they would follow.
        """
        start = len(tokens) - sum(block.n_tokens for block in blocks)
        hit = self.find(tokens[:start], salt)
        if not blocks or hit.n < start:
            return
        for node in hit.nodes:
            self._archive_block(node)
        parent = hit.nodes[-1] if hit.nodes else self._root(salt)
        for block in blocks:
            parent = self._add(parent, tuple(tokens[start : start + block.n_tokens]))
            if parent.block is None:
                parent.archived = False  # if it was, it is behind a lost one, and perhaps lost as well
                self._hold(parent, block)
            self._archive_block(parent)
            start += block.n_tokens
        self._shrink()

    def _root(self, salt: str) -> Node:
        if salt not in self._roots:
            self._roots[salt] = Node((), 0, None, salt, blake2b(salt.encode(), digest_size=20).digest())
        return self._roots[salt]

    def _add(self, parent: Node, tokens: tuple[int, ...]) -> Node:
        """The child with these tokens, a new one if there is none; a shorter one that it continues is dropped."""
        node = parent.exactly(tokens)
        if node is None:
            shorter, length = parent.closest(tokens)
            node = Node(tokens, parent.end, parent, parent.salt, _key(parent, tokens))
            parent.children.insert(parent.place(tokens), node)
            if shorter is not None and length == len(shorter.tokens) and not shorter.pins:
                self._drop(shorter)
        return node

    def _archive_block(self, node: Node) -> None:
        if self._archive is not None and node.block is not None and not node.archived:
            self._archive.write(node)

    def adopt(self, key: str, parent: Node | None, tokens: tuple[int, ...]) -> Node | None:
        """Add a node whose block only the archive has, under a parent (None: as a first block).

        None if `key` is not the hex of its key, or if such a block cannot be in this tree.
        """
        parent = parent or self._root("")
        whole = parent.parent is None or len(parent.tokens) == self._size
        if not whole or not 0 < len(tokens) <= self._size or _key(parent, tokens).hex() != key:
            return None
        node = self._add(parent, tokens)
        node.archived = True
        return node

    # -- keep and drop -----------------------------------------------------------------------------------------------

    def pin(self, hit: Hit, by: int) -> None:
        """Keep the hit's nodes in memory whatever happens (`by` 1), or no longer (`by` -1)."""
        for node in hit.nodes:
            node.pins += by
            if not node.pins:
                self._value(node)
        self._shrink()

    def clear(self) -> int:
        """Drop everything that is not pinned, in both tiers; returns the number of blocks dropped."""
        kept: set[Node] = set()
        for pinned in self:
            node: Node | None = pinned if pinned.pins else None
            while node is not None and node not in kept:
                kept.add(node)
                node = node.parent
        nodes = [node for node in self if node not in kept]
        n_dropped = sum(node.usable for node in nodes)
        for node in reversed(nodes):
            self._drop(node)
        return n_dropped

    def __iter__(self) -> Iterator[Node]:
        """All nodes, parents before their children. The tree must not change meanwhile."""
        left = list(self._roots.values())
        while left:
            node = left.pop()
            left += node.children
            if node.parent is not None:
                yield node

    def _hold(self, node: Node, block: Block) -> None:
        node.block = block
        self._count(node, block, 1)
        self._value(node)

    def _release(self, node: Node) -> None:
        """Take a node's block out of memory. The one before it may be the next that can go."""
        if node.block is not None:
            block, node.block = node.block, None
            self._count(node, block, -1)
            if node.parent is not None:
                self._offer(node.parent)

    def _count(self, node: Node, block: Block, by: int) -> None:
        self.n_blocks += by
        self.n_bytes += by * block.n_bytes
        self.n_tokens += by * block.n_tokens
        if node.parent is not None:
            node.parent.n_held += by

    def _value(self, node: Node) -> None:
        """GreedyDual (Young 1994): worth is the cost to compute it again per byte, on top of what was dropped last.

        Blocks have equal sizes, and a later one costs more, because its tokens attend to all before them.
        """
        node.worth = self._clock + 1.0 + node.start / 4096
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Enter a node into the heap if it can be evicted."""
        if not node.evictable:
            return
        heapq.heappush(self._heap, (node.worth, next(self._numbers), node))
        if len(self._heap) > 2 * self.n_blocks + 64:
            nodes = dict.fromkeys(node for _, _, node in self._heap if node.evictable)
            self._heap = [(node.worth, next(self._numbers), node) for node in nodes]
            heapq.heapify(self._heap)

    def _shrink(self) -> None:
        """Drop the least worthy blocks until memory is within its limit."""
        while self.n_bytes > self._limit and self._heap:
            worth, _, node = heapq.heappop(self._heap)
            if worth == node.worth and node.evictable:  # else it is gone already, or was used since
                self._clock = max(self._clock, worth)
                self._release(node)
                self._prune(node)

    def _drop(self, node: Node) -> None:
        """Forget a node without children in both tiers."""
        self._release(node)
        if node.archived and self._archive is not None:
            self._archive.forget(node)
        node.archived = False
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Take a node out of the tree that is not usable and leads nowhere, and those above it that led to it only."""
        while not node.usable and not node.children:
            parent = node.parent
            if parent is None:
                if self._roots.get(node.salt) is node:
                    del self._roots[node.salt]
                return
            if parent.exactly(node.tokens) is not node:
                return  # it was out already
            del parent.children[parent.place(node.tokens)]
            node = parent
