from __future__ import annotations

import numpy as np
import pytest

import minka.tools
from minka.errors import UsageError
from minka.native.raw import RawBatch, RawContext
from minka.params import ContextParams
from minka.tools.bench_batched import BatchedResult, Setup
from tests.tiny_fixtures import TinyModels


def context(n_ctx: int = 512, n_batch: int = 2048, *, unified: bool = False) -> ContextParams:
    return ContextParams(n_ctx=n_ctx, n_batch=n_batch, threads=1, kv_unified=unified)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(tokens, outputs, steps) of everything that is decoded."""
    calls: list[tuple[int, int, int]] = []
    decode, generate = RawContext.decode, RawContext.generate

    def watched_decode(raw: RawContext, batch: RawBatch) -> None:
        calls.append((batch.n_tokens, batch.n_outputs, 1))
        decode(raw, batch)

    def watched_generate(
        raw: RawContext, batch: RawBatch, tokens: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    ) -> None:
        calls.append((batch.n_tokens, batch.n_outputs, len(tokens)))
        generate(raw, batch, tokens)

    monkeypatch.setattr(RawContext, "decode", watched_decode)
    monkeypatch.setattr(RawContext, "generate", watched_generate)
    return calls


def test_prompts_go_together_and_then_a_token_of_each_sequence(
    tiny_models: TinyModels, decoded: list[tuple[int, int, int]]
) -> None:
    (result,) = minka.tools.batched_bench(tiny_models("llama"), [12], [5], [3], context=context())
    assert decoded == [(16, 0, 1), (36, 3, 1), (3, 3, 5)]
    assert (result.n_kv, result.n_prompt) == (3 * 17, 36)
    assert result.t_pp > 0 < result.t_tg


def test_prompts_are_cut_into_batches(tiny_models: TinyModels, decoded: list[tuple[int, int, int]]) -> None:
    minka.tools.batched_bench(tiny_models("llama"), [12], [1], [3], context=context(n_batch=16))
    assert decoded == [(16, 0, 1), (16, 1, 1), (16, 1, 1), (4, 1, 1), (3, 3, 1)]


@pytest.mark.parametrize("unified", [False, True])
def test_a_shared_prompt_is_computed_once(
    tiny_models: TinyModels, decoded: list[tuple[int, int, int]], unified: bool
) -> None:
    (result,) = minka.tools.batched_bench(
        tiny_models("llama"), [12], [5], [4], shared=True, context=context(unified=unified)
    )
    # Between sequences of their own the copies are made by one more token.
    assert decoded == [(16, 0, 1), (12, 1, 1), *([] if unified else [(1, 1, 1)]), (4, 4, 5)]
    assert (result.n_kv, result.n_prompt) == ((12 if unified else 48) + 20, 12)


def test_sequences_may_generate_one_after_another(tiny_models: TinyModels, decoded: list[tuple[int, int, int]]) -> None:
    minka.tools.batched_bench(tiny_models("llama"), [12], [5], [3], separate=True, context=context())
    assert decoded[2:] == [(1, 1, 5)] * 3


def test_combinations_that_do_not_fit_are_left_out(tiny_models: TinyModels) -> None:
    seen: list[BatchedResult] = []
    results = minka.tools.batched_bench(
        tiny_models("llama"), [8, 200], [2], [1, 2, 4], context=context(256, unified=True), on_result=seen.append
    )
    assert [(result.pp, result.pl) for result in results] == [(8, 1), (8, 2), (8, 4), (200, 1)]
    assert list(results) == seen


@pytest.mark.parametrize("shapes", [([], [1], [1]), ([1], [], [1]), ([1], [1], []), ([1], [1], [0]), ([-1], [1], [1])])
def test_nothing_to_measure_is_refused(tiny_models: TinyModels, shapes: tuple[list[int], list[int], list[int]]) -> None:
    with pytest.raises(UsageError, match="-npp"):
        minka.tools.batched_bench(tiny_models("llama"), *shapes, context=context())


def test_speeds_are_tokens_by_seconds() -> None:
    setup = Setup(512, 2048, 512, -1, shared=False, separate=False, n_gpu_layers=-1, n_threads=2, n_threads_batch=2)
    result = BatchedResult(setup, 10, 4, 3, 42, 2.0, 0.5)
    assert (result.speed_pp, result.speed_tg, result.speed) == (15.0, 24.0, 42 / 2.5)
    assert BatchedResult(setup, 0, 4, 3, 12, 0.0, 0.5).speed_pp == 0.0
