"""The tree of kept blocks: it finds the longest stored text, stays within its limit, and drops the right things.

A state machine compares it with a table of all stored texts; the rest are the cases that such a tree gets wrong.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Sequence
from heapq import heappop
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minka.engine import store as module
from minka.engine.store import Fill, Hit, Node, Store
from minka.native.protocol import Block
from tests.fakes import FakeBlock, digest

TOKEN = 4
"""Bytes of a `FakeBlock` a token."""
UNLIMITED = 1 << 40


class DictArchive:
    """An archive that loses blocks when it is told to."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.nodes: dict[bytes, Node] = {}
        self.gone: list[Node] = []
        self.reads = 0

    def write(self, node: Node) -> None:
        assert not node.archived
        if not node.salt and node.block is not None:
            node.archived = True
            self.blocks[node.key], self.nodes[node.key] = node.block, node

    def read(self, node: Node) -> Block | None:
        self.reads += 1
        return self.blocks.get(node.key)

    def forget(self, node: Node) -> None:
        self.blocks.pop(node.key, None)
        self.nodes.pop(node.key, None)

    def lost(self) -> Sequence[Node]:
        gone, self.gone = self.gone, []
        return gone

    def fill(self) -> Fill:
        n_bytes = sum(block.n_bytes for block in self.blocks.values())
        return Fill(len(self.blocks), n_bytes // TOKEN, n_bytes, UNLIMITED)

    def lose(self, index: int, *, told: bool) -> None:
        """Lose one of the blocks, with or without telling."""
        if self.nodes:
            node = list(self.nodes.values())[index % len(self.nodes)]
            self.forget(node)
            if told:
                self.gone.append(node)


def text_of(node: Node | None) -> tuple[int, ...]:
    """All tokens up to a node's end."""
    return text_of(node.parent) + node.tokens if node is not None else ()


def blocks_of(tokens: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[FakeBlock]:
    """What a backend that holds `tokens` would extract."""
    return [FakeBlock(start, digest(tokens[:start]), tuple(tokens[start:end])) for start, end in ranges]


def keep(store: Store, tokens: Sequence[int], salt: str = "") -> int:
    """Store a text as `Memory.keep` does; returns how many tokens had to be computed for it."""
    ranges = store.missing(tokens, salt)
    store.put(tokens, blocks_of(tokens, ranges), salt)
    return sum(end - start for start, end in ranges)


def recall(store: Store, tokens: Sequence[int], start: int = 0, salt: str = "") -> tuple[int, ...]:
    """Load what is known of a text from `start` on, and check that it is right; the tokens that are had then."""
    blocks = store.load(hit := store.find(tokens, salt), start, hit.n)
    held = list(tokens[: blocks[0].start]) if blocks else []
    for block in blocks:
        assert isinstance(block, FakeBlock)
        assert block.start == len(held)
        assert block.before == digest(held), "a block was found behind other tokens than it was computed behind"
        held += block.tokens
    assert held == list(tokens[: len(held)])
    return tuple(held)


def check(store: Store, limit: int = UNLIMITED) -> None:
    """The laws of the tree."""
    nodes = list(store)
    held = [node for node in nodes if node.block is not None]
    assert store.n_blocks == len(held)
    assert store.n_bytes == sum(node.block.n_bytes for node in held if node.block is not None)
    assert store.n_tokens == sum(len(node.tokens) for node in held)
    assert store.n_bytes <= limit or not any(node.evictable for node in held)
    assert len({node.key for node in nodes}) == len(nodes)
    assert set(store._roots) == {node.salt for node in nodes}, "a root without anything below it stays"
    entries = {(worth, node) for worth, _, node in store._heap}
    assert all((node.worth, node) in entries for node in held if node.evictable), "a block that nothing can evict"
    assert len(store._heap) <= 2 * store.n_blocks + 66
    for node in nodes:
        assert node.parent is not None
        assert node in node.parent.children
        assert node.start == node.parent.end
        assert node.block is None or (node.block.start, node.block.n_tokens) == (node.start, len(node.tokens))
        assert node.usable or node.children, "a dead node stays in the tree"
        assert node.n_held == sum(child.block is not None for child in node.children)
        assert [child.tokens for child in node.children] == sorted(child.tokens for child in node.children)
        assert not node.children or len(node.tokens) == store._size, "a block behind one that is not full"


def naive(store: Store, tokens: Sequence[int], salt: str) -> int:
    """`find` from its definition: the longest beginning whose every block can be had."""
    table = {text_of(node): node.usable for node in store if node.salt == salt}
    best = 0
    for text in (text for text, usable in table.items() if usable):
        size = store._size
        if all(table.get(text[:end], False) for end in range(size, len(text), size)):
            n = next((i for i, (a, b) in enumerate(zip(text, tokens, strict=False)) if a != b), None)
            best = max(best, min(len(text), len(tokens)) if n is None else n)
    return best


class StoreMachine(RuleBasedStateMachine):
    """Texts of few tokens, so that many share beginnings; a full block has 3 tokens."""

    texts = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)
    salts = st.sampled_from(("", "", "", "salt"))

    @initialize(limit=st.sampled_from((0, 3 * TOKEN, 20 * TOKEN, UNLIMITED)), archived=st.booleans())
    def start(self, limit: int, archived: bool) -> None:
        self.limit, self.archive = limit, DictArchive() if archived else None
        self.store = Store(limit, self.archive, size=3)
        self.stored: set[tuple[str, tuple[int, ...]]] = set()
        """All texts, while nothing of them can be missing."""
        self.complete = True
        self.pinned: list[Hit] = []

    def evicting(self, change: Callable[[], object]) -> None:
        """A change may take only ends of branches out of memory, and none that are pinned."""
        before = {node for node in self.store if node.block is not None}
        change()
        gone = {node for node in before if node.block is None}
        for node in gone:
            assert not node.pins
            assert not any(child in before and child.block is not None for child in node.children)

    @rule(tokens=texts, salt=salts)
    def put(self, tokens: tuple[int, ...], salt: str) -> None:
        missing = self.store.missing(tokens, salt)
        found = self.store.find(tokens, salt).n
        if found == len(tokens):
            assert missing == []
        else:
            assert missing[0][0] == found - found % 3
            assert [start for start, _ in missing[1:]] == [end for _, end in missing[:-1]]
            assert missing[-1][1] == len(tokens)
            assert all(end - start == 3 for start, end in missing[:-1])
        self.evicting(lambda: self.store.put(tokens, blocks_of(tokens, missing), salt))
        self.complete = self.complete and self.limit == UNLIMITED
        self.stored.add((salt, tokens))
        if self.limit == UNLIMITED or (self.archive and not salt):
            assert self.store.find(tokens, salt).n == len(tokens), "what was put is not there"
            assert self.store.missing(tokens, salt) == []

    @rule(tokens=texts, salt=salts, start=st.integers(0, 14))
    def load(self, tokens: tuple[int, ...], salt: str, start: int) -> None:
        known = self.store.find(tokens, salt).n
        sound = all(node.block or (self.archive and node.key in self.archive.blocks) for node in self.store)
        self.evicting(lambda: recall(self.store, tokens, min(start, known), salt))
        if sound and start < known:
            assert len(recall(self.store, tokens, start, salt)) == known

    @rule(tokens=texts, salt=salts)
    def pin(self, tokens: tuple[int, ...], salt: str) -> None:
        self.pinned.append(self.store.find(tokens, salt))
        self.evicting(lambda: self.store.pin(self.pinned[-1], 1))

    @precondition(lambda self: self.pinned)
    @rule(index=st.integers(0, 100))
    def unpin(self, index: int) -> None:
        self.evicting(lambda: self.store.pin(self.pinned.pop(index % len(self.pinned)), -1))

    @rule(index=st.integers(0, 100), told=st.booleans())
    def lose(self, index: int, told: bool) -> None:
        if self.archive is not None:
            self.archive.lose(index, told=told)
            self.complete = False

    @rule()
    def clear(self) -> None:
        pinned = {node for hit in self.pinned for node in hit.nodes if node.block is not None}
        n_usable = sum(node.usable for node in self.store)
        dropped = self.store.clear()
        assert dropped + sum(node.usable for node in self.store) == n_usable
        left = set(self.store)
        assert all(node in left for node in pinned)
        assert all(node.pins or node.children for node in left), "something stayed that nobody pinned"
        self.complete = self.complete and not self.stored

    @rule(limit=st.sampled_from((0, 20 * TOKEN, UNLIMITED)))
    def restart(self, limit: int) -> None:
        """A new store learns of what the archive has, in no order but parents first."""
        if self.archive is None:
            return
        old, self.limit, self.pinned = self.archive, limit, []
        self.archive = DictArchive()
        self.store = Store(limit, self.archive, size=3)
        adopted: dict[bytes, Node] = {}
        for key, node in sorted(old.nodes.items(), key=lambda pair: pair[1].start):
            assert node.parent is not None
            root = node.parent.parent is None
            if root or node.parent.key in adopted:
                parent = None if root else adopted[node.parent.key]
                new = self.store.adopt(key.hex(), parent, node.tokens)
                assert new is not None
                assert new.key == key
                adopted[key] = self.archive.nodes[key] = new
                self.archive.blocks[key] = old.blocks[key]
        self.stored = {(salt, tokens) for salt, tokens in self.stored if not salt}
        self.complete = False

    @rule(tokens=texts, salt=salts)
    def find(self, tokens: tuple[int, ...], salt: str) -> None:
        hit = self.store.find(tokens, salt)
        assert hit.n == naive(self.store, tokens, salt)
        assert sum(len(node.tokens) for node in hit.nodes[:-1]) <= hit.n
        assert text_of(hit.nodes[-1] if hit.nodes else None)[: hit.n] == tokens[: hit.n]
        upper = max((common(text, tokens) for other, text in self.stored if other == salt), default=0)
        assert hit.n <= upper, "a text was found that nobody stored with this salt"
        if self.complete:
            assert hit.n == upper

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "store"):
            check(self.store, self.limit)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# -- texts -----------------------------------------------------------------------------------------------------------


def test_an_empty_store_knows_nothing() -> None:
    store = Store(100)
    assert store.find((1, 2)) == Hit()
    assert store.find(()) == Hit()
    assert store.missing(()) == []
    assert store.load(Hit(), 0, 0) == []
    store.put((), [])
    assert store.clear() == 0
    check(store, 100)


def test_a_text_that_grows_replaces_its_last_block_only() -> None:
    store = Store(UNLIMITED, size=4)
    text = tuple(range(11))
    assert keep(store, text[:6]) == 6
    assert keep(store, text) == 11 - 4  # the block of 2 is computed again as a part of a full one
    assert [text_of(node) for node in store] == [text[:4], text[:8], text]
    assert keep(store, text) == 0
    assert keep(store, text[:9]) == 0  # a beginning of it needs no block of its own
    check(store)


def test_a_grown_text_takes_its_old_end_out_of_the_archive() -> None:
    archive = DictArchive()
    store = Store(UNLIMITED, archive, size=4)
    keep(store, range(6))
    keep(store, range(7))
    assert [node.tokens for node in archive.nodes.values()] == [(0, 1, 2, 3), (4, 5, 6)]


def test_two_ends_of_the_same_stem_both_stay() -> None:
    store = Store(UNLIMITED, size=4)
    keep(store, (1, 2, 3, 4, 5, 6))
    keep(store, (1, 2, 3, 4, 5, 7))
    assert store.find((1, 2, 3, 4, 5, 6, 9)).n == 6
    assert store.find((1, 2, 3, 4, 5, 7, 9)).n == 6
    assert store.find((1, 2, 3, 4, 5, 8)).n == 5
    assert store.n_tokens == 4 + 2 + 2
    check(store)


def test_salts_share_nothing() -> None:
    store = Store(UNLIMITED, DictArchive(), size=4)
    for salt in ("", "a", "b"):
        assert keep(store, range(10), salt) == 10
    assert len({node.key for node in store}) == 9
    assert store.find(range(10), "c").n == 0
    assert [node.archived for node in store if node.salt] == [False] * 6
    check(store)


def test_a_pinned_end_stays_when_a_longer_one_comes() -> None:
    store = Store(UNLIMITED, size=4)
    keep(store, range(6))
    store.pin(pinned := store.find(range(6)), 1)
    keep(store, range(8))
    assert recall(store, range(8)) == tuple(range(8))
    assert pinned.nodes[-1].block is not None
    check(store)
    store.pin(pinned, -1)
    assert store.clear() == 3
    check(store)


def test_blocks_that_would_follow_a_gap_are_not_stored() -> None:
    """Between `missing` and `put` the archive may lose what the new blocks would follow."""
    archive = DictArchive()
    store = Store(0, archive, size=4)
    keep(store, range(8))
    ranges = store.missing(range(12))
    assert ranges == [(8, 12)]
    archive.lose(1, told=True)
    store.put(range(12), blocks_of(range(12), ranges))
    assert store.find(range(12)).n == 4
    assert [text_of(node) for node in store] == [(0, 1, 2, 3)]
    assert keep(store, range(12)) == 8
    assert store.find(range(12)).n == 12
    check(store, 0)


# -- archive ---------------------------------------------------------------------------------------------------------


def test_evicted_blocks_are_found_and_read_back() -> None:
    archive = DictArchive()
    store = Store(8 * TOKEN, archive, size=4)
    for i in range(5):
        keep(store, [i] * 10)
    assert store.n_bytes <= 8 * TOKEN
    for i in range(5):
        assert store.find([i] * 20).n == 10
        assert recall(store, [i] * 20) == (i,) * 10
        assert store.n_bytes <= 8 * TOKEN, "what is read back counts too"
    assert archive.reads > 0
    check(store, 8 * TOKEN)


@pytest.mark.parametrize("told", [True, False])
def test_a_block_that_the_archive_lost_ends_the_text(told: bool) -> None:
    archive = DictArchive()
    store = Store(0, archive, size=4)
    keep(store, range(16))
    archive.lose(2, told=told)
    assert recall(store, range(16)) == tuple(range(8))
    assert store.find(range(16)).n == 8
    assert len(list(store)) == 4  # the lost one still leads to the last
    assert keep(store, range(16)) == 8
    assert recall(store, range(16)) == tuple(range(16))
    check(store, 0)


def test_a_lost_block_goes_with_the_last_one_behind_it() -> None:
    archive = DictArchive()
    store = Store(0, archive, size=4)
    keep(store, range(12))
    archive.lose(0, told=True)
    archive.lose(0, told=True)
    assert store.find(range(12)).n == 0
    assert len(list(store)) == 3
    archive.lose(0, told=True)
    assert store.find(range(12)).n == 0
    assert list(store) == []
    assert store._roots == {}


def test_a_part_that_can_be_had_is_found_beside_a_lost_block() -> None:
    archive = DictArchive()
    store = Store(0, archive, size=4)
    keep(store, range(8))
    archive.lose(0, told=True)
    keep(store, (0, 1, 2))
    keep(store, (0, 1, 2, 9))
    assert store.find(range(8)).n == 3
    check(store, 0)


def test_a_stem_that_was_not_archived_is_archived_with_the_next_text() -> None:
    """A disk that was full for a while must not leave a hole under everything that comes later."""
    archive = DictArchive()
    store = Store(UNLIMITED, archive, size=4)
    keep(store, range(8))
    archive.lose(0, told=True)
    keep(store, range(12))
    assert len(archive.blocks) == 3
    assert all(node.archived for node in store)


def test_a_store_adopts_only_what_fits_its_blocks() -> None:
    maker, store = Store(UNLIMITED, size=4), Store(UNLIMITED, DictArchive(), size=4)
    keep(maker, range(8))
    first, second = maker
    assert store.adopt(second.key.hex(), None, second.tokens) is None, "its key says that others come before"
    assert store.adopt(first.key.hex(), None, (*first.tokens, 9)) is None, "more tokens than a block has"
    assert store.adopt(first.key.hex(), None, ()) is None
    assert store.adopt("no key", None, first.tokens) is None
    assert store.adopt(first.key.hex().upper(), None, first.tokens) is None
    end = Store(UNLIMITED, size=4)
    keep(end, range(2))
    adopted = store.adopt(next(iter(end)).key.hex(), None, (0, 1))
    assert adopted is not None
    key = module._key(adopted, second.tokens).hex()
    assert store.adopt(key, adopted, second.tokens) is None, "a block behind one that is not full"
    assert store.adopt(first.key.hex(), None, first.tokens) is not None
    assert [node.tokens for node in store] == [first.tokens], "the shorter one is not needed any more"


def test_clear_empties_both_tiers_but_for_what_is_pinned() -> None:
    archive = DictArchive()
    store = Store(12 * TOKEN, archive, size=4)
    for i in range(6):
        keep(store, [1, 1, 1, 1, i, i, i, i, i])
    store.pin(hit := store.find([1, 1, 1, 1, 5, 5, 5, 5]), 1)
    assert store.clear() == 11
    assert [text_of(node) for node in store] == [(1, 1, 1, 1), (1, 1, 1, 1, 5, 5, 5, 5)]
    assert len(archive.blocks) == 2
    store.pin(hit, -1)
    assert store.clear() == 2
    assert archive.blocks == {}
    check(store, 12 * TOKEN)
    assert (store.n_bytes, store.n_tokens, store._roots) == (0, 0, {})


# -- the order in which things go ------------------------------------------------------------------------------------


def in_memory(store: Store) -> set[tuple[int, ...]]:
    return {text_of(node) for node in store if node.block is not None}


def test_what_was_used_recently_stays_longer() -> None:
    store = Store(12 * TOKEN, size=4)
    keep(store, [1] * 4)
    keep(store, [2] * 4)
    keep(store, [3] * 4)
    keep(store, [4] * 4)  # pushes 1 out, and time on
    recall(store, [2] * 4)
    keep(store, [5] * 4)
    assert in_memory(store) == {(2,) * 4, (4,) * 4, (5,) * 4}


def test_what_costs_more_to_compute_stays_longer() -> None:
    store = Store(20 * 64 * TOKEN)
    long, short = [1] * (19 * 64), [2] * 64
    keep(store, long)
    keep(store, short)
    keep(store, [3] * 64)
    assert store.find(long).n == len(long)
    assert store.find(short).n == 0


def test_a_text_is_dropped_from_its_end() -> None:
    store = Store(12 * TOKEN, size=4)
    keep(store, range(40))
    assert store.find(range(40)).n == 12
    keep(store, [9] * 4)
    assert store.find(range(40)).n == 8


def test_a_stem_stays_as_long_as_something_uses_it() -> None:
    store = Store(40 * TOKEN, size=4)
    stem = [7] * 8
    for i in range(200):
        keep(store, [*stem, i, i, i, i])
        assert store.find(stem).n == 8
    check(store, 40 * TOKEN)


def test_nothing_pinned_is_evicted_and_all_else_is() -> None:
    store = Store(8 * TOKEN, size=4)
    keep(store, range(8))
    store.pin(hit := store.find(range(8)), 1)
    store.pin(hit, 1)
    keep(store, [9] * 12)
    assert in_memory(store) == {tuple(range(4)), tuple(range(8))}
    store.pin(hit, -1)
    keep(store, [9] * 4)
    assert in_memory(store) == {tuple(range(4)), tuple(range(8))}, "it is pinned once more"
    store.pin(hit, -1)
    for i in (7, 8, 9):
        keep(store, [i] * 4)
    assert in_memory(store) == {(8,) * 4, (9,) * 4}
    check(store, 8 * TOKEN)


def test_a_store_without_room_keeps_nothing() -> None:
    store = Store(3 * TOKEN, size=4)
    keep(store, range(10))
    assert list(store) == []
    keep(store, range(3))
    assert store.find(range(10)).n == 3
    check(store, 3 * TOKEN)


# -- size ------------------------------------------------------------------------------------------------------------


def n_calls(work: Callable[[], object]) -> int:
    """Calls of Python and C functions that some work makes: its cost, whatever the machine does meanwhile."""
    n = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n


def test_thousands_of_texts_that_begin_with_the_same_token() -> None:
    choose = random.Random(1)
    store = Store(UNLIMITED)
    texts = [(1, *(choose.randrange(1000) for _ in range(70))) for _ in range(1500)]
    for text in texts:
        keep(store, text)
    assert store.n_blocks == 3000
    assert all(store.find(text).n == 71 for text in texts)
    assert n_calls(lambda: store.find(texts[1000])) < 300
    assert n_calls(lambda: keep(store, (1, *range(70)))) < 1000


def test_a_very_long_text() -> None:
    store = Store(UNLIMITED, DictArchive())
    text = tuple(i * i % 50000 for i in range(1 << 15))
    blocks = blocks_of(text[:64], [(0, 64)]) * 512  # their content does not matter here
    assert n_calls(lambda: store.put(text, blocks)) < 512 * 250
    assert n_calls(lambda: store.find(text)) < 512 * 40
    assert n_calls(lambda: store.missing(text)) < 512 * 40
    hit = store.find(text)
    assert hit.n == len(text)
    assert n_calls(lambda: store.load(hit, 0, 64 * 512)) < 512 * 40
    assert n_calls(lambda: list(store)) < 512 * 5
    assert n_calls(store.clear) < 512 * 80


def test_a_text_may_have_more_blocks_than_python_can_nest() -> None:
    store = Store(1500 * TOKEN, size=1)
    store.put(range(3000), [FakeBlock(i, 0, (i,)) for i in range(3000)])
    assert store.find(range(3000)).n == 1500
    assert len(list(store)) == 1500
    assert store.clear() == 1500


def test_making_room_does_not_search_through_what_cannot_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most blocks of a full store have others behind them."""
    pops = 0

    def pop(heap: list[tuple[float, int, Node]]) -> tuple[float, int, Node]:
        nonlocal pops
        pops += 1
        return heappop(heap)

    monkeypatch.setattr("minka.engine.store.heapq.heappop", pop)
    store = Store(20 * 100 * 4 * TOKEN, size=4)
    for i in range(20):
        keep(store, [i] * 400)
    keep(store, [99] * 400)  # now all is out of the heap that is not up to date
    pops = 0
    for i in range(100, 200):
        keep(store, [i] * 4)
    assert pops < 300


def test_using_a_block_again_and_again_takes_no_memory() -> None:
    store = Store(UNLIMITED, size=4)
    keep(store, range(12))
    keep(store, [9] * 4)
    hit = store.find(range(12))
    for _ in range(2000):
        recall(store, range(12))
        store.pin(hit, 1)
        store.pin(hit, -1)
    assert len(store._heap) < 100
    check(store)


def test_what_was_dropped_is_not_remembered_anywhere() -> None:
    store = Store(10 * 4 * TOKEN, size=4)
    before = n_nodes()
    for i in range(2000):
        keep(store, [i, 1, 2, 3, i, 4], salt=str(i % 50))
    assert n_nodes() - before < 10 + 10 + 100  # blocks, roots, entries of the heap that are out of date
    assert len(store._roots) <= 10
    store.clear()
    check(store)


def n_nodes() -> int:
    gc.collect()
    return sum(isinstance(item, Node) for item in gc.get_objects())
