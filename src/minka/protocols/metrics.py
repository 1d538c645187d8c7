"""`GET /metrics`: the engine's counters and histograms in the text format of Prometheus (version 0.0.4).

Names that begin with `llamacpp:` are llama-server's, with its meanings; a rate is the mean since the scrape before.
`vllm:` names tell what `minka:` ones tell, by the names and labels that dashboards and routers for vLLM look for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from minka.types import CacheView, Counters, EngineView, FinishReason, Histogram, Measured, TierView

MEDIA_TYPE = "text/plain; version=0.0.4"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one answer tells of: the engine now, its counters at the scrape before, and the name of its model."""

    engine: EngineView
    cache: CacheView
    before: Counters
    measured: Measured
    model: str

    @property
    def now(self) -> Counters:
        """The counters."""
        return self.engine.counters

    @property
    def n_busy(self) -> int:
        """Slots that serve a request."""
        return sum(slot.busy for slot in self.engine.slots)

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed a second of prompt processing."""
        now, before = self.now, self.before
        return _ratio(now.prompt_tokens - before.prompt_tokens, now.prompt_seconds - before.prompt_seconds)

    @property
    def predicted_rate(self) -> float:
        """Tokens generated a second of generating. The first of a text comes with its prompt, so it does not count."""
        now, before = self.now, self.before
        return _ratio(now.predicted_steps - before.predicted_steps, now.predicted_seconds - before.predicted_seconds)

    @property
    def n_cells(self) -> int:
        """Cells of the KV cache."""
        return sum(tier.limit or 0 for tier in self.cache.tiers if tier.n_bytes is None)

    @property
    def kv_usage(self) -> float:
        """The part of the KV cache that is in use, 0 to 1."""
        return _ratio(self.engine.used_cells, self.n_cells)


def _ratio(count: int, whole: float) -> float:
    return count / whole if whole > 0 else 0.0


Value = Callable[[Scrape], float | Mapping[str, float] | Histogram]


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. `value` is one number, or one for each value of the label `by`, or a histogram.

    `of_model`: its samples are labelled with the name of the model.
    """

    name: str
    kind: str
    help: str
    value: Value
    by: str = "tier"
    of_model: bool = False


def _counter(name: str, help: str, value: Value, by: str = "tier") -> Metric:
    return Metric(name, "counter", help, value, by, of_model=name.startswith("vllm:"))


def _gauge(name: str, help: str, value: Value) -> Metric:
    return Metric(name, "gauge", help, value, of_model=name.startswith("vllm:"))


def _histograms(prefix: str) -> Iterator[Metric]:
    for name, (part, help) in HISTOGRAMS.items():
        if prefix == "vllm:" or name not in _OLD_NAMES:
            yield Metric(prefix + name, "histogram", help, _measured(part), of_model=prefix == "vllm:")


def _measured(part: str) -> Value:
    get: Callable[[object], Histogram] = attrgetter(part)
    return lambda scrape: get(scrape.measured)


def _by_tier(of: Callable[[TierView], float | None]) -> Value:
    def values(scrape: Scrape) -> Mapping[str, float]:
        found = {tier.name: of(tier) for tier in scrape.cache.tiers}
        return {name: value for name, value in found.items() if value is not None}

    return values


def _limit(tier: TierView) -> float | None:
    return tier.limit if tier.n_bytes is not None else None


def _finished(scrape: Scrape) -> Mapping[str, float]:
    """Ends of requests by vLLM's words."""
    ends = scrape.measured.ends
    return {
        "stop": ends[FinishReason.EOS] + ends[FinishReason.WORD],
        "length": ends[FinishReason.LIMIT],
        "abort": ends["cancelled"],
        "error": ends["failed"],
    }


HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "time_to_first_token_seconds": ("first_token", "Seconds from a request's arrival to its first token"),
    "inter_token_latency_seconds": ("gap", "Seconds between two tokens of a request"),
    "time_per_output_token_seconds": ("gap", "Seconds between two tokens of a request, by its older name"),
    "request_time_per_output_token_seconds": ("per_token", "Seconds a token of a request, its first left out"),
    "e2e_request_latency_seconds": ("whole", "Seconds from a request's arrival to its end"),
    "request_queue_time_seconds": ("queue", "Seconds that a request waited for a slot"),
    "request_prefill_time_seconds": ("prefill", "Seconds from the start of a request to its first token"),
    "request_decode_time_seconds": ("decode", "Seconds from a request's first token to its last"),
    "request_prompt_tokens": ("prompt_tokens", "Tokens of a request's prompt, those from the cache included"),
    "request_generation_tokens": ("predicted_tokens", "Tokens that a request generated"),
}
"""Histograms by their names, without a prefix: what they are of, and their help. vLLM has all of them."""

_OLD_NAMES = ("time_per_output_token_seconds",)


# fmt: off
METRICS = (
    _counter("llamacpp:prompt_tokens_total", "Prompt tokens computed, without those from the cache",
             lambda s: s.now.prompt_tokens),
    _counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens taken from the cache",
             lambda s: s.now.cached_tokens),
    _counter("llamacpp:prompt_seconds_total", "Seconds from the start of requests to their first tokens",
             lambda s: s.now.prompt_seconds),
    _counter("llamacpp:tokens_predicted_total", "Tokens generated", lambda s: s.now.predicted_tokens),
    _counter("llamacpp:tokens_predicted_seconds_total", "Seconds in which requests generated tokens, added up",
             lambda s: s.now.predicted_seconds),
    _counter("llamacpp:n_decode_total", "Calls of llama_decode", lambda s: s.now.decode_calls),
    _counter("minka:graphs_reused_total", "Micro-batches that could reuse the compute graph of the one before",
             lambda s: s.now.graphs_reused),
    _counter("llamacpp:n_tokens_max", "Length of the longest sequence so far, in tokens",
             lambda s: s.now.n_tokens_max),
    _counter("llamacpp:spec_decode_num_draft_tokens_total", "Tokens drafted", lambda _: 0),
    _counter("llamacpp:spec_decode_num_accepted_tokens_total", "Drafted tokens that the model accepted", lambda _: 0),
    _counter("llamacpp:spec_decode_num_drafts_total", "Drafts that were verified", lambda _: 0),
    _gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens computed a second, since the last scrape",
           lambda s: s.prompt_rate),
    _gauge("llamacpp:predicted_tokens_seconds", "Tokens generated a second by a request, since the last scrape",
           lambda s: s.predicted_rate),
    _gauge("llamacpp:requests_processing", "Requests that have a slot",
           lambda s: s.n_busy),
    _gauge("llamacpp:requests_deferred", "Requests that wait for a slot", lambda s: s.engine.n_queued),
    _gauge("llamacpp:n_busy_slots_per_decode", "Mean number of slots that take part in a call of llama_decode",
           lambda s: s.now.busy_slots / max(1, s.now.decode_calls)),
    _gauge("minka:queue_length", "Requests that wait for a slot", lambda s: s.engine.n_queued),
    _counter("minka:preemptions_total", "Requests that gave their slot back because the KV cache was full",
             lambda s: s.now.preempted),
    _gauge("minka:kv_cells_used", "Cells of the KV cache in use, each counted once however many slots share it",
           lambda s: s.engine.used_cells),
    _gauge("minka:kv_cells", "Cells of the KV cache", lambda s: s.n_cells),
    _gauge("minka:cache_entries", "Slots with text (device), blocks or states (ram), files (disk)",
           _by_tier(lambda tier: tier.entries)),
    _gauge("minka:cache_tokens", "Tokens that a tier of the prefix cache holds", _by_tier(lambda tier: tier.tokens)),
    _gauge("minka:cache_bytes", "Bytes that a tier of the prefix cache holds", _by_tier(lambda tier: tier.n_bytes)),
    _gauge("minka:cache_limit_bytes", "Bytes that a tier of the prefix cache may hold", _by_tier(_limit)),
    _counter("minka:cache_hits_total", "How often a prompt took something from a tier of the prefix cache",
             _by_tier(lambda tier: tier.hits)),
    _counter("minka:cache_tokens_served_total", "Prompt tokens taken from a tier of the prefix cache",
             _by_tier(lambda tier: tier.served)),
    _gauge("minka:cache_pins", "Pinned prefixes", lambda s: len(s.cache.pins)),
    _gauge("minka:kv_usage_ratio", "Part of the KV cache that is in use, 0 to 1", lambda s: s.kv_usage),
    _counter("minka:requests_total", "Requests that ended, by how they did",
             lambda s: s.measured.ends, by="reason"),
    *_histograms("minka:"),
    _gauge("vllm:num_requests_running", "Requests that have a slot", lambda s: s.n_busy),
    _gauge("vllm:num_requests_waiting", "Requests that wait for a slot", lambda s: s.engine.n_queued),
    _gauge("vllm:kv_cache_usage_perc", "Part of the KV cache that is in use, 0 to 1", lambda s: s.kv_usage),
    _gauge("vllm:gpu_cache_usage_perc", "Part of the KV cache that is in use, by its older name",
           lambda s: s.kv_usage),
    _counter("vllm:num_preemptions_total", "Requests that gave their slot back because the KV cache was full",
             lambda s: s.now.preempted),
    _counter("vllm:prompt_tokens_total", "Prompt tokens, those from the cache included",
             lambda s: s.now.prompt_tokens + s.now.cached_tokens),
    _counter("vllm:generation_tokens_total", "Tokens generated", lambda s: s.now.predicted_tokens),
    _counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache",
             lambda s: s.now.prompt_tokens + s.now.cached_tokens),
    _counter("vllm:prefix_cache_hits_total", "Prompt tokens that were found there", lambda s: s.now.cached_tokens),
    _counter("vllm:request_success_total", "Requests that ended, by how they did", _finished, by="finished_reason"),
    *_histograms("vllm:"),
)
# fmt: on


def metrics_text(scrape: Scrape) -> str:
    """The answer of `/metrics`."""
    return "".join(line + "\n" for metric in METRICS for line in _lines(metric, scrape))


def _lines(metric: Metric, scrape: Scrape) -> Iterator[str]:
    value = metric.value(scrape)
    labels = {"model_name": scrape.model} if metric.of_model else {}
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    if isinstance(value, Histogram):
        yield from _histogram_lines(metric.name, value, labels)
    elif isinstance(value, Mapping):
        yield from (_sample(metric.name, item, {**labels, metric.by: key}) for key, item in value.items())
    else:
        yield _sample(metric.name, value, labels)


def _histogram_lines(name: str, of: Histogram, labels: Mapping[str, str]) -> Iterator[str]:
    sums = list(accumulate(of.counts))
    for bound, count in zip((*map(repr, of.bounds), "+Inf"), sums, strict=True):
        yield _sample(f"{name}_bucket", count, {**labels, "le": bound})
    yield _sample(f"{name}_sum", of.total, labels)
    yield _sample(f"{name}_count", sums[-1], labels)


def _sample(name: str, value: float, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
