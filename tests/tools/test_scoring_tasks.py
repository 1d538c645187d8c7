from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from minka.errors import ModelError, UsageError
from minka.params import ContextParams
from minka.tools.scoring_report import task_line, task_summary
from minka.tools.scoring_tasks import Accuracy, Benchmark, TaskScore, accuracy
from tests.tiny_fixtures import TinyModels
from tests.tools.oracle import Oracle, log_softmax
from tests.tools.texts import choice_file, hellaswag_file, winogrande_file

ONE_THREAD = ContextParams(threads=1, warmup=False)
FILES = {"hellaswag": hellaswag_file(), "winogrande": winogrande_file(), "multiple-choice": choice_file()}

# What llama-perplexity prints for these files and the model "llama".
HELLASWAG = """
1	0.00000000%	[0.0000%, 79.3451%]
2	50.00000000%	[9.4531%, 90.5469%]
3	66.66666667%	[20.7660%, 93.8508%]
4	75.00000000%	[30.0642%, 95.4413%]
5	80.00000000%	[37.5535%, 96.3776%]
6	83.33333333%	[43.6497%, 96.9947%]
7	71.42857143%	[35.8934%, 91.7781%]
8	62.50000000%	[30.5742%, 86.3156%]
"""
WINOGRANDE = """
1	100.0000	-11.568825  -11.611369  1  1
2	50.0000	 -8.974067   -9.323574  1  2
3	33.3333	 -9.925637  -10.164031  1  2
4	25.0000	 -9.888144   -8.930639  2  1
5	20.0000	 -9.074062   -8.106579  2  1
6	33.3333	-11.423565   -8.406783  2  2
7	42.8571	-11.670285  -11.668496  2  2
8	37.5000	-10.373114  -10.827491  1  2
9	44.4444	 -9.084962   -7.224840  2  2
10	40.0000	-10.919234  -11.796765  1  2
"""
WINOGRANDE_4 = """
1	0.0000	 -9.074062   -8.106579  2  1
2	50.0000	 -9.084962   -7.224840  2  2
3	66.6667	-11.419703   -8.407970  2  2
4	75.0000	-11.670443  -11.668547  2  2
"""
CHOICE = """
1	100.00000000
2	50.00000000
3	66.66666667
4	75.00000000
5	60.00000000
6	50.00000000
7	42.85714286
8	37.50000000
"""
CHOICE_3 = """
1	100.00000000
2	50.00000000
3	33.33333333
"""


@pytest.mark.parametrize(
    ("benchmark", "n_tasks", "printed"),
    [
        ("hellaswag", 400, HELLASWAG),
        ("hellaswag", 3, "\n".join(HELLASWAG.splitlines()[:4])),
        ("winogrande", 0, WINOGRANDE),
        ("winogrande", 4, WINOGRANDE_4),
        ("multiple-choice", 0, CHOICE),
        ("multiple-choice", 3, CHOICE_3),
    ],
)
def test_tasks_are_chosen_and_scored_as_by_llama_perplexity(
    tiny_models: TinyModels, benchmark: str, n_tasks: int, printed: str
) -> None:
    kind = Benchmark(benchmark)
    result = accuracy(tiny_models("llama"), kind, FILES[benchmark], n_tasks=n_tasks, context=ONE_THREAD)
    found, expected = [task_line(kind, task).split() for task in result.tasks], printed.strip().splitlines()
    assert len(found) == len(expected)
    for words, line in zip(found, (line.split() for line in expected), strict=True):
        if kind is Benchmark.WINOGRANDE:  # the scores themselves, which kernels may round in another way
            assert [float(word) for word in words] == pytest.approx([float(word) for word in line], abs=2e-3)
        else:
            assert words == line


@pytest.mark.parametrize("model", ["llama", "recurrent"])
def test_a_score_is_the_mean_log_probability_of_the_ending(tiny_models: TinyModels, model: str) -> None:
    result = accuracy(tiny_models(model), "hellaswag", hellaswag_file(1), context=ONE_THREAD)
    context, _, *endings = hellaswag_file(1).split(b"\n")
    with Oracle(tiny_models(model)) as oracle:
        texts = [oracle.tokens(context + b" " + ending) for ending in endings]
        shared = next(i for i in range(100) if len({text[i] for text in texts}) > 1)
        expected = []
        for text in texts:
            table = log_softmax(oracle.logits(text))
            expected.append(np.mean([table[i - 1, text[i]] for i in range(shared, len(text))]))
    assert result.tasks[0].scores == pytest.approx(expected, abs=5e-3)
    assert result.tasks[0].chosen == int(np.argmax(expected))


def test_more_sequences_score_more_tasks_at_once_and_alike(tiny_models: TinyModels) -> None:
    alone, together = (
        accuracy(
            tiny_models("llama"), "multiple-choice", choice_file(), n_ctx=n_ctx,
            context=ContextParams(threads=1, warmup=False, parallel=parallel, n_batch=n_batch),
        )
        for n_ctx, parallel, n_batch in ((512, 4, 2048), (64, 24, 50))
    )  # fmt: skip
    for one, other in zip(alone.tasks, together.tasks, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=5e-3)
    assert alone.value == together.value


@pytest.mark.parametrize("model", ["bpe", "recurrent", "hybrid", "swa"])
def test_every_kind_of_model_can_be_scored(tiny_models: TinyModels, model: str) -> None:
    result = accuracy(tiny_models(model), "hellaswag", hellaswag_file(2), context=ONE_THREAD)
    assert len(result.tasks) == 2
    assert all(score < 0 for task in result.tasks for score in task.scores)


def test_a_task_that_does_not_fit_is_named_before_any_is_scored(tiny_models: TinyModels) -> None:
    seen: list[TaskScore] = []
    data = b"\n".join([b"0,it _ is,the dog,a cat,1", b"1," + b"it is so " * 100 + b"_ there,the dog,a cat,1", b""])
    with pytest.raises(UsageError, match=r"task 1 needs \d+ tokens"):
        accuracy(tiny_models("llama"), "winogrande", data, n_ctx=16, context=ONE_THREAD, on_task=seen.append)
    assert not seen


def test_a_task_needs_a_sequence_for_each_answer(tiny_models: TinyModels) -> None:
    answers = struct.pack("<I", 5) + 5 * (struct.pack("<I", 1) + b"a") + struct.pack("<5i", 1, 0, 0, 0, 0)
    data = struct.pack("<III", 1, 8, 2) + b"it" + answers + answers
    with pytest.raises(UsageError, match="5 answers: give at least as many --parallel"):
        accuracy(tiny_models("llama"), "multiple-choice", data, context=ONE_THREAD)


def test_sentences_must_begin_alike(tiny_models: TinyModels) -> None:
    data = b"\n".join([b"_ b,x", b"1,_ is,the,dog,1", b""])
    with pytest.raises(UsageError, match="in common"):
        accuracy(tiny_models("bpe"), "winogrande", data, context=ONE_THREAD)


@pytest.mark.parametrize("model", ["bert", "reranker"])
def test_a_model_without_next_tokens_is_refused(tiny_models: TinyModels, model: str) -> None:
    with pytest.raises(ModelError, match="no causal language model"):
        accuracy(tiny_models(model), "hellaswag", hellaswag_file(1), context=ONE_THREAD)


def test_an_unknown_benchmark_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trivia"):
        accuracy(tmp_path / "model.gguf", "trivia", b"")


def _result(n_right: int, n: int) -> Accuracy:
    scores = tuple(TaskScore(i, (0.0, -1.0), 0, frozenset({0}), min(i + 1, n_right)) for i in range(n))
    return Accuracy(scores, n, 2 * n)


def test_summaries_are_those_of_llama_perplexity() -> None:
    assert task_summary(Benchmark.HELLASWAG, _result(3, 8)) == []
    assert task_summary(Benchmark.WINOGRANDE, _result(60, 99)) == []
    assert task_summary(Benchmark.WINOGRANDE, _result(60, 100)) == [
        "Final Winogrande score(100 tasks): 60.0000 +/- 4.9237"
    ]
    assert task_summary(Benchmark.MULTIPLE_CHOICE, _result(3, 8)) == [
        "Final result: 37.5000 +/- 18.2981",
        "Random chance: 50.0000 +/- 18.8982",
    ]
    assert task_summary(Benchmark.MULTIPLE_CHOICE, _result(0, 0)) == []
