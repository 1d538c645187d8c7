from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import minka.tools
from minka.errors import ModelError, UsageError
from minka.native.raw import Adapter
from minka.params import ContextParams, ModelParams
from minka.tools.perplexity_report import chunk_entry, chunk_line, eta_line, final_line
from minka.tools.perplexity_text import Chunk, Perplexity, PerplexityRun, Sums, TextOptions, perplexity
from minka.tools.scoring_context import Hardware, open_scorer
from tests.tiny_fixtures import TinyModels
from tests.tools.oracle import Oracle, log_softmax
from tests.tools.texts import story

STORY = story()
UPSTREAM = 5e-4
"""The result may differ from llama-perplexity's by 0.05 %."""


def context(n_batch: int = 2048, **options: bool) -> ContextParams:
    return ContextParams(threads=1, warmup=False, n_batch=n_batch, **options)  # type: ignore[arg-type]


# What llama-perplexity prints for this text and the model "llama": -c 128, and -b 64, and -c 256 --ppl-stride 64.
@pytest.mark.parametrize(
    ("options", "n_batch", "printed"),
    [
        (TextOptions(128, 6), 2048, (31083.8340, 26745.0701, 30309.7662, 27146.0560, 31028.9604, 31329.7969)),
        (TextOptions(128, 3), 64, (31087.1663, 26754.4674, 30321.7207)),
        (TextOptions(256, 4, stride=64), 256, (21574.7659, 29578.0690, 32847.4486, 41874.9025)),
    ],
)
def test_the_perplexity_is_llama_perplexitys(
    tiny_models: TinyModels, options: TextOptions, n_batch: int, printed: tuple[float, ...]
) -> None:
    result = perplexity(tiny_models("llama"), STORY, options, context=context(n_batch))
    assert [chunk.sums.perplexity for chunk in result.chunks] == pytest.approx(printed, rel=UPSTREAM)


def test_the_final_estimate_is_llama_perplexitys(tiny_models: TinyModels) -> None:
    result = perplexity(tiny_models("llama"), STORY, TextOptions(128, 6), context=context())
    assert result.value == pytest.approx(31329.7969, rel=UPSTREAM)
    assert result.error == pytest.approx(5955.83378, rel=UPSTREAM)
    assert (result.n_chunks, result.planned) == (6, 6)


def test_a_model_that_adds_no_bos_is_scored_without(tiny_models: TinyModels) -> None:
    result = perplexity(tiny_models("bpe"), STORY, TextOptions(64, 3), context=context())
    assert result.value == pytest.approx(46207.1239, rel=UPSTREAM)


def test_it_is_what_the_logits_say(tiny_models: TinyModels) -> None:
    n_ctx = 64
    result = perplexity(tiny_models("llama"), STORY, TextOptions(n_ctx, 2), context=context())
    values: list[float] = []
    with Oracle(tiny_models("llama")) as oracle:
        tokens = oracle.tokens(STORY.encode())
        for start in (0, n_ctx):
            window = tokens[start : start + n_ctx]
            table = log_softmax(oracle.logits([oracle.bos, *window[1:]]))
            values += [-table[i, window[i + 1]] for i in range(n_ctx // 2, n_ctx - 1)]
    assert result.sums.n == len(values) == 2 * 31
    assert result.sums.mean == pytest.approx(np.mean(values), rel=1e-4)
    assert result.sums.error == pytest.approx(np.std(values) / math.sqrt(len(values) - 1), rel=1e-3)


def test_a_strided_run_scores_the_last_tokens_of_overlapping_windows(tiny_models: TinyModels) -> None:
    options = TextOptions(32, 3, stride=8)
    with open_scorer(tiny_models("llama"), options.layout(context()), context(), Hardware()) as scorer:
        length = scorer.context.n_ctx  # libllama rounds it up
        run = PerplexityRun(scorer, STORY, options)
        last = list(run)[-1].sums
    values: list[float] = []
    with Oracle(tiny_models("llama"), n_ctx=length) as oracle:
        tokens = oracle.tokens(STORY.encode())
        for start in (0, 8, 16):
            window = tokens[start : start + length]
            table = log_softmax(oracle.logits(window))
            values += [-table[i, window[i + 1]] for i in range(length - 9, length - 1)]
    assert last.n == 24
    assert last.mean == pytest.approx(np.mean(values), rel=1e-4)


def test_batches_of_any_size_give_the_same(tiny_models: TinyModels) -> None:
    means = [
        perplexity(tiny_models("llama"), STORY, TextOptions(64, 4), context=context(n_batch)).sums.mean
        for n_batch in (7, 32, 64, 200)
    ]
    assert means == pytest.approx([means[0]] * 4, rel=1e-4)


@pytest.mark.parametrize("model", ["llama-f16", "recurrent", "hybrid", "swa"])
def test_every_kind_of_model_has_a_perplexity(tiny_models: TinyModels, model: str) -> None:
    result = perplexity(tiny_models(model), STORY, TextOptions(64, 2), context=context())
    assert result.n_chunks == 2
    assert result.value > 1
    assert result.error is not None


def test_an_adapter_counts(tiny_models: TinyModels) -> None:
    options = TextOptions(64, 2)
    plain, adapted, neutral = (
        perplexity(tiny_models("llama"), STORY, options, context=context(), hardware=Hardware(adapters=adapters)).value
        for adapters in ((), (Adapter(tiny_models("lora")),), (Adapter(tiny_models("lora"), 0.0),))
    )
    assert neutral == pytest.approx(plain, rel=1e-3)
    assert adapted == pytest.approx(26728.4942, rel=UPSTREAM)  # llama-perplexity -c 64 --chunks 2 --lora
    assert abs(adapted / plain - 1) > 0.01


def test_a_model_of_nan_has_none(tiny_models: TinyModels) -> None:
    result = perplexity(tiny_models("nan"), STORY, TextOptions(64, 2), context=context())
    assert math.isnan(result.value)
    assert result.error is None
    assert final_line(result) is None


def test_chunks_are_reported_as_they_are_scored(tiny_models: TinyModels) -> None:
    seen: list[Chunk] = []
    result = minka.tools.perplexity(
        ModelParams(model=str(tiny_models("llama"))), STORY.encode(), TextOptions(64, 5), context=context(128),
        on_chunk=seen.append,
    )  # fmt: skip
    assert tuple(seen) == result.chunks
    # Two windows are a batch, and its offset is that of the first one.
    assert [chunk.offset for chunk in seen] == [0, 0, 128, 128, 256]
    assert [chunk.sums.n for chunk in seen] == [31, 62, 93, 124, 155]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TextOptions(4096), "has only"),
        (TextOptions(3), "too short"),
        (TextOptions(64, chunks=0), "nothing to compute"),
        (TextOptions(64, stride=-1), "--ppl-stride"),
        (TextOptions(4, stride=600), "must be less than the window"),
        (TextOptions(64, stride=8, base_file=Path("x")), "no strided form"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(tiny_models: TinyModels, options: TextOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        perplexity(tiny_models("llama"), STORY, options, context=context(64))


def test_an_encoder_is_refused(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelError, match="no causal language model"):
        perplexity(tiny_models("bert"), STORY, TextOptions(64), context=context())


@contextmanager
def _interrupted_run(model: Path, base: Path) -> Iterator[PerplexityRun]:
    options = TextOptions(32, 8, base_file=base)
    with open_scorer(model, options.layout(context(32)), context(32), Hardware()) as scorer:
        run = PerplexityRun(scorer, STORY, options)
        steps = iter(run)
        for _ in range(3):
            next(steps)
        steps.close()
        yield run


def test_an_interrupted_run_keeps_what_it_has(tiny_models: TinyModels, tmp_path: Path) -> None:
    with _interrupted_run(tiny_models("llama"), tmp_path / "base") as run:
        result = run.result()
    assert (result.n_chunks, result.planned) == (3, 8)
    assert result.sums.n == 3 * 15
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_lines_are_those_of_llama_perplexity() -> None:
    chunk = Chunk(1, 512, Sums(10, 30.0, 95.0))
    assert chunk_entry(chunk) == "[2]20.0855,"
    assert chunk_line(chunk, strided=False) == "     512  20.0855  3.000000  0.235702"
    assert chunk_line(chunk, strided=True) == "     512  20.0855"
    assert final_line(Perplexity((chunk,), 1, chunk.sums)) == "Final estimate: PPL = 20.0855 +/- 4.73421"
    assert eta_line(1.5, 100) == "1.50 seconds per pass - ETA 2.50 minutes"
    assert eta_line(100, 75) == "100.00 seconds per pass - ETA 2 hours 5.00 minutes"


def test_sums_of_nothing_are_no_numbers() -> None:
    assert math.isnan(Sums().mean)
    assert Sums().error is None
    assert Sums(1, 1000.0, 1e6).perplexity == math.inf
