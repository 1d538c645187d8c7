"""The model tools, callable from Python: `minka.tools.quantize(...)`, `minka.tools.imatrix(...)` and so on.

Nothing is imported before it is asked for. A module never has the name of a function offered here, because importing
the module would put it in the function's place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minka.tools.bench_batched import BatchedResult, batched_bench
    from minka.tools.bench_matrix import Matrix
    from minka.tools.bench_run import BenchOptions, Measured, bench
    from minka.tools.bench_serve import Plan, load_test
    from minka.tools.bench_spread import Level
    from minka.tools.cvector_run import CvectorOptions, CvectorReport, cvector
    from minka.tools.fit_plan import FitPlan
    from minka.tools.fit_run import estimate, fit
    from minka.tools.imatrix_run import ImatrixOptions, ImatrixReport, imatrix
    from minka.tools.lora_merge import MergeReport, lora_export
    from minka.tools.perplexity_kld import KlDivergence, kl_divergence
    from minka.tools.perplexity_text import Perplexity, TextOptions, perplexity
    from minka.tools.quantize_options import QuantizeOptions
    from minka.tools.quantize_run import QuantizeReport, quantize
    from minka.tools.scoring_tasks import Accuracy, accuracy
    from minka.tools.tokenize_text import TextToken, TextTokenizer, tokenize

__all__ = [
    "Accuracy",
    "BatchedResult",
    "BenchOptions",
    "CvectorOptions",
    "CvectorReport",
    "FitPlan",
    "ImatrixOptions",
    "ImatrixReport",
    "KlDivergence",
    "Level",
    "Matrix",
    "Measured",
    "MergeReport",
    "Perplexity",
    "Plan",
    "QuantizeOptions",
    "QuantizeReport",
    "TextOptions",
    "TextToken",
    "TextTokenizer",
    "accuracy",
    "batched_bench",
    "bench",
    "cvector",
    "estimate",
    "fit",
    "imatrix",
    "kl_divergence",
    "load_test",
    "lora_export",
    "perplexity",
    "quantize",
    "tokenize",
]

_HOMES = {
    "Accuracy": "scoring_tasks",
    "BatchedResult": "bench_batched",
    "BenchOptions": "bench_run",
    "CvectorOptions": "cvector_run",
    "CvectorReport": "cvector_run",
    "FitPlan": "fit_plan",
    "ImatrixOptions": "imatrix_run",
    "ImatrixReport": "imatrix_run",
    "KlDivergence": "perplexity_kld",
    "Level": "bench_spread",
    "Matrix": "bench_matrix",
    "Measured": "bench_run",
    "MergeReport": "lora_merge",
    "Perplexity": "perplexity_text",
    "Plan": "bench_serve",
    "QuantizeOptions": "quantize_options",
    "QuantizeReport": "quantize_run",
    "TextOptions": "perplexity_text",
    "TextToken": "tokenize_text",
    "TextTokenizer": "tokenize_text",
    "accuracy": "scoring_tasks",
    "batched_bench": "bench_batched",
    "bench": "bench_run",
    "cvector": "cvector_run",
    "estimate": "fit_run",
    "fit": "fit_run",
    "imatrix": "imatrix_run",
    "kl_divergence": "perplexity_kld",
    "load_test": "bench_serve",
    "lora_export": "lora_merge",
    "perplexity": "perplexity_text",
    "quantize": "quantize_run",
    "tokenize": "tokenize_text",
}
"""The module of each public name."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
