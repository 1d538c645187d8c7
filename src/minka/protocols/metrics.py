"""`GET /metrics`: the engine's counters in the text format of Prometheus (version 0.0.4).

Names that begin with `llamacpp:` are llama-server's, with its meanings. A rate is the mean since the scrape before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from minka.types import CacheView, Counters, EngineView, TierView

MEDIA_TYPE = "text/plain; version=0.0.4"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one answer tells of: the engine now, and its counters at the scrape before."""

    engine: EngineView
    cache: CacheView
    before: Counters

    @property
    def now(self) -> Counters:
        """The counters."""
        return self.engine.counters

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed a second of prompt processing."""
        now, before = self.now, self.before
        return _rate(now.prompt_tokens - before.prompt_tokens, now.prompt_seconds - before.prompt_seconds)

    @property
    def predicted_rate(self) -> float:
        """Tokens generated a second of generating. The first of a text comes with its prompt, so it does not count."""
        now, before = self.now, self.before
        return _rate(now.predicted_steps - before.predicted_steps, now.predicted_seconds - before.predicted_seconds)

    @property
    def n_cells(self) -> int:
        """Cells of the KV cache."""
        return sum(tier.limit or 0 for tier in self.cache.tiers if tier.n_bytes is None)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


Value = Callable[[Scrape], float | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. `value` is one number, or one for each tier of the cache."""

    name: str
    kind: str
    help: str
    value: Value


def _counter(name: str, help: str, value: Value) -> Metric:
    return Metric(name, "counter", help, value)


def _gauge(name: str, help: str, value: Value) -> Metric:
    return Metric(name, "gauge", help, value)


def _by_tier(of: Callable[[TierView], float | None]) -> Value:
    def values(scrape: Scrape) -> Mapping[str, float]:
        found = {tier.name: of(tier) for tier in scrape.cache.tiers}
        return {name: value for name, value in found.items() if value is not None}

    return values


def _limit(tier: TierView) -> float | None:
    return tier.limit if tier.n_bytes is not None else None


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
           lambda s: sum(slot.busy for slot in s.engine.slots)),
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
)
# fmt: on


def metrics_text(scrape: Scrape) -> str:
    """The answer of `/metrics`."""
    return "".join(line + "\n" for metric in METRICS for line in _lines(metric, scrape))


def _lines(metric: Metric, scrape: Scrape) -> Iterator[str]:
    values = metric.value(scrape)
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    if isinstance(values, Mapping):
        yield from (f'{metric.name}{{tier="{tier}"}} {_number(value)}' for tier, value in values.items())
    else:
        yield f"{metric.name} {_number(values)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
