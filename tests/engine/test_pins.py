"""Pinned prefixes: computed at once, served to their salt, never evicted, let go by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from string import ascii_letters

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.engine.pins import Pins
from minka.engine.prefix_cache import MIN_SHARED
from minka.engine.snapshots import Snapshots
from minka.engine.store import Fill, Node, Store
from minka.errors import NotSupportedError, RequestError, UnavailableError
from minka.types import Failed, Job, PinView, Priority
from tests.engine.rig import Rig, job
from tests.engine.test_control import MEMORIES, clear, look, n_cached, tiers
from tests.engine.test_engine import Ends
from tests.fakes import WAIT, FakeBackend, FakeBlock

Rigs = Callable[..., Rig]

KEPT = MemoryConfig(limit=4 * 400, block=16)
"""Room for 400 tokens in blocks."""
STORY = "A story of a village by the sea, told by an old man in winter. "


def pin(name: str, prompt: str = STORY, **fields: object) -> Job:
    return job(f"pin {name}", prompt, 0, pin=name, priority=Priority.LOW, **fields)


def press(r: Rig, n: int = 12) -> None:
    """Requests that each need much of the memory, one after another."""
    r.run(*(job(f"press {len(r.jobs)} {i}", letter * 120, 4) for i, letter in enumerate(ascii_letters[:n])))


def unpin(r: Rig, name: str) -> bool:
    return r.memory.unpin(name)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_pinned_prefix_survives_pressure(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("story"))
    assert r.inbox.tokens("pin story") == []
    press(r)
    assert r.memory.store.n_bytes + r.memory.snapshots.n_bytes <= KEPT.limit
    r.run(job("a", STORY + "And then?", 8))
    assert n_cached(r, "a") == len(STORY)
    assert [(one.name, one.n_tokens) for one in look(r).pins] == [("story", len(STORY))]
    r.expect_solo()
    r.expect_all_idle()


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_is_not_pinned_any_more_gives_way(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("story"))
    assert unpin(r, "story")
    assert not unpin(r, "story")
    assert look(r).pins == ()
    press(r)
    r.run(job("a", STORY + "And then?", 8))
    assert n_cached(r, "a") == 0
    r.expect_solo()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_pin_serves_its_salt_only(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("mine", cache_salt="me"))
    press(r)
    r.run(job("you", STORY + "?", 4, cache_salt="you"), job("all", STORY + "?", 4))
    assert (n_cached(r, "you"), n_cached(r, "all")) == (0, 0)
    press(r)
    r.run(job("me", STORY + "?", 4, cache_salt="me"))
    assert n_cached(r, "me") == len(STORY)
    r.expect_solo()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_name_has_one_pin_and_the_last_one_counts(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("one"))
    longer = STORY + "It begins on a day in May, when the ships came home."
    r.run(job("between", "x", 1))
    r.run(Job("pin again", tuple(longer.encode()), n_predict=0, pin="one"))
    assert [view.n_tokens for view in look(r).pins] == [len(longer)]
    press(r)
    r.run(job("a", longer + "?", 4))
    assert n_cached(r, "a") == len(longer)
    assert unpin(r, "one")
    press(r)
    r.run(job("b", longer + "!", 4))
    assert n_cached(r, "b") == 0, "nothing of either is pinned"


@pytest.mark.parametrize("memory", MEMORIES)
def test_two_pins_of_one_text_are_two(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("one"), pin("two"))
    assert n_cached(r, "pin two") >= len(STORY) - 1 or memory != "plain"
    assert unpin(r, "one")
    press(r)
    r.run(job("a", STORY + "?", 4))
    assert n_cached(r, "a") == len(STORY)


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_emptied_cache_keeps_its_pins(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=1024)
    r.run(pin("story"), job("other", "Something else that is long enough to keep.", 4))
    assert clear(r) > 0
    assert tiers(r)["ram"].tokens >= len(STORY)
    assert tiers(r)["device"].entries == 0
    r.run(job("a", STORY + "?", 4), job("other again", "Something else that is long enough to keep.", 4))
    assert n_cached(r, "a") == len(STORY)
    assert n_cached(r, "other again") == 0
    r.expect_solo()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_pin_that_has_no_room_fails_and_changes_nothing(rig: Rigs, memory: str) -> None:
    r = rig(kept=KEPT, memory=memory, n_seq_max=2, n_ctx=2048)
    r.run(pin("story"))
    r.run(Job("pin too long", tuple(b"much " * 100), n_predict=0, pin="story"))
    assert isinstance(r.inbox.error("pin too long"), RequestError)
    assert "--cache-ram" in str(r.inbox.error("pin too long"))
    press(r)
    r.run(job("a", STORY + "?", 4))
    assert n_cached(r, "a") == len(STORY), "the older pin is still there"
    assert [view.n_tokens for view in look(r).pins] == [len(STORY)]
    r.expect_all_idle()


def test_pins_fill_memory_and_not_more(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=2, n_ctx=2048)
    r.run(*(pin(f"{i}", f"{i}{STORY}{STORY}") for i in range(4)))
    assert isinstance(r.inbox.error("pin 3"), RequestError)
    assert [view.name for view in look(r).pins] == ["0", "1", "2"], "400 tokens are three of these"
    press(r)
    r.run(*(job(f"{i}", f"{i}{STORY}{STORY}?", 4) for i in range(3)))
    assert [n_cached(r, f"{i}") for i in range(3)] == [2 * len(STORY) + 1] * 3
    assert r.memory.store.n_bytes <= KEPT.limit
    r.expect_solo("0", "1", "2")
    r.expect_all_idle()


def test_a_pin_gives_way_to_everyone_while_it_is_computed(rig: Rigs) -> None:
    r = rig(kept=KEPT, n_seq_max=1, n_ctx=1024)
    r.submit(pin("story"), job("a", "Somebody asks something.", 4))
    r.run()
    order = list(r.inbox.events)
    assert order.index("a") < order.index("pin story")


def test_a_pin_is_a_view_with_its_bytes() -> None:
    store = Store(10_000, size=4)
    tokens = tuple(range(10))
    blocks = [FakeBlock(start, 0, tokens[start : start + 4]) for start in (0, 4, 8)]
    store.put(tokens, blocks)
    pins = Pins(store, Snapshots(10_000, 4), 10_000)
    assert not pins.hold("longer", (*tokens, 10), "", whole=False)
    assert not pins.hold("salted", tokens, "salt", whole=False)
    assert not pins.hold("whole", tokens, "", whole=True)
    assert pins.hold("b", tokens, "", whole=False)
    assert pins.hold("a", tokens[:6], "", whole=False)
    assert pins.views() == (PinView("a", 6, 32), PinView("b", 10, 40))


class Shelf:
    """Implements `store.Archive`: it has every block that it was told of."""

    def __init__(self, blocks: dict[int, FakeBlock]) -> None:
        self._blocks = blocks

    def write(self, node: Node) -> None:
        node.archived = True

    def read(self, node: Node) -> FakeBlock | None:
        return self._blocks.get(node.start)

    def forget(self, node: Node) -> None:
        """Nothing is counted here."""

    def lost(self) -> Sequence[Node]:
        return ()

    def fill(self) -> Fill:
        return Fill(0, 0, 0, 0)


def test_what_is_on_disk_only_is_pinned_in_memory_or_not_at_all() -> None:
    tokens = tuple(range(12))
    blocks = {start: FakeBlock(start, 0, tokens[start : start + 4]) for start in (0, 4, 8)}
    for limit, fits in ((48, True), (47, False)):
        store = Store(limit, Shelf(blocks), size=4)
        store.put(tokens, list(blocks.values()))
        others = tuple(range(100, 112))
        store.put(others, [FakeBlock(start, 0, others[start : start + 4]) for start in (0, 4, 8)])
        assert store.find(tokens).n == 12
        pins = Pins(store, Snapshots(0, 0), limit)
        assert pins.hold("a", tokens, "", whole=False) == fits
        assert store.n_bytes <= limit
        assert [view.n_bytes for view in pins.views()] == ([48] if fits else [])


def test_a_pin_that_failed_holds_nothing() -> None:
    tokens = tuple(range(8))
    store = Store(10_000, size=4)
    store.put(tokens, [FakeBlock(start, 0, tokens[start : start + 4]) for start in (0, 4)])
    assert not Pins(store, Snapshots(0, 0), 10_000).hold("a", (*tokens, 8), "", whole=False)
    assert store.clear() == 2
    assert store.find(tokens).n == 0


# -- the engine --------------------------------------------------------------------------------------------------------


def test_a_job_that_can_never_be_pinned_is_refused(fake_backend: Callable[..., FakeBackend]) -> None:
    engine = Engine(fake_backend(), EngineConfig(memory=KEPT, check=True))
    short = "x" * (MIN_SHARED - 1)
    with pytest.raises(RequestError, match="15 tokens are too few to pin"):
        list(engine.stream(pin("short", short)))
    with pytest.raises(RequestError, match="not to be cached"):
        list(engine.stream(pin("private", cache_prompt=False)))
    engine.close()


def test_without_memory_nothing_can_be_pinned_or_dropped(fake_backend: Callable[..., FakeBackend]) -> None:
    engine = Engine(fake_backend(), EngineConfig(check=True))
    for refused in (lambda: list(engine.stream(pin("story"))), lambda: engine.unpin("story"), engine.clear_cache):
        with pytest.raises(NotSupportedError, match="--cache-ram"):
            refused()
    assert [tier.limit for tier in engine.cache().result(WAIT).tiers] == [4096, 0]
    engine.close()


def test_pins_do_not_survive_a_restart_but_their_text_may(tmp_path: Path) -> None:
    config = EngineConfig(memory=KEPT, disk=tmp_path, disk_limit=1_000_000, check=True)
    with FakeBackend(n_ctx=1024) as backend:
        engine = Engine(backend, config)
        list(engine.stream(pin("story")))
        assert [one.name for one in engine.cache().result(WAIT).pins] == ["story"]
        engine.close()
    with FakeBackend(n_ctx=1024) as backend:
        engine = Engine(backend, config)
        view = engine.cache().result(WAIT)
        assert view.pins == ()
        disk = {tier.name: tier for tier in view.tiers}["disk"]
        assert (disk.entries, disk.tokens, disk.limit) == (4, len(STORY), 1_000_000)
        list(engine.stream(job("a", STORY + "?", 4)))
        disk = {tier.name: tier for tier in engine.cache().result(WAIT).tiers}["disk"]
        assert (disk.hits, disk.served) == (1, len(STORY))
        list(engine.stream(pin("again")))
        assert engine.clear_cache().result(WAIT) > 0
        assert engine.cache().result(WAIT).pins[0].n_tokens == len(STORY)
        engine.close()


def test_an_emptied_cache_is_empty_on_disk_as_well(tmp_path: Path) -> None:
    config = EngineConfig(memory=KEPT, disk=tmp_path, disk_limit=1_000_000, check=True)
    with FakeBackend(n_ctx=1024) as backend:
        engine = Engine(backend, config)
        list(engine.stream(job("a", STORY, 4)))
        list(engine.stream(job("b", STORY[::-1], 4)))
        assert engine.clear_cache().result(WAIT) > 0
        engine.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_closed_engine_refuses_every_command(fake_backend: Callable[..., FakeBackend]) -> None:
    engine = Engine(fake_backend(), EngineConfig(memory=KEPT, check=True))
    engine.close()
    replies: list[Future[object]] = [engine.cache(), engine.clear_cache(), engine.erase_slot(0)]  # type: ignore[list-item]
    for reply in replies:
        assert isinstance(reply.exception(WAIT), UnavailableError)


def test_commands_reach_the_engine_from_other_threads(fake_backend: Callable[..., FakeBackend]) -> None:
    backend = fake_backend(n_seq_max=2)
    engine = Engine(backend, EngineConfig(memory=KEPT, check=True))
    list(engine.stream(job("a", STORY, 4, id_slot=1)))
    saved = engine.save_slot(1).result(WAIT)
    assert len(saved.tokens) == len(STORY) + 3
    assert engine.erase_slot(1).result(WAIT) == len(saved.tokens)
    engine.restore_slot(1, saved).result(WAIT)
    assert engine.save_slot(1).result(WAIT) == saved
    with pytest.raises(RequestError, match="Invalid slot ID"):
        engine.save_slot(2).result(WAIT)
    engine.close()


def test_an_engine_that_is_broken_by_a_command_tells_so(
    fake_backend: Callable[..., FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = fake_backend(n_seq_max=2)
    engine = Engine(backend, EngineConfig(memory=KEPT, check=True))
    monkeypatch.setattr(backend, "save", lambda _seq: 1 / 0)
    error = engine.save_slot(0).exception(WAIT)
    assert "division by zero" in str(error)
    list(engine.stream(job("a", STORY, 4)))
    engine.close()


def test_an_engine_that_dies_of_a_command_answers_those_behind_it(
    fake_backend: Callable[..., FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = fake_backend(n_seq_max=2)
    engine = Engine(backend, EngineConfig(memory=KEPT, check=True))
    inbox = Ends()
    backend.gate.close()
    engine.submit(job("a", STORY, 4, id_slot=1), inbox)
    backend.gate.wait_held()
    monkeypatch.setattr(backend, "save", lambda _seq: 1 / 0)
    monkeypatch.setattr(backend, "discard", lambda: 1 / 0)
    first, second = engine.save_slot(0), engine.cache()
    backend.gate.open()
    assert "division by zero" in str(first.exception(WAIT))
    assert isinstance(second.exception(WAIT), UnavailableError)
    assert isinstance(inbox.wait()[0], Failed)
    monkeypatch.undo()
    engine.close()
