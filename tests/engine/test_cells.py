from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.cells import Cells

N_SEQ = 4


class Naive:
    """Every cell an object; a sequence is a list of them."""

    def __init__(self, *, unified: bool) -> None:
        self.unified = unified
        self.held: list[list[object]] = [[] for _ in range(N_SEQ)]

    def extend(self, seq: int, n: int) -> None:
        self.held[seq] += [object() for _ in range(n)]

    def share(self, src: int, dst: int, n: int) -> None:
        cells = self.held[src][:n]
        self.held[dst] = cells if self.unified else [object() for _ in cells]

    def cut(self, seq: int, n: int) -> None:
        self.held[seq] = self.held[seq][:n]

    def used_by(self, seqs: set[int]) -> int:
        return len({cell for seq in seqs for cell in self.held[seq]})


SEQ = st.integers(0, N_SEQ - 1)
SIZE = st.integers(0, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), SEQ, SIZE),
        st.tuples(st.just("cut"), SEQ, SIZE),
        st.tuples(st.just("share"), SEQ, SEQ, st.floats(0, 1)),
    ),
    max_size=25,
)


@given(steps=STEPS, unified=st.booleans(), some=st.sets(SEQ))
def test_the_ledger_counts_like_a_list_of_cells(
    steps: list[tuple[str, int, int] | tuple[str, int, int, float]], unified: bool, some: set[int]
) -> None:
    cells, naive = Cells(N_SEQ, unified=unified), Naive(unified=unified)
    for step in steps:
        match step:
            case ("extend", seq, n):
                cells.extend(seq, n)
                naive.extend(seq, n)
            case ("cut", seq, n):
                cells.cut(seq, n)
                naive.cut(seq, n)
            case (_, src, dst, float(part)) if src != dst:
                n = round(part * len(naive.held[src]))
                cells.share(src, dst, n)
                naive.share(src, dst, n)
        assert [cells.length(seq) for seq in range(N_SEQ)] == [len(held) for held in naive.held]
        assert cells.used == naive.used_by(set(range(N_SEQ)))
        assert cells.used_by(some) == naive.used_by(some)


@pytest.mark.parametrize(("unified", "used"), [(True, 100), (False, 180)])
def test_a_shared_prefix_is_counted_once_in_one_pool_and_twice_in_two(unified: bool, used: int) -> None:
    cells = Cells(2, unified=unified)
    cells.extend(0, 100)
    cells.share(0, 1, 80)
    assert cells.used == used
    cells.cut(0, 0)
    assert cells.used == cells.length(1) == 80
