"""Sequences and the memory under them, in a whole loop: who gets which text from where, and what it costs.

The oracle is `Rig.expect_solo`: whatever was shared, restored or lost, a job has the text that it has alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minka.engine.memory import MemoryConfig
from minka.errors import NativeError
from minka.types import Finished
from tests.engine.rig import Rig, job
from tests.engine.test_store import DictArchive, check, text_of
from tests.engine.test_traces import backend, traffic
from tests.fakes import FakeBackend, tokens_of

Rigs = Callable[..., Rig]
KEPT = MemoryConfig(limit=1 << 20, block=16)
STEM = "A village by the sea, where an old man tells one story a winter. " * 2
TALES = [f"{i}: {STEM}" for i in range(8)]


def calls(backend: FakeBackend) -> list[str]:
    """A log of what will be done to the sequences of a backend from now on; of an insert, its first position."""
    log: list[str] = []
    for name in ("share", "insert", "restore", "extract", "save"):
        real = getattr(backend, name)

        def spy(*args: Any, name: str = name, real: Callable[..., object] = real) -> object:
            log.append(f"insert {args[1][0].start}" if name == "insert" else name)
            return real(*args)

        setattr(backend, name, spy)
    return log


def answer(rig: Rig, id: str) -> str:
    return bytes(rig.inbox.tokens(id)).decode()


# -- what comes from where -------------------------------------------------------------------------------------------


def test_memory_brings_only_what_no_sequence_holds(rig: Rigs) -> None:
    """A part from a busy slot, the next part from memory, the rest computed; and the counters say so."""
    r = rig(kept=KEPT, n_seq_max=3)
    r.run(job("first", STEM * 2, 4))
    for i in range(3):
        r.run(job(f"other {i}", TALES[i], 4))
    r.submit(job("busy", STEM + "Then", 40))
    r.step(3)
    cached, recalled = r.loop.counters.cached_tokens, r.loop.counters.recalled_tokens
    log = calls(r.backend)
    r.run(job("new", STEM * 2 + "The end", 4))
    n = len(STEM)
    assert r.inbox.started("new").n_cached == 2 * n
    assert r.loop.counters.cached_tokens - cached == 2 * n
    if r.backend.kv_unified:
        assert log[:2] == ["share", f"insert {n // 16 * 16}"]
        assert r.loop.counters.recalled_tokens - recalled == n
    else:  # a stream is restored as a whole, and nothing is copied into it before
        assert [call for call in log if call != "extract"] == ["insert 0"]
        assert r.loop.counters.recalled_tokens - recalled == 2 * n
    r.expect_solo()
    r.expect_all_idle()


def test_what_a_sequence_holds_is_not_counted_as_recalled(rig: Rigs) -> None:
    r = rig(kept=KEPT)
    r.run(job("one", TALES[0], 6))
    log = calls(r.backend)
    r.run(job("two", TALES[0] + answer(r, "one") + " Go on.", 6))
    assert r.inbox.started("two").n_cached == len(TALES[0]) + 5
    assert r.loop.counters.recalled_tokens == 0
    assert log == []
    r.expect_solo()


def test_what_came_from_a_leader_in_the_end_is_not_counted_as_recalled(rig: Rigs) -> None:
    """Memory had a little, so it was brought back; then the job waited for another one that computed more."""
    r = rig(kept=KEPT, n_seq_max=3, n_batch=16)
    r.run(job("short", STEM[:40], 1), job("a", TALES[1], 1), job("b", TALES[2], 1), job("c", TALES[3], 1))
    long = STEM[:40] + "Something quite different happened there. " * 4
    before = r.loop.counters.recalled_tokens
    r.submit(job("leader", long + "Yes.", 4), job("follower", long + "No.", 4))
    r.run()
    leader, follower = (r.inbox.started(id).n_cached for id in ("leader", "follower"))
    assert (leader, follower) == (40, len(long))
    assert r.loop.counters.recalled_tokens - before == 40
    r.expect_solo()


def test_a_recall_worth_less_than_a_block_of_compute_is_not_made(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=1)
    r.run(job("a", TALES[0], 1), job("b", TALES[1], 1))
    log = calls(r.backend)
    r.run(job("c", TALES[1] + answer(r, "b") + "x", 1))
    assert log == []


def test_many_conversations_on_two_slots(rig: Rigs) -> None:
    """Eight chats of three turns, each turn of all before the next: every turn starts where the last one ended."""
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=1024)
    chats = list(TALES)
    for turn in range(3):
        for i, chat in enumerate(chats):
            r.run(job(f"{i}.{turn}", chat, 8))
            started = r.inbox.started(f"{i}.{turn}")
            if turn:
                # The last token of an answer is never computed, and those asked behind it are new.
                assert started.n_cached == len(chat) - len(" And then?") - 1
            chats[i] = chat + answer(r, f"{i}.{turn}") + " And then?"
    r.expect_solo()
    r.expect_all_idle()


@pytest.mark.parametrize("limit", [0, 300, 1000, 4000])
def test_many_conversations_and_little_memory(rig: Rigs, limit: int) -> None:
    r = rig(kept=MemoryConfig(limit=limit, block=16), n_seq_max=2, n_ctx=1024)
    for _turn in range(3):
        for i, tale in enumerate(TALES):
            r.run(job(f"{i} {_turn}", tale + "and on " * _turn, 8))
            check(r.memory.store, limit)
    r.expect_solo()


# -- idle text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clear_idle", [True, False])
def test_idle_text_leaves_a_shared_pool_only(rig: Rigs, clear_idle: bool) -> None:
    r = rig(kept=MemoryConfig(limit=1 << 20, block=16, clear_idle=clear_idle))
    r.run(*(job(str(i), TALES[i], 4) for i in range(3)))
    r.submit(job("new", TALES[4], 20))
    r.step(2)
    idle = [r.backend.length(slot.id) for slot in r.slots() if slot.idle]
    if clear_idle and r.backend.kv_unified:
        assert idle == [0] * 3
        assert r.backend.used == r.slot("new").n_past
    else:
        assert sum(n > len(STEM) for n in idle) == 3
    r.run()
    r.expect_solo()


def test_idle_text_stays_where_nothing_remembers_it(rig: Rigs) -> None:
    r = rig()
    r.run(job("old", TALES[0], 4))
    r.run(job("new", TALES[1], 4))
    assert sum(slot.n_past > len(STEM) for slot in r.slots()) == 2


def test_idle_text_gives_way_to_what_is_brought_back() -> None:
    """Without `clear_idle` a pool is full of idle text; a recall must not fail for that."""
    kept = MemoryConfig(limit=1 << 20, block=16, clear_idle=False)
    with Rig(FakeBackend(unified=True, n_seq_max=4, n_ctx=600), kept=kept) as r:
        long = TALES[0] + STEM
        for i, text in enumerate((long, *TALES[1:])):
            r.run(job(str(i), text, 4))
        assert r.backend.used > 500
        r.run(job("again", long + answer(r, "0") + "!", 4))
        assert r.inbox.started("again").n_cached == len(long) + 3
        assert r.loop.counters.preempted == 0
        r.expect_solo()
        r.expect_all_idle()


@pytest.mark.parametrize("memory", ["plain", "window"])
def test_text_that_had_to_give_way_is_remembered(memory: str) -> None:
    """No slot is idle and the cells are out: one run goes back to the queue, and later on from where it was."""
    with Rig(FakeBackend(unified=True, n_seq_max=3, n_ctx=160, memory=memory, n_batch=32), kept=KEPT) as r:  # type: ignore[arg-type]
        r.run(*(job(str(i), [97 + i] * 30, 60) for i in range(3)))
        assert r.loop.counters.preempted > 0
        n_needed = sum(30 + len(r.inbox.tokens(str(i))) for i in range(3))
        assert r.backend.n_computed <= n_needed + 20 * r.loop.counters.preempted
        r.expect_solo()
        r.expect_all_idle()


# -- who may have it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
@pytest.mark.parametrize("preempted", [True, False])
def test_private_text_is_neither_kept_nor_shared(rig: Rigs, memory: str, preempted: bool) -> None:
    r = rig(kept=MemoryConfig(limit=1 << 20, block=16, step=20), memory=memory, n_seq_max=2, n_ctx=512)
    secret = job("secret", TALES[0], 30, cache_prompt=False)
    r.submit(secret)
    r.step(4)
    if preempted:
        r.loop.cancel("secret")
        r.step()
    r.run(job("same", TALES[0] + "?", 4, cache_salt="x"), job("other", TALES[1], 4), job("third", TALES[2], 4))
    kept = [text_of(node) for node in r.memory.store] + [entry.tokens for entry in r.memory.snapshots._entries]
    assert kept
    start = tokens_of(TALES[0])[:16]
    assert [text for text in kept if text[:16] == start and len(text) > len(TALES[0]) + 1 + 4] == []
    assert r.inbox.started("same").n_cached == 0
    r.run(job("asks", TALES[0] + "!", 4))
    assert r.inbox.started("asks").n_cached == 0
    if not preempted:
        r.expect_solo()
    r.expect_all_idle()


@pytest.mark.parametrize("memory", ["plain", "recurrent", "window"])
def test_salts_share_neither_on_the_device_nor_in_memory(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.submit(job("a1", TALES[0], 20, cache_salt="a"))
    r.step(3)
    r.run(job("b1", TALES[0] + "?", 4, cache_salt="b"))
    assert r.inbox.started("b1").n_cached == 0, "not from a running one"
    r.run(job("x", TALES[1], 4), job("y", TALES[2], 4), job("z", TALES[3], 4))
    for id, salt in (("c", "c"), ("none", "")):
        r.run(job(id, TALES[0] + "?", 4, cache_salt=salt))
        assert r.inbox.started(id).n_cached == 0, "nor from memory"
    r.run(job("a2", TALES[0] + answer(r, "a1") + "?", 4, cache_salt="a"))
    assert r.inbox.started("a2").n_cached >= len(TALES[0])
    r.expect_solo()


# -- models that cannot be cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["recurrent", "window"])
def test_a_second_turn_starts_from_the_first_and_a_fork_from_a_checkpoint(rig: Rigs, memory: str) -> None:
    r = rig(kept=MemoryConfig(limit=1 << 20, step=30), memory=memory, n_seq_max=2, n_ctx=1024, n_batch=15)
    text = TALES[0]
    r.run(job("one", text, 8))
    assert {30, 60, 90, 120} <= {len(entry.tokens) for entry in r.memory.snapshots._entries}
    r.run(job("x", TALES[1], 4), job("y", TALES[2], 4))
    r.run(job("two", text + answer(r, "one") + " And?", 8))
    assert r.inbox.started("two").n_cached == len(text) + 7
    r.run(job("again", text + "Another question", 8))
    assert r.inbox.started("again").n_cached == len(text), "the state at the end of the prompt"
    r.run(job("fork", text[:100] + " No, it was otherwise.", 8))
    assert r.inbox.started("fork").n_cached == 90
    r.expect_solo()
    r.expect_all_idle()


def test_a_checkpoint_is_made_while_generating(rig: Rigs) -> None:
    r = rig(kept=MemoryConfig(limit=1 << 20, step=50), memory="recurrent", n_ctx=2048, n_seq_max=2)
    r.run(job("long", STEM[:40], 130))
    assert {40, 50, 100, 150} <= {len(entry.tokens) for entry in r.memory.snapshots._entries}


def test_a_prompt_of_a_plain_model_makes_no_copies_while_it_runs(rig: Rigs) -> None:
    r = rig(kept=MemoryConfig(limit=1 << 20, step=10))
    log = calls(r.backend)
    r.run(job("one", STEM, 40))
    assert log == []


# -- when something goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["plain", "recurrent"])
def test_text_that_cannot_be_kept_is_only_computed_again(
    rig: Rigs, memory: str, caplog: pytest.LogCaptureFixture
) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)

    def broken(*_args: object) -> bytes:
        raise NativeError("the state cannot be read")

    r.backend.extract = r.backend.save = broken  # type: ignore[method-assign,assignment]
    for i in range(5):
        r.run(job(str(i), TALES[i], 4))
    r.run(job("again", TALES[0] + "!", 4))
    assert r.inbox.started("again").n_cached == 0
    assert "the state cannot be read" in caplog.text
    r.expect_solo()
    r.expect_all_idle()


@pytest.mark.parametrize("memory", ["plain", "recurrent"])
def test_a_recall_that_breaks_ends_its_own_job_only(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    for i in range(4):
        r.run(job(str(i), TALES[i], 4))
    insert, restore = r.backend.insert, r.backend.restore

    def broken(seq: int, _what: object) -> bool:
        r.backend.cut(seq, 0)
        raise NativeError("the state does not fit")

    r.backend.insert = r.backend.restore = broken  # type: ignore[method-assign,assignment]
    r.run(job("breaks", TALES[0] + answer(r, "0") + "!", 4), job("new", "x" * 50, 4))
    assert str(r.inbox.error("breaks")) == "the state does not fit"
    r.backend.insert, r.backend.restore = insert, restore  # type: ignore[method-assign]
    r.run(job("works", TALES[0] + answer(r, "0") + "!", 4))
    assert r.inbox.started("works").n_cached >= len(TALES[0])
    r.expect_solo("new", "works")
    r.expect_all_idle()


def test_what_is_wanted_does_not_make_room_for_what_is_kept(rig: Rigs) -> None:
    """Memory has room for one text: it holds the one that is asked for, when the slot's own has to be kept."""
    r = rig(kept=MemoryConfig(limit=4 * 150, block=16), n_seq_max=1)
    for turn in range(3):
        for i in range(2):
            r.run(job(f"{i} {turn}", TALES[i] + "!" * turn, 1))
            if turn:
                assert r.inbox.started(f"{i} {turn}").n_cached >= len(TALES[i])
    r.expect_solo()


def test_a_slot_does_not_give_up_its_text_for_one_that_the_disk_has_lost(rig: Rigs) -> None:
    r = rig(kept=MemoryConfig(limit=4 * 16, block=16), n_seq_max=1)
    r.memory.store._archive = archive = DictArchive()
    r.run(job("long", STEM * 2, 1))
    r.run(job("short", STEM, 1))
    assert len(archive.blocks) == 2 * len(STEM) // 16 + (2 * len(STEM) % 16 > 0)
    for _ in range(len(archive.blocks)):
        archive.lose(0, told=False)
    r.run(job("longer", STEM * 2 + "!", 1))
    assert r.inbox.started("longer").n_cached == len(STEM), "what the slot itself holds"
    r.expect_solo()


# -- whatever meets whatever -----------------------------------------------------------------------------------------


def forgetful_trace(seed: int) -> Rig:
    """Random traffic over memory of any size and a disk that loses things."""
    choose = random.Random(seed)
    kept = MemoryConfig(
        choose.choice((40, 300, 100_000)),
        step=choose.choice((0, 7)),
        block=choose.choice((4, 16)),
        clear_idle=choose.random() < 0.5,
        n_snapshots=choose.choice((1, 256)),
    )
    fake = backend(choose)
    fake._nan, fake._fail = (lambda _tokens: False), (lambda _chunks: False)
    with Rig(fake, kept=kept) as rig:
        archive = DictArchive() if choose.random() < 0.6 else None
        rig.memory.store._archive = archive
        coming = [*traffic(choose, fake.n_ctx_seq, fake.n_seq_max)]
        while coming or rig.loop.busy:
            if coming and choose.random() < 0.3:
                rig.submit(coming.pop())
            if archive is not None and choose.random() < 0.1:
                archive.lose(choose.randrange(1000), told=choose.random() < 0.5)
            if choose.random() < 0.01:
                rig.memory.clear()
            rig.step()
            check(rig.memory.store, kept.limit)
            assert rig.memory.snapshots.n_bytes <= kept.limit
            assert rig.loop.view().used_cells == fake.used
        rig.expect_all_idle()
        rig.expect_solo()
        for id in rig.jobs:
            started = rig.inbox.started(id)
            assert 0 <= started.n_cached < started.n_prompt
            assert isinstance(rig.inbox.end(id), Finished)
        counters = rig.loop.counters
        assert 0 <= counters.recalled_tokens <= counters.cached_tokens
        no_preemption = counters.preempted == 0
        n_prompt = sum(len(one.prompt) for one in rig.jobs.values())
        assert not no_preemption or counters.prompt_tokens + counters.cached_tokens == n_prompt
    return rig


@pytest.mark.parametrize("group", range(4))
def test_no_memory_and_no_loss_changes_a_text(group: int) -> None:
    for seed in range(group * 12, (group + 1) * 12):
        try:
            forgetful_trace(seed)
        except BaseException as error:
            error.add_note(f"trace {seed}: forgetful_trace({seed}) shows it again")
            raise


def total(rigs: Sequence[Rig], name: str) -> int:
    return sum(getattr(rig.loop.counters, name) for rig in rigs)


def test_the_traces_reach_what_they_are_for() -> None:
    rigs = [forgetful_trace(seed) for seed in range(15, 30)]
    assert total(rigs, "recalled_tokens") > 100
    assert total(rigs, "preempted") > 0
    archives = [rig.memory.store._archive for rig in rigs]
    assert sum(archive.reads for archive in archives if isinstance(archive, DictArchive)) > 10
