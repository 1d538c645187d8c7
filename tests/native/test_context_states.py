"""States of whole sequences, and the copies between streams that libllama puts off until the next decode."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minka.errors import NativeError
from minka.native.context import Context
from tests.native.test_context import TEXT, assert_same, feed, fresh

Contexts = Callable[..., Context]


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
def test_a_saved_state_goes_on_in_any_sequence(context: Contexts, unified: bool, name: str) -> None:
    made = context(name, kv_unified=unified, n_ctx=1024)
    feed(made, 0, TEXT)
    state = made.save(0)
    feed(made, 2, TEXT[30:])
    assert made.restore(2, state)
    made.cut(0, 0)
    assert made.length(2) == 60
    assert_same(feed(made, 2, [400]), fresh(context(name), [*TEXT, 400]))


def test_states_stay_out_of_a_copy_that_is_not_made_yet(context: Contexts) -> None:
    """libllama copies a stream when the next decode begins: until then the target has nothing, the source must last."""
    made = context(kv_unified=False, n_ctx=1024)
    feed(made, 0, TEXT)
    state = made.save(0)
    made.share(0, 1, 50)
    with pytest.raises(NativeError, match="waits for a copy"):
        made.save(1)
    for seq in (0, 1):
        with pytest.raises(NativeError, match="takes part in a copy"):
            made.restore(seq, state)
    assert made.save(0) == state
    assert made.restore(2, state)
    assert_same(feed(made, 1, [400]), fresh(context(), [*TEXT[:50], 400]))
    made.save(1)
    assert made.restore(1, state)


def test_copies_of_copies_are_made_in_their_order(context: Contexts) -> None:
    made = context(kv_unified=False, n_ctx=1024)
    feed(made, 0, TEXT)
    feed(made, 2, [480] * 33)
    made.share(0, 1, 50)
    made.share(2, 0, 20)
    made.share(1, 3, 40)
    assert_same(feed(made, 1, [400]), fresh(context(), [*TEXT[:50], 400]))
    assert_same(feed(made, 0, [401]), fresh(context(), [*[480] * 20, 401]))
    assert_same(feed(made, 3, [402]), fresh(context(), [*TEXT[:40], 402]))


@pytest.mark.parametrize("seq", [-1, 4, 255])
def test_states_of_a_sequence_that_is_none_are_refused(context: Contexts, seq: int) -> None:
    made = context()
    feed(made, 0, TEXT)
    state = made.save(0)
    with pytest.raises(NativeError, match="outside 0 to 3"):
        made.save(seq)
    with pytest.raises(NativeError, match="outside 0 to 3"):
        made.restore(seq, state)


@pytest.mark.parametrize("n", [0, 1, 11, 200])
def test_a_damaged_state_restores_nothing(context: Contexts, n: int) -> None:
    made = context()
    feed(made, 0, TEXT)
    state = made.save(0)
    assert not made.restore(1, state[:n])
    assert made.length(1) == 0
    assert_same(feed(made, 0, [400]), fresh(context(), [*TEXT, 400]))
