"""Changing positions in libllama: what moves is what computing it there gives, and nothing else changes.

A model of one layer computes keys and values from token and position alone, so there a shift is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray

from minka.engine.engine import Engine, EngineConfig
from minka.errors import NativeError, NotSupportedError
from minka.native.context import Context
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.params import ContextParams
from minka.types import Finished
from tests import tiny
from tests.engine.rig import job
from tests.native.conftest import ON_CPU, SMALL

Contexts = Callable[..., Context]
TEXT = [300 + 7 * i % 150 for i in range(60)]
OTHER = [301 + 11 * i % 150 for i in range(40)]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A Llama of one layer."""
    path = tiny.write_llama(tmp_path_factory.mktemp("shallow") / "one-layer.gguf", n_layer=1)
    with closing(Model.load(path, ON_CPU)) as model:
        yield model


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A Llama whose heads are wide enough for blocks of quantized numbers."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    with closing(Model.load(tiny.write_llama(path, n_embd=128, n_head=2, n_head_kv=1), ON_CPU)) as model:
        yield model


def opened(model: Model, **params: object) -> Context:
    return Context(model, ContextParams(**{**SMALL, "n_ctx": 1024, **params}))  # type: ignore[arg-type]


def feed(context: Context, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
    row = context.add(seq, tokens, context.length(seq), logits=1)
    assert context.decode() is Decoded.OK
    return context.logits(row).copy()


@pytest.mark.parametrize("flash_attn", ["off", "on"])
@pytest.mark.parametrize(
    ("shifts", "left"),
    [
        ([(0, 10)], [*range(10, 60)]),
        ([(5, 20)], [*range(5), *range(25, 60)]),
        ([(3, 7), (10, 5), (1, 1)], [0, 2, *range(10, 17), *range(22, 60)]),
    ],
)
def test_what_moves_is_what_it_would_be_there(
    shallow: Model, unified: bool, flash_attn: str, shifts: list[tuple[int, int]], left: list[int]
) -> None:
    with closing(opened(shallow, kv_unified=unified, flash_attn=flash_attn)) as moved:
        feed(moved, 1, TEXT)
        for keep, discard in shifts:
            moved.shift(1, keep, discard)
        assert moved.length(1) == len(left)
        got = [feed(moved, 1, [token]) for token in OTHER[:3]]
    with closing(opened(shallow, kv_unified=unified, flash_attn=flash_attn)) as fresh:
        feed(fresh, 1, [TEXT[i] for i in left])
        wanted = [feed(fresh, 1, [token]) for token in OTHER[:3]]
    assert float(np.std(wanted)) > 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.03)


def test_without_the_shift_it_would_not_be(shallow: Model) -> None:
    """Else the test above would prove nothing: positions count."""
    with closing(opened(shallow)) as context:
        feed(context, 0, TEXT)
        whole = feed(context, 0, OTHER[:1])
        context.clear()
        feed(context, 0, TEXT[10:])
        assert float(np.abs(whole - feed(context, 0, OTHER[:1])).max()) > 0.3


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_no_other_sequence_changes(context: Contexts, unified: bool, kind: str) -> None:
    made = context(n_ctx=1024, kv_unified=unified, cache_type_k=kind, cache_type_v=kind)
    feed(made, 0, OTHER)
    feed(made, 1, TEXT)
    before = made.save(0)
    made.shift(1, 4, 9)
    feed(made, 1, [5])
    assert made.save(0) == before


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantized_keys_of_others_change_by_their_rounding_at_most(wide: Model, kind: str) -> None:
    with closing(opened(wide, flash_attn="on", cache_type_k=kind, cache_type_v=kind)) as made:
        feed(made, 0, OTHER)
        wanted = feed(made, 0, [5])
        made.cut(0, len(OTHER))
        feed(made, 1, TEXT)
        for _ in range(5):
            made.shift(1, 4, 3)
            feed(made, 1, [5])
        np.testing.assert_allclose(feed(made, 0, [5]), wanted, rtol=0, atol=0.1)


def test_a_shared_beginning_that_stays_is_the_others_as_before(context: Contexts, unified: bool) -> None:
    made = context(n_ctx=1024, kv_unified=unified)
    feed(made, 0, TEXT)
    made.share(0, 1, 20)
    feed(made, 1, OTHER)
    alone = feed(made, 1, [5])
    made.cut(1, 60)
    made.shift(0, 30, 10)
    feed(made, 0, [7])
    assert (made.length(0), made.length(1)) == (51, 60)
    np.testing.assert_allclose(feed(made, 1, [5]), alone, rtol=0, atol=1e-3)


# -- what has to wait for a decode -------------------------------------------------------------------------------------


def test_what_moved_can_be_saved_after_the_next_decode_only(context: Contexts, unified: bool) -> None:
    made = context(n_ctx=1024, kv_unified=unified)
    assert made.sliceable
    feed(made, 0, TEXT)
    kept = made.extract(0, [(0, 8)])
    made.shift(0, 8, 4)
    with pytest.raises(NativeError, match="was shifted: it can be saved after the next decode only"):
        made.save(0)
    with pytest.raises(NativeError, match="was shifted: what moved can be extracted after the next decode only"):
        made.extract(0, [(0, 8), (8, 9)])
    assert made.extract(0, [(0, 8)]) == kept
    feed(made, 1, [5])
    whole = made.extract(0, [(0, 56)])[0]
    assert (whole.slice(8), made.length(0)) == (kept[0], 56)


def test_a_shift_is_forgotten_with_what_moved(context: Contexts, unified: bool) -> None:
    made = context(n_ctx=1024, kv_unified=unified)
    feed(made, 0, TEXT)
    saved = made.save(0)
    made.shift(0, 8, 4)
    made.cut(0, 8)
    assert made.save(0)
    made.restore(0, saved)
    made.shift(0, 8, 4)
    assert made.restore(0, saved)
    assert made.save(0) == saved


def test_what_is_shared_before_the_decode_arrives_moved(shallow: Model, unified: bool) -> None:
    with closing(opened(shallow, kv_unified=unified)) as made:
        feed(made, 0, TEXT)
        made.shift(0, 8, 12)
        made.share(0, 1, 40)
        with pytest.raises(NativeError):
            made.save(1)
        got = feed(made, 1, [5])
    with closing(opened(shallow, kv_unified=unified)) as fresh:
        feed(fresh, 1, [*TEXT[:8], *TEXT[20:52]])
        np.testing.assert_allclose(got, feed(fresh, 1, [5]), rtol=0, atol=0.03)


@pytest.mark.parametrize(("keep", "discard"), [(-1, 5), (0, 0), (0, -1), (0, 60), (59, 1), (60, 1), (5, 2**40)])
def test_a_shift_that_cannot_be_is_an_error(context: Contexts, keep: int, discard: int) -> None:
    made = context()
    feed(made, 0, TEXT)
    with pytest.raises(NativeError, match="cannot drop"):
        made.shift(0, keep, discard)
    with pytest.raises(NativeError):
        made.shift(1, 0, 1)
    assert made.length(0) == 60


# -- which models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "can_shift", "can_splice"),
    [
        ("llama", {}, True, True),
        ("llama", {"rope_scaling": "linear", "rope_freq_scale": 0.5}, True, True),
        ("llama", {"rope_scaling": "yarn", "rope_freq_scale": 0.25}, False, False),
        ("llama", {"yarn_ext_factor": 1.0}, False, False),
        ("llama", {"yarn_attn_factor": 1.5}, False, False),
        ("llama", {"cache_type_k": "bf16"}, False, False),
        ("llama", {"cache_type_v": "bf16"}, True, True),
        ("swa", {}, False, False),
        ("swa", {"swa_full": True}, True, True),
        ("recurrent", {}, True, False),
        ("hybrid", {}, True, False),
    ],
)
def test_which_models_can(
    context: Contexts, name: str, params: dict[str, object], can_shift: bool, can_splice: bool
) -> None:
    made = context(name, n_ctx=2048, **params)
    assert (made.can_shift, made.can_splice) == (can_shift, can_splice)


def test_a_rope_that_scales_would_damage_the_others(context: Contexts) -> None:
    """Why YaRN is refused. If libllama ever leaves alone what does not move, this fails, and `positions` can go."""
    made = context(n_ctx=1024, rope_scaling="yarn", rope_freq_scale=0.25)
    feed(made, 0, OTHER)
    feed(made, 1, TEXT)
    before = made.save(0)
    with pytest.raises(NativeError):
        made.shift(1, 4, 9)
    made.can_shift = True
    made.shift(1, 4, 9)
    feed(made, 1, [5])
    assert made.save(0) != before


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
def test_a_text_goes_on_behind_its_context(context: Contexts, unified: bool, name: str) -> None:
    made = context(name, n_ctx=256, parallel=1, kv_unified=unified, swa_full=True)
    engine = Engine(made, EngineConfig(shifts=True, check=True))
    ends = [list(engine.stream(job(str(i), TEXT, 600, n_keep=10 * i)))[-1] for i in range(2)]
    engine.close()
    for end in ends:
        assert isinstance(end, Finished)
        assert (end.truncated, end.timings.predicted_n) == (True, 600)


def test_an_engine_on_a_model_that_cannot_says_so(context: Contexts) -> None:
    with pytest.raises(NotSupportedError, match="--context-shift cannot be used"):
        Engine(context("swa", n_ctx=2048), EngineConfig(shifts=True))
    with pytest.raises(NotSupportedError, match="--cache-reuse cannot be used: this model has a recurrent state"):
        Engine(context("recurrent"), EngineConfig(reuses=True))


def test_a_chat_that_forgets_its_first_turn_goes_on_with_the_others(context: Contexts, unified: bool) -> None:
    engine = Engine(context(n_ctx=1024, kv_unified=unified, parallel=1), EngineConfig(check=True))
    turns = [[260 + (7 * i + 31 * turn) % 200 for i in range(50)] for turn in range(4)]
    list(engine.stream(job("before", [1, *turns[0], *turns[1], *turns[2]], 4)))
    end = list(engine.stream(job("after", [1, *turns[1], *turns[2], *turns[3]], 4, n_cache_reuse=32)))[-1]
    engine.close()
    assert isinstance(end, Finished)
    assert end.timings.cache_n == 1 + 50 + 50
