from __future__ import annotations

from pathlib import Path

import pytest

import minka.tools
from minka.errors import ModelError, UsageError
from minka.native.raw import RawBatch, RawContext
from minka.tools.bench_matrix import Matrix, ModelSetup
from minka.tools.bench_run import BenchOptions, BenchRun, Measured, Step, load
from tests.tiny_fixtures import TinyModels

ONCE = BenchOptions(repetitions=1, warmup=False)


def matrix(tiny_models: TinyModels, **options: object) -> Matrix:
    base: dict[str, object] = {
        "model": (str(tiny_models("llama")),),
        "n_threads": (1,),
        "n_prompt": (16,),
        "n_gen": (4,),
    }
    return Matrix(**{**base, **options})  # type: ignore[arg-type]


class Watched:
    """What is decoded: (tokens, position of the first, steps) of every call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int, int]] = []
        decode, generate = RawContext.decode, RawContext.generate

        def watched_decode(context: RawContext, batch: RawBatch) -> None:
            self.calls.append((batch.n_tokens, int(batch.pos[0]), 1))
            assert batch.n_outputs == 1
            decode(context, batch)

        def watched_generate(context: RawContext, batch: RawBatch, tokens: object) -> None:
            self.calls.append((1, int(batch.pos[0]), len(tokens)))  # type: ignore[arg-type]
            generate(context, batch, tokens)  # type: ignore[arg-type]

        monkeypatch.setattr(RawContext, "decode", watched_decode)
        monkeypatch.setattr(RawContext, "generate", watched_generate)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_tests_are_measured_in_order(tiny_models: TinyModels) -> None:
    seen: list[Measured] = []
    options = BenchOptions(repetitions=3)
    results = minka.tools.bench(matrix(tiny_models, n_pg=((8, 2),)), options, on_test=seen.append)
    assert tuple(seen) == results
    assert [result.test.name for result in results] == ["pp16", "tg4", "pp8+tg2"]
    for result in results:
        n = result.test.n_prompt + result.test.n_gen
        assert len(result.samples_ns) == 3
        assert min(result.samples_ns) > 0
        assert result.samples_ts == pytest.approx([1e9 * n / ns for ns in result.samples_ns])
        assert (result.model_type, result.model_n_params) == ("llama ?B all F32", 139584)
        assert "minka" in result.machine.build


def test_a_prompt_is_decoded_in_batches_and_a_generation_token_by_token(
    tiny_models: TinyModels, watched: Watched
) -> None:
    minka.tools.bench(matrix(tiny_models, n_prompt=(), n_gen=(), n_pg=((10, 3),), n_batch=(4,)), ONCE)
    assert watched.calls == [(4, 0, 1), (4, 4, 1), (2, 8, 1), (1, 10, 3)]


def test_the_warm_up_is_a_whole_prompt_and_one_token(tiny_models: TinyModels, watched: Watched) -> None:
    minka.tools.bench(matrix(tiny_models, n_prompt=(), n_gen=(), n_pg=((10, 3),)), BenchOptions(repetitions=1))
    assert watched.calls == [(10, 0, 1), (1, 10, 1), (10, 0, 1), (1, 10, 3)]


def test_a_depth_is_computed_once_and_restored_for_the_tests_after(tiny_models: TinyModels, watched: Watched) -> None:
    options = BenchOptions(repetitions=2, warmup=False)
    minka.tools.bench(matrix(tiny_models, n_depth=(20,)), options)
    assert watched.calls == [(20, 0, 1), (16, 20, 1), (16, 20, 1), (1, 20, 4), (1, 20, 4)]


def test_a_depth_is_computed_again_for_another_cache(tiny_models: TinyModels, watched: Watched) -> None:
    minka.tools.bench(matrix(tiny_models, n_depth=(20,), n_gen=(), type_k=("f16", "bf16")), ONCE)
    assert watched.calls == [(20, 0, 1), (16, 20, 1)] * 2


def test_a_model_is_loaded_again_only_if_it_must(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[ModelSetup] = []

    def counted(setup: ModelSetup) -> object:
        loads.append(setup)
        return load(setup)

    monkeypatch.setattr("minka.tools.bench_run.load", counted)
    minka.tools.bench(matrix(tiny_models, n_batch=(8, 16), repack=(True, False)), ONCE)
    assert [setup.repack for setup in loads] == [True, False]


def test_the_first_token_is_bos_if_the_model_wants_it(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[int] = []
    decode = RawContext.decode

    def watched_decode(context: RawContext, batch: RawBatch) -> None:
        tokens.append(int(batch.token[0]))
        decode(context, batch)

    monkeypatch.setattr(RawContext, "decode", watched_decode)
    minka.tools.bench(matrix(tiny_models, n_gen=(), n_batch=(8,)), ONCE)
    assert tokens[0] == 1
    assert len(tokens) == 2


@pytest.mark.parametrize("model", ["recurrent", "hybrid", "swa", "bert"])
def test_every_kind_of_model_has_a_speed(tiny_models: TinyModels, model: str) -> None:
    wanted = matrix(tiny_models, model=(str(tiny_models(model)),), n_depth=(0, 8) if model != "bert" else (0,))
    assert all(result.avg_ts > 0 for result in minka.tools.bench(wanted, ONCE))


def test_progress_names_each_step(tiny_models: TinyModels) -> None:
    steps: list[Step] = []
    minka.tools.bench(matrix(tiny_models, n_gen=(), n_depth=(8,)), BenchOptions(repetitions=2), progress=steps.append)
    texts = ["starting", "warmup run"]
    texts += [f"{what} {count}" for count in ("1/2", "2/2") for what in ("depth run", "pp16 @ d8 run")]
    assert steps == [Step(1, 1, text) for text in texts]


def test_an_interrupt_leaves_the_repetitions_that_were_done(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(step: Step) -> None:
        if step.text == "pp16 run 3/5":
            raise KeyboardInterrupt

    run = BenchRun(matrix(tiny_models), BenchOptions(), interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    assert run.partial is not None
    assert len(run.partial.samples_ns) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poll": (101,)}, "--poll"),
        ({"fit_target": (512,)}, "--fit-target"),
        ({"n_batch": (0,)}, "at least 1"),
        ({"n_threads": (513,)}, "between 1 and 512"),
        ({"cpu_mask": ("zz",)}, "mask"),
        ({"devices": (("CUDA9",),)}, "no device 'CUDA9'"),
        ({"tensor_buft_overrides": ((("x", "CUDA9"),),)}, "no buffer type 'CUDA9'"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    tiny_models: TinyModels, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        minka.tools.bench(matrix(tiny_models, **options), ONCE)


def test_a_bad_model_is_found_before_a_good_one_is_measured(tiny_models: TinyModels, tmp_path: Path) -> None:
    wanted = matrix(tiny_models, model=(str(tiny_models("llama")), str(tmp_path / "none.gguf")))
    with pytest.raises(ModelError, match=r"none\.gguf"):
        BenchRun(wanted, ONCE)
    with pytest.raises(UsageError, match="--repetitions"):
        BenchRun(matrix(tiny_models), BenchOptions(repetitions=0))
