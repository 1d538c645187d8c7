"""What was computed once and is kept outside the KV cache: blocks of tokens with their KV rows, in a tree by tokens.

Conversations with a common stem share the blocks of it. Two tiers: memory, and under it an archive of files. Pure
bookkeeping: it knows neither libllama nor what is in a block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Protocol

from minka.engine.prefix_cache import common_prefix
from minka.native.protocol import Block

BLOCK = 64
"""Tokens in a full block. Only a full one can have others after it."""


class Archive(Protocol):
    """The tier below memory. Calls return at once, except `read`."""

    def write(self, node: Node) -> None:
        """Keep a node's block, some time soon."""

    def read(self, node: Node) -> Block | None:
        """A block that was written, None if it is gone or damaged."""

    def forget(self, node: Node) -> None:
        """Delete what was written of a node."""


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
    children: dict[int, list[Node]] = field(default_factory=dict)
    """By first token."""

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.tokens)

    @property
    def usable(self) -> bool:
        """Whether its block can be had. One that cannot stays in the tree while others depend on it."""
        return self.block is not None or self.archived

    @property
    def n_bytes(self) -> int:
        """Memory that its block takes."""
        return self.block.n_bytes if self.block is not None else 0

    def child(self, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """The child that begins most like `tokens`, and how many of its tokens are the same."""
        best, length = None, 0
        for node in self.children.get(tokens[0], ()) if tokens else ():
            n = common_prefix(node.tokens, tokens)
            if n > length:
                best, length = node, n
        return best, length


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
        self.n_bytes = 0
        """Bytes of blocks in memory."""
        self.n_tokens = 0
        """Tokens in memory."""

    # -- look --------------------------------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int], salt: str = "") -> Hit:
        """The longest stored prefix of `tokens` among what was stored with the same salt."""
        tokens = tuple(tokens)
        node, n, path = self._roots.get(salt), 0, []
        while node is not None:
            node, length = node.child(tokens[n : n + self._size])
            if node is None or not node.usable:
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
        return blocks

    def _fetch(self, node: Node) -> Block | None:
        block = self._archive.read(node) if self._archive is not None and node.archived else None
        if block is None:
            node.archived = False
            self._prune(node)
            return None
        self._hold(node, block)
        return block

    # -- put ---------------------------------------------------------------------------------------------------------

    def missing(self, tokens: Sequence[int], salt: str = "") -> list[tuple[int, int]]:
        """The ranges of positions that have to be put to store `tokens`, in order; empty if all of it is stored."""
        hit = self.find(tokens, salt)
        whole = hit.n if hit.n == len(tokens) else hit.n - hit.n % self._size
        starts = range(whole, len(tokens), self._size)
        return [(start, min(start + self._size, len(tokens))) for start in starts]

    def put(self, tokens: Sequence[int], blocks: Sequence[Block], salt: str = "") -> None:
        """Store blocks for the ranges that `missing` named for these tokens."""
        parent = self._root(salt)
        start = len(tokens) - sum(block.n_tokens for block in blocks)
        for node in self.find(tokens[:start], salt).nodes:
            parent = node
        for block in blocks:
            parent = self._add(parent, tuple(tokens[start : start + block.n_tokens]), block)
            start += block.n_tokens
        self._shrink()

    def _root(self, salt: str) -> Node:
        if salt not in self._roots:
            self._roots[salt] = Node((), 0, None, salt, blake2b(salt.encode(), digest_size=20).digest())
        return self._roots[salt]

    def _add(self, parent: Node, tokens: tuple[int, ...], block: Block | None) -> Node:
        """A new child; a shorter one that it continues is not needed any more."""
        siblings = parent.children.setdefault(tokens[0], [])
        for other in [node for node in siblings if tokens[: len(node.tokens)] == node.tokens]:
            if other.tokens == tokens:
                return self._fill(other, block)
            if not other.pins:
                self._remove(other)
        raw = b"".join(token.to_bytes(4, "little") for token in tokens)
        key = blake2b(raw, digest_size=20, key=parent.key).digest()
        node = Node(tokens, parent.end, parent, parent.salt, key)
        parent.children.setdefault(tokens[0], []).append(node)
        return self._fill(node, block)

    def _fill(self, node: Node, block: Block | None) -> Node:
        """Give a node its block, if it has none in memory yet."""
        if block is not None and node.block is None:
            self._hold(node, block)
            if self._archive is not None:
                self._archive.write(node)
        return node

    def adopt(self, parent: Node | None, tokens: tuple[int, ...], salt: str) -> Node:
        """Add a node whose block only the archive has, under a parent (None: as a first block)."""
        node = self._add(parent or self._root(salt), tokens, None)
        node.archived = True
        return node

    # -- keep and drop -----------------------------------------------------------------------------------------------

    def pin(self, hit: Hit, by: int) -> None:
        """Keep the hit's nodes in memory whatever happens (`by` 1), or no longer (`by` -1)."""
        for node in hit.nodes:
            node.pins += by
            if not node.pins:
                self._value(node)

    def clear(self) -> int:
        """Drop everything that is not pinned, in both tiers; returns the number of blocks dropped."""
        nodes = [node for node in self if not node.pins and not any(child.pins for child in _below(node))]
        for node in reversed(nodes):
            self._remove(node)
        return len(nodes)

    def __iter__(self) -> Iterator[Node]:
        """All nodes, parents before their children."""
        for root in self._roots.values():
            yield from _below(root)

    def _hold(self, node: Node, block: Block) -> None:
        node.block = block
        self.n_bytes += block.n_bytes
        self.n_tokens += block.n_tokens
        self._value(node)

    def _value(self, node: Node) -> None:
        """GreedyDual (Young 1994): worth is the cost to compute it again per byte, on top of what was dropped last.

        Blocks have equal sizes, and a later one costs more, because its tokens attend to all before them.
        """
        node.worth = self._clock + 1.0 + node.start / 4096
        heapq.heappush(self._heap, (node.worth, next(self._numbers), node))

    def _shrink(self) -> None:
        """Drop the least worthy blocks until memory is within its limit; only the ends of branches can go."""
        kept = []
        while self.n_bytes > self._limit and self._heap:
            worth, number, node = heapq.heappop(self._heap)
            if node.block is None or worth != node.worth:
                continue  # gone already, or used since
            if node.pins or self._holds_below(node):
                kept.append((worth, number, node))
                continue
            self._clock = worth
            self._evict(node)
        for entry in kept:
            heapq.heappush(self._heap, entry)

    @staticmethod
    def _holds_below(node: Node) -> bool:
        return any(child.block is not None for children in node.children.values() for child in children)

    def _evict(self, node: Node) -> None:
        self._release(node)
        if not node.archived:
            self._prune(node)

    def _release(self, node: Node) -> None:
        self.n_bytes -= node.n_bytes
        self.n_tokens -= len(node.tokens) if node.block is not None else 0
        node.block = None

    def _remove(self, node: Node) -> None:
        """Forget a node in both tiers, with everything under it."""
        for child in reversed([*_below(node)]):
            self._drop(child)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        self._release(node)
        if node.archived and self._archive is not None:
            self._archive.forget(node)
        node.archived = False
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Take a node without block and children out of the tree."""
        if node.parent is None or node.block is not None or node.archived or node.children:
            return
        siblings = node.parent.children[node.tokens[0]]
        if node in siblings:
            siblings.remove(node)
            if not siblings:
                del node.parent.children[node.tokens[0]]


def _below(node: Node) -> Iterator[Node]:
    """All nodes under one, parents first."""
    for children in list(node.children.values()):
        for child in list(children):
            yield child
            yield from _below(child)
