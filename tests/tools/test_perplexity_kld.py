from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minka.errors import UsageError
from minka.params import ContextParams
from minka.tools.perplexity_kld import Divergence, KlChunk, KlDivergence, estimate, kl_divergence, percentile
from minka.tools.perplexity_report import KLD_HEADER, kld_line, kld_summary
from minka.tools.perplexity_text import TextOptions, perplexity
from tests.tiny import write_llama
from tests.tiny_fixtures import TinyModels
from tests.tools.texts import story

ONE_THREAD = ContextParams(threads=1, warmup=False)

# What llama-perplexity prints for the model of seed 1 against the one of seed 0: -c 64 --chunks 5.
PRINTED = """\
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1    33406.2034 ± 16906.2474       0.36704 ±    0.71323       7.48160 ±    0.35291     7.285 ±  3.459 %     0.000 ±  0.000 %
   2    39705.7461 ± 15889.7350       0.40884 ±    0.52712       7.47626 ±    0.24309     7.358 ±  2.495 %     0.000 ±  0.000 %
   3    31038.8521 ± 10854.4198      -0.24418 ±    0.42024       7.60022 ±    0.20902     6.011 ±  2.042 %     0.000 ±  0.000 %
   4    28939.2821 ± 8930.7017      -0.15165 ±    0.35868       7.49854 ±    0.18660     5.220 ±  1.766 %     0.806 ±  0.806 %
   5    34145.6595 ± 9252.5990      -0.08483 ±    0.32450       7.63391 ±    0.17332     4.675 ±  1.579 %     0.645 ±  0.645 %
====== Perplexity statistics ======
Mean PPL(Q)                   : 34145.659518 ± 9252.599025
Mean PPL(base)                : 37168.692273 ± 10723.652243
Cor(ln(PPL(Q)), ln(PPL(base))):  32.85%
Mean ln(PPL(Q)/PPL(base))     :  -0.084831 ±   0.324495
Mean PPL(Q)/PPL(base)         :   0.918667 ±   0.298103
Mean PPL(Q)-PPL(base)         : -3023.032755 ± 11636.640069

====== KL divergence statistics ======
Mean    KLD:   7.633914 ±   0.173318
Maximum KLD:  15.278829
99.9%   KLD:  15.178830
99.0%   KLD:  14.191025
95.0%   KLD:  11.882195
90.0%   KLD:  10.484228
Median  KLD:   7.306951
10.0%   KLD:   5.375358
 5.0%   KLD:   5.005240
 1.0%   KLD:   4.472109
 0.1%   KLD:   2.259024
Minimum KLD:   1.882549

====== Token probability statistics ======
Mean    Δp: -0.626 ± 0.373 %
Maximum Δp:  2.581%
99.9%   Δp:  2.471%
99.0%   Δp:  1.582%
95.0%   Δp:  0.402%
90.0%   Δp:  0.138%
75.0%   Δp:  0.019%
Median  Δp:  0.000%
25.0%   Δp: -0.007%
10.0%   Δp: -0.156%
 5.0%   Δp: -1.346%
 1.0%   Δp: -23.019%
 0.1%   Δp: -40.780%
Minimum Δp: -41.007%
RMS Δp    :  4.675 ± 1.579 %
Same top p:  0.645 ± 0.645 %"""  # noqa: E501
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.fixture(scope="module")
def base_file(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of the model "llama"."""
    path = tmp_path_factory.mktemp("base") / "base"
    perplexity(tiny_models("llama"), story(), TextOptions(64, 5, base_file=path), context=ONE_THREAD)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same vocabulary that has nothing to do with it."""
    return write_llama(tmp_path_factory.mktemp("other") / "other.gguf", seed=1)


def test_it_prints_what_llama_perplexity_prints(other: Path, base_file: Path) -> None:
    lines = [KLD_HEADER]
    result = kl_divergence(other, base_file, context=ONE_THREAD, on_chunk=lambda chunk: lines.append(kld_line(chunk)))
    printed = "\n".join([*lines, *kld_summary(result)])
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", PRINTED)
    numbers, expected = ([float(number) for number in NUMBER.findall(text)] for text in (printed, PRINTED))
    assert numbers == pytest.approx(expected, rel=2e-3, abs=5e-3)


def test_a_model_does_not_diverge_from_itself(tiny_models: TinyModels, base_file: Path) -> None:
    result = kl_divergence(tiny_models("llama"), base_file, context=ONE_THREAD)
    assert (result.n_chunks, result.planned) == (5, 5)
    assert abs(result.sums.mean_kld.value) < 1e-4
    assert result.sums.top.value > 0.99
    assert result.sums.ln_ppl_base.value == pytest.approx(math.log(37168.69), abs=5e-3)


def test_windows_are_computed_alone_or_together(other: Path, base_file: Path) -> None:
    alone, pieces, together = (
        kl_divergence(other, base_file, context=ContextParams(threads=1, warmup=False, n_batch=n_batch))
        for n_batch in (64, 40, 2048)
    )
    for result in (pieces, together):
        assert result.sums.mean_kld.value == pytest.approx(alone.sums.mean_kld.value, rel=1e-3)
        assert result.sums.n == alone.sums.n == 5 * 31


def test_some_of_the_chunks_will_do(other: Path, base_file: Path) -> None:
    seen: list[KlChunk] = []
    result = kl_divergence(other, base_file, chunks=2, context=ONE_THREAD, on_chunk=seen.append)
    assert [chunk.index for chunk in seen] == [0, 1]
    assert result.sums.n == 62
    assert kld_summary(result) == []


def test_another_vocabulary_is_refused(tiny_models: TinyModels, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "large.gguf", n_vocab=600)
    base = tmp_path / "base"
    perplexity(path, story(), TextOptions(64, 1, base_file=base), context=ONE_THREAD)
    with pytest.raises(UsageError, match="600 tokens, and the model has 512"):
        kl_divergence(tiny_models("llama"), base, context=ONE_THREAD)


def test_an_uncertainty_needs_more_than_ten_values() -> None:
    values = np.arange(1.0, 12.0)
    sums = partial(estimate, values.sum(), (values * values).sum())
    assert sums(11).value == 6.0
    assert sums(11).error == pytest.approx(np.std(values) / math.sqrt(10))
    assert estimate(55, 385, 10).error == 0.0
    assert estimate(0, 0, 0).value == 0.0


def test_a_percentile_lies_between_the_values_next_to_it() -> None:
    ordered = np.array([0, 10, 20, 40], np.float32)
    assert percentile(ordered, 0.0) == 0
    assert percentile(ordered, 0.5) == 15
    assert percentile(ordered, 0.9) == pytest.approx(34)
    assert percentile(ordered, 1.0) == 40


def test_a_median_of_even_and_odd_many() -> None:
    sums = Divergence(n=100)
    for kld, median in (([1, 2, 3, 5], 2.5), ([1, 2, 5], 2.0)):
        values = np.array(kld, np.float32)
        summary = kld_summary(KlDivergence(1, 1, sums, values, values))
        assert f"Median  KLD: {median:10.6f}" in summary
