"""The lines that llama-perplexity prints, number for number. Knows no terminal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minka.tools.perplexity_kld import MIN_FOR_SUMMARY, Divergence, Estimate, KlChunk, KlDivergence, percentile
from minka.tools.perplexity_text import Chunk, Perplexity
from minka.tools.scoring_math import F32

KLD_HEADER = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS"
    "            Same top p"
)


def eta_line(seconds: float, n_passes: float) -> str:
    """How long a pass took and all of them will take."""
    total = int(seconds * n_passes)
    hours, rest = divmod(total, 3600)
    return f"{seconds:.2f} seconds per pass - ETA " + (f"{hours} hours " if hours else "") + f"{rest / 60:.2f} minutes"


def chunk_entry(chunk: Chunk) -> str:
    """Output type 0: the perplexity so far, one entry after another."""
    return f"[{chunk.index + 1}]{chunk.sums.perplexity:.4f},"


def chunk_line(chunk: Chunk, *, strided: bool) -> str:
    """Output type 1: a line with the offset, the perplexity, its ln and the error of that."""
    sums = chunk.sums
    head = f"{chunk.offset:8d}  {sums.perplexity:.4f}"
    spread = sums.error if sums.error is not None else sums.variance
    return head if strided else f"{head}  {sums.mean:4f}  {spread:4f}"


def final_line(result: Perplexity) -> str | None:
    """The final estimate, None if the spread cannot be told."""
    return None if result.error is None else f"Final estimate: PPL = {result.value:.4f} +/- {result.error:.5f}"


def _pair(value: Estimate, width: int, digits: int, error_width: int | None = None) -> str:
    return f"{value.value:{width}.{digits}f} ± {value.error:{error_width or width}.{digits}f}"


def _percent(value: Estimate) -> Estimate:
    return Estimate(100 * value.value, 100 * value.error)


def kld_line(chunk: KlChunk) -> str:
    """A row of the table of chunks."""
    sums = chunk.sums
    columns = (
        f"{chunk.index + 1:4d}",
        _pair(sums.ppl, 9, 4),
        _pair(sums.ln_ratio, 10, 5),
        _pair(sums.mean_kld, 10, 5),
        _pair(_percent(sums.rms_p_diff), 6, 3) + " %",
        _pair(_percent(sums.top), 6, 3) + " %",
    )
    return "    ".join(columns)


def kld_summary(result: KlDivergence) -> list[str]:
    """The three blocks of statistics; nothing for too few tokens."""
    if result.sums.n < MIN_FOR_SUMMARY:
        return []
    return [*_perplexity_block(result.sums), "", *_kld_block(result), "", *_probability_block(result)]


def _perplexity_block(sums: Divergence) -> Iterable[str]:
    yield "====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_pair(sums.ppl, 10, 6)}"
    yield f"Mean PPL(base)                : {_pair(sums.ppl_base, 10, 6)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * sums.correlation:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_pair(sums.ln_ratio, 10, 6)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_pair(sums.ratio, 10, 6)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_pair(sums.difference, 10, 6)}"


_HIGH = (("99.9%", 0.999), ("99.0%", 0.99), ("95.0%", 0.95), ("90.0%", 0.9))
_LOW = (("10.0%", 0.1), (" 5.0%", 0.05), (" 1.0%", 0.01), (" 0.1%", 0.001))


def _median(ordered: F32) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float(np.float32(0.5) * (ordered[middle] + ordered[middle - 1]))


def _quantiles(
    ordered: F32, high: Iterable[tuple[str, float]], low: Iterable[tuple[str, float]]
) -> list[tuple[str, float]]:
    return [
        ("Maximum", float(ordered[-1])),
        *((f"{name}  ", percentile(ordered, fraction)) for name, fraction in high),
        ("Median ", _median(ordered)),
        *((f"{name}  ", percentile(ordered, fraction)) for name, fraction in low),
        ("Minimum", float(ordered[0])),
    ]


def _kld_block(result: KlDivergence) -> Iterable[str]:
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {_pair(result.sums.mean_kld, 10, 6)}"
    yield from (f"{name} KLD: {value:10.6f}" for name, value in _quantiles(result.kld, _HIGH, _LOW))


def _probability_block(result: KlDivergence) -> Iterable[str]:
    sums = result.sums
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {_pair(_percent(sums.mean_p_diff), 6, 3, 5)} %"
    quantiles = _quantiles(result.p_diff, (*_HIGH, ("75.0%", 0.75)), (("25.0%", 0.25), *_LOW))
    yield from (f"{name} Δp: {100 * value:6.3f}%" for name, value in quantiles)
    yield f"RMS Δp    : {_pair(_percent(sums.rms_p_diff), 6, 3, 5)} %"
    yield f"Same top p: {_pair(_percent(sums.top), 6, 3, 5)} %"
