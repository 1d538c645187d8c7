"""Memory on a backend: it keeps what is new, brings back what is missing, and holds on to what it has taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from minka.engine.memory import Memory, MemoryConfig
from minka.engine.prefix_cache import MIN_SHARED
from minka.native.protocol import Decoded
from tests.engine.test_store import DictArchive
from tests.fakes import FakeBackend, FakeBlock

Backends = Callable[..., FakeBackend]
PLENTY = 1 << 20
TEXT = list(range(100))


class Kept:
    """A memory over a backend of which a test fills the sequences."""

    def __init__(self, backend: FakeBackend, archive: DictArchive | None = None, **config: int) -> None:
        assert backend.sliceable in (True, False)  # found out while it is empty
        self.backend = backend
        self.memory = Memory(backend, MemoryConfig(**{"limit": PLENTY, "block": 16, **config}), archive)  # type: ignore[arg-type]
        self.extracted: list[tuple[int, int]] = []
        self.inserted: list[tuple[int, int]] = []
        self._spy()

    def _spy(self) -> None:
        extract, insert = self.backend.extract, self.backend.insert

        def extracting(seq: int, ranges: Sequence[tuple[int, int]]) -> list[FakeBlock]:
            self.extracted += ranges
            return extract(seq, ranges)

        def inserting(seq: int, blocks: Sequence[FakeBlock]) -> bool:
            self.inserted.append((blocks[0].start, blocks[-1].start + blocks[-1].n_tokens))
            return insert(seq, blocks)

        self.backend.extract, self.backend.insert = extracting, inserting  # type: ignore[method-assign,assignment]

    def fill(self, seq: int, tokens: Sequence[int]) -> None:
        """Make a sequence hold just these tokens."""
        self.backend.cut(seq, 0)
        if tokens:
            self.backend.add(seq, tokens, 0, logits=0)
            assert self.backend.decode() is Decoded.OK

    def keep(self, seq: int, tokens: Sequence[int], salt: str = "") -> None:
        """Compute tokens in a sequence, keep them, and empty it again."""
        self.fill(seq, tokens)
        self.memory.keep(seq, tokens, salt)
        self.backend.cut(seq, 0)

    def recall(self, seq: int, tokens: Sequence[int], salt: str = "", start: int = 0) -> int:
        """Bring back what is known; the sequence holds `start` tokens. Its length then."""
        found = self.memory.fetch(tokens, salt, start)
        self.backend.cut(seq, found.start)
        if found.n:
            assert self.memory.recall(seq, found)
            assert self.backend.held(seq) == list(tokens[: found.n])
        return self.backend.length(seq)


@pytest.fixture
def kept(fake_backend: Backends, unified: bool) -> Callable[..., Kept]:
    def make(archive: DictArchive | None = None, *, memory: str = "plain", **config: int) -> Kept:
        return Kept(fake_backend(unified=unified, n_seq_max=2, n_ctx=512, memory=memory), archive, **config)

    return make


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_what_was_kept_comes_back_into_any_sequence(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory)
    k.keep(0, TEXT)
    assert k.memory.known(TEXT, "") == 100
    for seq in (1, 0):
        assert k.recall(seq, [*TEXT, 7, 8]) == 100


def test_only_what_is_new_is_extracted(kept: Callable[..., Kept]) -> None:
    k = kept()
    k.keep(0, TEXT[:40])
    k.keep(1, TEXT[:40])
    assert k.extracted == [(0, 16), (16, 32), (32, 40)]
    k.keep(1, TEXT[:70])
    assert k.extracted[3:] == [(32, 48), (48, 64), (64, 70)]
    k.keep(0, [*TEXT[:50], 9, 9])
    assert k.extracted[6:] == [(48, 52)]
    assert k.memory.store.n_tokens == 70 + 4


def test_only_what_is_missing_is_inserted(fake_backend: Backends) -> None:
    k = Kept(fake_backend(unified=True, n_ctx=512))
    k.keep(0, TEXT)
    for start, first in ((0, 0), (1, 0), (15, 0), (16, 16), (17, 16), (95, 80), (99, 96)):
        k.fill(1, TEXT[:start])
        assert k.recall(1, TEXT, start=start) == 100
        assert k.inserted[-1] == (first, 100)
    k.fill(1, TEXT)
    found = k.memory.fetch(TEXT, "", 100)
    assert (found.n, found.blocks) == (0, ())
    assert len(k.inserted) == 7


def test_a_stream_is_brought_back_from_its_beginning(fake_backend: Backends) -> None:
    k = Kept(fake_backend(unified=False, n_seq_max=2, n_ctx=512))
    k.keep(0, TEXT)
    assert k.recall(1, TEXT[:50]) == 50
    assert k.inserted == [(0, 50)]


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_salts_do_not_meet(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory)
    k.keep(0, TEXT, "mine")
    for salt in ("", "yours"):
        assert k.memory.known(TEXT, salt) == 0
        assert k.memory.fetch(TEXT, salt, 0).n == 0
    assert k.recall(1, TEXT, "mine") == 100


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_a_few_tokens_are_not_worth_it(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory)
    k.keep(0, TEXT[: MIN_SHARED - 1])
    assert k.memory.known(TEXT, "") == 0
    k.keep(0, TEXT[:MIN_SHARED])
    assert k.memory.known(TEXT, "") == MIN_SHARED


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_without_a_limit_nothing_is_asked_of_the_backend(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory, limit=0)
    k.backend.save = k.backend.extract = None  # type: ignore[assignment,method-assign]
    k.keep(0, TEXT)
    assert (k.memory.known(TEXT, ""), k.memory.enabled, k.memory.clears_idle) == (0, False, False)
    assert not k.memory.is_due(100_000, 0)


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_what_was_fetched_stays_whole_when_memory_drops_it(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory, limit=450)
    k.keep(0, TEXT)
    found = k.memory.fetch(TEXT, "", 0)
    assert found.n == 100
    k.keep(0, [9] * 100)
    k.keep(0, [8] * 100)
    assert k.memory.known(TEXT, "") < 100
    assert k.memory.recall(1, found)
    assert k.backend.held(1) == TEXT


def test_a_fetch_tells_the_truth_about_a_disk_that_lost_a_block(kept: Callable[..., Kept]) -> None:
    archive = DictArchive()
    k = kept(archive, limit=1)
    k.keep(0, TEXT)
    archive.lose(3, told=False)
    assert k.memory.known(TEXT, "") == 100
    found = k.memory.fetch(TEXT, "", 0)
    assert (found.n, found.n_disk) == (48, 48)
    assert k.memory.known(TEXT, "") == 48
    assert k.recall(1, TEXT) == 48


def test_nothing_comes_back_where_there_is_no_room(fake_backend: Backends) -> None:
    k = Kept(fake_backend(unified=True, n_ctx=128))
    k.keep(0, TEXT)
    k.fill(0, [9] * 60)
    k.fill(1, TEXT[:20])
    found = k.memory.fetch(TEXT, "", 20)
    k.backend.cut(1, found.start)
    assert not k.memory.recall(1, found)
    assert k.backend.held(1) == TEXT[:16]


def test_a_state_that_is_kept_again_is_not_copied_again(kept: Callable[..., Kept]) -> None:
    k = kept(memory="recurrent", limit=5 * 101 * 4, n_snapshots=2)
    k.keep(0, TEXT)
    k.keep(0, [9] * 100)
    k.keep(0, TEXT)  # so it is the one that was used last
    assert len(k.memory.snapshots) == 2
    k.keep(0, [8] * 100)
    assert k.memory.known(TEXT, "") == 100
    assert k.memory.known([9] * 100, "") == 0


def test_a_state_that_was_fetched_counts_as_used(kept: Callable[..., Kept]) -> None:
    k = kept(memory="recurrent", n_snapshots=2)
    k.keep(0, TEXT)
    k.keep(0, [9] * 100)
    k.recall(1, TEXT)
    k.keep(0, [8] * 100)
    assert [k.memory.known(text, "") for text in (TEXT, [9] * 100, [8] * 100)] == [100, 0, 100]


@pytest.mark.parametrize("memory", ["recurrent", "window"])
def test_a_state_serves_what_begins_with_all_of_it(kept: Callable[..., Kept], memory: str) -> None:
    k = kept(memory=memory)
    for n in (20, 60):
        k.keep(0, TEXT[:n])
    assert [k.memory.known(TEXT[:n], "") for n in (19, 20, 59, 60, 61)] == [0, 20, 20, 60, 60]
    assert k.recall(1, TEXT[:59]) == 20


def test_states_are_due_at_every_multiple_of_the_step(fake_backend: Backends) -> None:
    due = Kept(fake_backend(memory="recurrent"), step=30).memory.is_due
    assert [n for n in range(1, 100) if due(n, n - 1)] == [30, 60, 90]
    assert [due(after, before) for before, after in ((0, 29), (29, 31), (30, 59), (10, 100))] == [False, True] * 2
    assert not Kept(fake_backend(memory="recurrent"), step=0).memory.is_due(100, 0)
    assert not Kept(fake_backend(), step=30).memory.is_due(100, 0), "plain states can be cut anywhere"
