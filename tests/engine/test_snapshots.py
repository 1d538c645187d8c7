"""Whole states: the longest that fits is found, the least recently used go, and nothing else."""

from __future__ import annotations

import random

import pytest

from minka.engine.snapshots import Snapshots


def kept(snapshots: Snapshots) -> list[tuple[int, ...]]:
    return sorted(entry.tokens for entry in snapshots._entries)


def test_the_longest_that_begins_a_text_is_found() -> None:
    snapshots = Snapshots(1000, 10)
    for n in (2, 5, 3):
        snapshots.put(range(n), bytes([n]))
    snapshots.put((0, 1, 2, 9), b"other")
    assert [len(found.tokens) if (found := snapshots.find(range(n))) else 0 for n in range(8)] == [
        *(0, 0, 2, 3),
        *(3, 5, 5, 5),
    ]
    found = snapshots.find((0, 1, 2, 9, 9))
    assert found is not None
    assert found.state == b"other"


def test_a_longer_one_serves_no_shorter_text() -> None:
    snapshots = Snapshots(1000, 10)
    snapshots.put(range(5), b"state")
    assert snapshots.find(range(4)) is None
    assert snapshots.find(()) is None
    assert snapshots.exactly(range(4)) is None
    assert snapshots.exactly(range(5)) is snapshots.find(range(6))


def test_a_text_with_the_same_end_but_another_middle_is_another() -> None:
    snapshots = Snapshots(1000, 10)
    snapshots.put((1, 2, 3), b"state")
    assert snapshots.find((1, 9, 3, 4)) is None


def test_salts_share_nothing() -> None:
    snapshots = Snapshots(1000, 10)
    snapshots.put(range(5), b"a", "a")
    assert snapshots.find(range(5)) is None
    assert snapshots.find(range(5), "b") is None
    assert snapshots.exactly(range(5)) is None
    found = snapshots.find(range(5), "a")
    assert found is not None
    assert found.state == b"a"


def test_the_least_recently_used_makes_room() -> None:
    snapshots = Snapshots(30, 10)
    for i in range(3):
        snapshots.put([i], bytes(10))
    first = snapshots.find([0])
    assert first is not None
    snapshots.touch(first)
    snapshots.put([3], bytes(10))
    assert kept(snapshots) == [(0,), (2,), (3,)]
    snapshots.put([4], bytes(25))
    assert kept(snapshots) == [(4,)]
    assert snapshots.n_bytes == 25


def test_there_are_never_more_than_so_many() -> None:
    snapshots = Snapshots(1000, 2)
    for i in range(5):
        snapshots.put([i], b"x")
    assert kept(snapshots) == [(3,), (4,)]
    assert (len(snapshots), snapshots.n_tokens, snapshots.n_bytes) == (2, 2, 2)


@pytest.mark.parametrize(("limit", "count"), [(9, 10), (0, 10), (1000, 0)])
def test_what_cannot_fit_is_not_kept_and_pushes_nothing_out(limit: int, count: int) -> None:
    snapshots = Snapshots(limit, count)
    snapshots.put([1], b"")
    before = kept(snapshots)
    snapshots.put([2], bytes(10))
    assert kept(snapshots) == before
    assert snapshots.n_bytes == 0


def test_a_pinned_one_stays() -> None:
    snapshots = Snapshots(30, 3)
    for i in range(3):
        snapshots.put([i], bytes(10))
    pinned = snapshots.find([0])
    assert pinned is not None
    pinned.pins += 1
    for i in range(3, 6):
        snapshots.put([i], bytes(10))
    assert kept(snapshots) == [(0,), (4,), (5,)]
    assert snapshots.clear() == 2
    assert kept(snapshots) == [(0,)]
    pinned.pins -= 1
    assert snapshots.clear() == 1
    assert (len(snapshots), snapshots.n_bytes) == (0, 0)


def test_random_traffic_against_a_table() -> None:
    choose = random.Random(5)
    for _ in range(50):
        limit, count = choose.choice((0, 20, 200)), choose.choice((1, 3, 50))
        snapshots = Snapshots(limit, count)
        table: list[tuple[tuple[int, ...], str, bytes]] = []  # the least recently used first
        for _ in range(60):
            tokens = tuple(choose.choices((0, 1), k=choose.randint(1, 6)))
            salt, state = choose.choice(("", "salt")), bytes(choose.randint(0, 9))
            fitting = [row for row in table if row[1] == salt and tokens[: len(row[0])] == row[0]]
            best = max(fitting, key=lambda row: len(row[0]), default=None)
            found = snapshots.find(tokens, salt)
            assert (found and found.tokens) == (best and best[0])
            if found and best and choose.random() < 0.5:
                snapshots.touch(found)
                table.remove(best)
                table.append(best)
            if snapshots.exactly(tokens, salt) is None:
                snapshots.put(tokens, state, salt)
                if len(state) <= limit:
                    table.append((tokens, salt, state))
                while sum(len(row[2]) for row in table) > limit or len(table) > count:
                    del table[0]
            assert [(entry.tokens, entry.salt, entry.state) for entry in snapshots._entries] == table
            assert snapshots.n_bytes == sum(len(row[2]) for row in table)
