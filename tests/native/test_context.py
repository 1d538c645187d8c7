"""The real backend keeps the contracts of `native.protocol`, and turns every way to abort libllama into an error.

Where a contract is broken in C the whole test process dies, so a crash here is a failed test, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from minka.errors import ModelError, NativeError
from minka.native.context import DEFAULT_SLOTS, Context
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.params import ContextParams, ModelParams, SamplingParams
from tests.native.conftest import SMALL
from tests.tiny_fixtures import TinyModels

Contexts = Callable[..., Context]
TEXT = [300 + 7 * i % 150 for i in range(60)]


def feed(context: Context, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Append tokens to a sequence, in as many batches as it takes; the logits of the last one."""
    for at in range(0, len(tokens), context.n_batch):
        row = context.add(seq, tokens[at : at + context.n_batch], context.length(seq), logits=1)
        assert context.decode() is Decoded.OK
    return context.logits(row).copy()


def fresh(context: Context, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after these tokens, computed from nothing; leaves the context empty."""
    context.clear()
    logits = feed(context, 0, tokens)
    context.clear()
    return logits


def assert_same(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-3)
    assert float(wanted.std()) > 1, "logits that are all alike would prove nothing"


# -- sizes and layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "n_seq", "is_unified", "n_ctx", "n_ctx_seq"),
    [
        ({"n_ctx": 512, "parallel": -1, "kv_unified": None}, DEFAULT_SLOTS, True, 512, 512),
        ({"n_ctx": 1024, "parallel": 4, "kv_unified": None}, 4, False, 1024, 256),
        ({"n_ctx": 1024, "parallel": 4, "kv_unified": True}, 4, True, 1024, 1024),
        ({"n_ctx": 1024, "parallel": -1, "kv_unified": False}, DEFAULT_SLOTS, False, 1024, 256),
        ({"n_ctx": 0, "parallel": 2, "kv_unified": True}, 2, True, 2048, 2048),
        ({"n_ctx": 8192, "parallel": 2, "kv_unified": True}, 2, True, 8192, 2048),
        ({"n_ctx": 0, "parallel": 3, "kv_unified": True, "kv_unified_per_slot": 256}, 3, True, 768, 256),
    ],
)
def test_sizes_follow_the_flags(
    context: Contexts, params: dict[str, object], n_seq: int, is_unified: bool, n_ctx: int, n_ctx_seq: int
) -> None:
    made = context(**params)
    assert (made.n_seq_max, made.kv_unified, made.n_ctx, made.n_ctx_seq) == (n_seq, is_unified, n_ctx, n_ctx_seq)


@pytest.mark.parametrize("n_batch", [1, 2, 3])
def test_a_batch_has_a_token_of_every_sequence_however_small_it_was_asked_for(context: Contexts, n_batch: int) -> None:
    made = context(n_batch=n_batch, warmup=True)
    rows = [made.add(seq, [300 + seq], 0, logits=1) for seq in range(4)]
    assert made.decode() is Decoded.OK
    assert len({made.logits(row).tobytes() for row in rows}) == 4


@pytest.mark.parametrize("parallel", [0, 257])
def test_a_number_of_slots_that_cannot_be(load: Callable[[str], Model], parallel: int) -> None:
    with pytest.raises(ModelError, match="--parallel"):
        Context(load("llama"), ContextParams(**{**SMALL, "parallel": parallel}))  # type: ignore[arg-type]


def test_a_cache_larger_than_memory_is_refused_before_it_is_allocated(
    load: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = ContextParams(**{**SMALL, "n_ctx": 2**31 - 1})  # type: ignore[arg-type]
    monkeypatch.setattr("minka.native.context.available_memory", lambda: 2**30)
    with pytest.raises(ModelError, match=r"needs [\d.]+ GiB for its KV cache, but only 1\.0 GiB"):
        Context(load("llama"), huge)


def test_what_libllama_refuses_comes_with_its_reason(load: Callable[[str], Model]) -> None:
    odd = ContextParams(**{**SMALL, "cache_type_v": "q8_0"})  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="quantized V cache requires"):
        Context(load("llama"), odd)


def test_warm_up_leaves_nothing_behind(context: Contexts) -> None:
    made = context(warmup=True)
    assert [made.length(seq) for seq in range(4)] == [0] * 4
    assert_same(feed(made, 0, TEXT), fresh(context(), TEXT))


# -- decode and rows ---------------------------------------------------------------------------------------------------


def test_a_text_in_pieces_gives_the_logits_of_the_whole(context: Contexts, unified: bool) -> None:
    made = context(kv_unified=unified, n_ctx=1024)
    for chunk in (TEXT[:7], TEXT[7:8], TEXT[8:59]):
        feed(made, 2, chunk)
    assert_same(feed(made, 2, TEXT[59:]), fresh(context(), TEXT))
    assert [made.length(seq) for seq in range(4)] == [0, 0, 60, 0]


def test_sequences_of_one_batch_do_not_see_each_other(context: Contexts, unified: bool) -> None:
    made, texts = context(kv_unified=unified, n_ctx=1024), [TEXT[:20], TEXT[20:50], TEXT[50:]]
    rows = [made.add(seq, text, 0, logits=1) for seq, text in enumerate(texts)]
    assert made.decode() is Decoded.OK
    got = [made.logits(row).copy() for row in rows]
    for logits, text in zip(got, texts, strict=True):
        assert_same(logits, fresh(context(), text))


def test_several_rows_of_one_sequence(context: Contexts) -> None:
    made = context()
    last = made.add(0, TEXT[:10], 0, logits=3)
    made.decode()
    got = [made.logits(last - back).copy() for back in (0, 1, 2)]
    for back, logits in enumerate(got):
        assert_same(logits, fresh(made, TEXT[: 10 - back]))


def test_rows_without_logits_are_refused(context: Contexts) -> None:
    made = context()
    with pytest.raises(NativeError, match="no logits in row 0"):
        made.logits(0)
    row = made.add(0, TEXT[:10], 0, logits=1)
    made.decode()
    assert row == 9
    for bad in (-1, 0, 8, 10, 511, 512, 2**31):
        with pytest.raises(NativeError, match="no logits in row"):
            made.logits(bad)


def test_rows_of_an_older_decode_are_refused(context: Contexts) -> None:
    made = context()
    old = made.add(0, TEXT[:10], 0, logits=1)
    made.decode()
    new = made.add(0, TEXT[10:12], 10, logits=1)
    made.decode()
    assert made.logits(new).shape == (made.vocab.n_tokens,)
    with pytest.raises(NativeError):
        made.logits(old)


def test_a_full_pool_says_no_slot_and_changes_nothing(context: Contexts) -> None:
    made = context(n_ctx=256)
    feed(made, 0, TEXT * 4)
    made.add(1, TEXT, 0, logits=1)
    assert made.decode() is Decoded.NO_SLOT
    assert [made.length(0), made.length(1)] == [240, 0]
    assert_same(feed(made, 0, [400]), fresh(context(), [*TEXT * 4, 400]))


def test_discard_forgets_the_batch(context: Contexts) -> None:
    made = context()
    made.add(0, TEXT, 0, logits=1)
    made.discard()
    assert_same(feed(made, 0, TEXT[:5]), fresh(context(), TEXT[:5]))


# -- share, cut, floor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "swa", "bpe"])
@pytest.mark.parametrize("n", [1, 20, 29, 30])
def test_a_shared_prefix_goes_on_like_a_fresh_one(context: Contexts, unified: bool, name: str, n: int) -> None:
    made = context(name, kv_unified=unified, n_ctx=1024)
    feed(made, 1, TEXT[:30])
    made.share(1, 3, n)
    assert (made.length(1), made.length(3)) == (30, n)
    other = [450, 451, 452]
    assert_same(feed(made, 3, other), fresh(context(name), [*TEXT[:n], *other]))
    # The source is as it was, and both go on independently.
    assert_same(feed(made, 1, [460]), fresh(context(name), [*TEXT[:30], 460]))


def test_share_drops_what_the_target_held(context: Contexts, unified: bool) -> None:
    made = context(kv_unified=unified, n_ctx=1024)
    feed(made, 0, TEXT[:20])
    feed(made, 1, [480] * 33)
    made.share(0, 1, 12)
    assert_same(feed(made, 1, [470]), fresh(context(), [*TEXT[:12], 470]))


def test_share_takes_no_cells_of_a_unified_pool(context: Contexts) -> None:
    made = context(n_ctx=256)
    feed(made, 0, TEXT * 4)
    for seq in (1, 2, 3):
        made.share(0, seq, 240)
        assert_same(feed(made, seq, [400 + seq]), fresh(context(), [*TEXT * 4, 400 + seq]))


def test_cells_live_as_long_as_one_sequence_holds_them(context: Contexts) -> None:
    made = context(n_ctx=256)
    feed(made, 0, TEXT)
    made.share(0, 1, 40)
    made.cut(0, 0)
    assert_same(feed(made, 1, [400]), fresh(context(), [*TEXT[:40], 400]))


def test_a_copy_between_streams_can_be_cut_before_it_was_ever_computed(context: Contexts) -> None:
    """libllama copies between streams at the next decode only; what was cut and shared before it must hold."""
    made = context(kv_unified=False, n_ctx=1024)
    feed(made, 0, TEXT)
    made.share(0, 1, 50)
    made.cut(1, 30)
    made.share(1, 2, 20)
    made.cut(0, 0)
    assert_same(feed(made, 2, [400]), fresh(context(), [*TEXT[:20], 400]))
    assert_same(feed(made, 1, [401]), fresh(context(), [*TEXT[:30], 401]))


@pytest.mark.parametrize("n", [0, 1, 17, 59, 60, 61])
def test_a_cut_sequence_goes_on_like_a_fresh_one(context: Contexts, unified: bool, n: int) -> None:
    made = context(kv_unified=unified, n_ctx=1024)
    feed(made, 0, TEXT)
    made.cut(0, n)
    assert made.length(0) == min(n, 60)
    assert_same(feed(made, 0, [400, 401]), fresh(context(), [*TEXT[:n], 400, 401]))


def test_plain_attention_can_be_cut_anywhere(context: Contexts) -> None:
    made = context()
    assert made.floor(0) == 0
    feed(made, 0, TEXT)
    assert made.floor(0) == 0


@pytest.mark.parametrize("name", ["recurrent", "hybrid"])
def test_a_state_cannot_be_cut_but_copied_whole(context: Contexts, unified: bool, name: str) -> None:
    made = context(name, kv_unified=unified, n_ctx=1024)
    assert made.floor(0) == 0
    feed(made, 0, TEXT)
    assert made.floor(0) == 60
    for n in (1, 59):
        with pytest.raises(NativeError, match=f"cannot be cut to {n}"):
            made.cut(0, n)
        with pytest.raises(NativeError, match="cannot share"):
            made.share(0, 1, n)
    made.share(0, 1, 60)
    assert_same(feed(made, 1, [400]), fresh(context(name), [*TEXT, 400]))
    assert_same(feed(made, 0, [401]), fresh(context(name), [*TEXT, 401]))
    made.cut(0, 0)
    assert_same(feed(made, 0, TEXT[:9]), fresh(context(name), TEXT[:9]))


@pytest.mark.parametrize("n_ubatch", [16, 512])
def test_a_sliding_window_can_be_cut_down_to_its_floor(context: Contexts, unified: bool, n_ubatch: int) -> None:
    """The window is 32 positions; in small steps libllama drops what lies before it."""
    long = [300 + 11 * i % 150 for i in range(400)]

    def swa() -> Context:
        return context("swa", kv_unified=unified, n_ctx=2048, n_ubatch=n_ubatch)

    made = swa()
    for at in range(0, 400, 50):
        feed(made, 0, long[at : at + 50])
    floor = made.floor(0)
    assert floor < 400, "some way back is always possible"
    if floor:
        with pytest.raises(NativeError, match="cannot be cut"):
            made.cut(0, floor - 1)
        with pytest.raises(NativeError, match="cannot share"):
            made.share(0, 1, floor - 1)
    n = max(floor, 1)
    made.share(0, 1, n)
    made.cut(0, n)
    wanted = fresh(swa(), [*long[:n], 400])
    assert_same(feed(made, 1, [400]), wanted)
    assert_same(feed(made, 0, [400]), wanted)


def test_long_prompts_side_by_side_keep_their_windows(context: Contexts) -> None:
    """A batch of several parts would make libllama drop what the first part still attends to."""
    made = context("swa", n_ctx=2048, n_ubatch=64, n_batch=512)
    texts = {seq: [300 + (7 + seq) * i % 150 for i in range(500)] for seq in (0, 2)}
    for size in (170, 300, 30):
        for seq in (0, 2):
            got = feed(made, seq, texts[seq][made.length(seq) : made.length(seq) + size])
            assert_same(got, fresh(context("swa", n_ctx=2048), texts[seq][: made.length(seq)]))


def test_a_small_window_has_a_floor_at_all(context: Contexts) -> None:
    """Otherwise the test above would not test one."""
    made = context("swa", n_ctx=2048, n_ubatch=16, parallel=1)
    for at in range(0, 400, 50):
        feed(made, 0, [300 + i % 100 for i in range(50)])
        assert made.length(0) == at + 50
    assert 0 < made.floor(0) <= 400


# -- what would abort --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [-1, 4, 5, 255, 2**31, 2**40])
@pytest.mark.parametrize("name", ["llama", "swa"])
def test_a_sequence_that_is_none_is_refused_everywhere(context: Contexts, seq: int, name: str) -> None:
    made = context(name)
    feed(made, 0, TEXT[:20])
    calls: list[Callable[[], object]] = [
        lambda: made.add(seq, [300], 0, logits=0),
        lambda: made.length(seq),
        lambda: made.floor(seq),
        lambda: made.cut(seq, 0),
        lambda: made.share(0, seq, 20),
        lambda: made.share(seq, 0, 20),
    ]
    for call in calls:
        with pytest.raises(NativeError, match="outside 0 to 3"):
            call()
    assert_same(feed(made, 0, [400]), fresh(context(name), [*TEXT[:20], 400]))


def test_shares_and_cuts_of_nonsense_are_refused(context: Contexts, unified: bool) -> None:
    made = context(kv_unified=unified, n_ctx=1024)
    feed(made, 0, TEXT)
    for src, dst, n in ((0, 0, 10), (0, 1, 0), (0, 1, -1), (0, 1, 61), (2, 1, 1)):
        with pytest.raises(NativeError, match="cannot share"):
            made.share(src, dst, n)
    with pytest.raises(NativeError, match="cannot be cut to -1"):
        made.cut(0, -1)
    assert [made.length(seq) for seq in range(4)] == [60, 0, 0, 0]


def test_a_sequence_never_grows_over_its_size(context: Contexts, unified: bool) -> None:
    made = context(kv_unified=unified, n_ctx=1024)
    limit = made.n_ctx_seq
    feed(made, 0, [300] * (limit - 1))
    with pytest.raises(NativeError, match=f"would grow to {limit + 1} of {limit}"):
        made.add(0, [300, 301], limit - 1, logits=1)
    feed(made, 0, [300])
    with pytest.raises(NativeError, match="would grow"):
        made.add(0, [300], limit, logits=1)


def test_a_batch_is_never_overfull(context: Contexts) -> None:
    made = context(n_batch=32)
    made.add(0, TEXT[:30], 0, logits=1)
    with pytest.raises(NativeError, match="a batch of 32 tokens cannot take 3 more"):
        made.add(1, TEXT[:3], 0, logits=1)
    with pytest.raises(NativeError):
        made.add(1, [], 0, logits=0)
    made.add(1, TEXT[:2], 0, logits=1)
    assert made.decode() is Decoded.OK


@pytest.mark.parametrize("logits", [-1, 11, 300])
def test_more_logits_than_there_can_be_are_refused(context: Contexts, logits: int) -> None:
    made = context()
    with pytest.raises(NativeError, match="logits rows"):
        made.add(0, TEXT[:10], 0, logits=logits)
    feed(made, 0, TEXT)


def test_more_logits_than_a_batch_can_have_are_refused(context: Contexts) -> None:
    made = context(n_batch=512)
    made.add(0, TEXT[:4], 0, logits=4)
    many = [TEXT[0]] * (made.n_rows - 3)
    with pytest.raises(NativeError, match="logits rows"):
        made.add(1, many, 0, logits=len(many))
    assert made.decode() is Decoded.OK


@pytest.mark.parametrize("token", [-1, 512, 2**31 - 1])
def test_a_token_that_is_none_fails_the_decode_only(context: Contexts, token: int) -> None:
    made = context()
    feed(made, 0, TEXT[:5])
    made.add(0, [300, token], 5, logits=1)
    with pytest.raises(NativeError, match="could not compute"):
        made.decode()
    assert made.length(0) == 5
    assert_same(feed(made, 0, [400]), fresh(context(), [*TEXT[:5], 400]))


@pytest.mark.parametrize("pos", [-3, 0, 4, 9])
def test_positions_that_do_not_follow_fail_the_decode_only(context: Contexts, pos: int) -> None:
    made = context()
    feed(made, 0, TEXT[:5])
    made.add(0, [300], pos, logits=1)
    with pytest.raises(NativeError, match="could not compute"):
        made.decode()
    assert_same(feed(made, 0, [400]), fresh(context(), [*TEXT[:5], 400]))


def test_an_empty_batch_is_an_error(context: Contexts) -> None:
    with pytest.raises(NativeError, match="a batch of 0 tokens"):
        context().decode()


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent"])
def test_a_closed_context_says_so(context: Contexts, name: str) -> None:
    made = context(name)
    row = made.add(0, TEXT, 0, logits=1)
    made.decode()
    sampler = made.sampler(SamplingParams(), 1)
    made.close()
    made.close()
    calls: list[Callable[[], object]] = [
        lambda: made.add(0, [300], 60, logits=0),
        made.decode,
        lambda: made.logits(row),
        lambda: made.length(0),
        lambda: made.floor(0),
        lambda: made.cut(0, 1),
        lambda: made.share(0, 1, 60),
        lambda: made.sampler(SamplingParams(), 0),
        lambda: sampler.sample(row),
        made.clear,
    ]
    for call in calls:
        with pytest.raises(NativeError):
            call()
    made.discard()
    sampler.close()


def test_contexts_of_one_model_are_independent(context: Contexts) -> None:
    one, other = context(), context()
    feed(one, 0, TEXT)
    assert other.length(0) == 0
    one.close()
    assert_same(feed(other, 0, TEXT), fresh(context(), TEXT))


def test_a_model_that_cannot_generate_is_refused(tiny_models: TinyModels) -> None:
    """libllama would abort the process in the first decode."""
    model = Model.load(tiny_models("bert"), ModelParams())
    with pytest.raises(ModelError, match="only makes embeddings"):
        Context(model, ContextParams(n_ctx=128))
    model.close()


def test_decodes_of_the_same_shape_reuse_the_graph(context: Contexts, unified: bool) -> None:
    made = context(kv_unified=unified)
    for seq in range(2):
        feed(made, seq, TEXT[:10])
    before = made.n_graphs_reused
    for _ in range(8):
        for seq in range(2):
            made.add(seq, TEXT[:1], made.length(seq), logits=1)
        assert made.decode() is Decoded.OK
    assert made.n_graphs_reused - before >= 6
