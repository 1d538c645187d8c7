"""What a level of a load test comes to: rates, and percentiles of waiting times. Knows no HTTP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minka.tools.bench_requests import Sample


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of some values; NaN for none."""

    mean: float
    p50: float
    p90: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    """Percentiles between two values are on the straight line between them."""
    if not values:
        return Spread(math.nan, math.nan, math.nan, math.nan)
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(float(np.mean(values)), float(p50), float(p90), float(p99))


@dataclass(frozen=True, slots=True)
class Level:
    """The requests of `n_clients` at a time to one server."""

    url: str
    n_clients: int
    samples: tuple[Sample, ...]

    @property
    def done(self) -> list[Sample]:
        """Requests that were answered."""
        return [sample for sample in self.samples if not sample.error]

    @property
    def errors(self) -> list[str]:
        """What the others came to."""
        return [sample.error for sample in self.samples if sample.error]

    @property
    def seconds(self) -> float:
        """From the first request to the last byte."""
        if not self.samples:
            return 0.0
        return max(sample.ended for sample in self.samples) - min(sample.began for sample in self.samples)

    @property
    def n_prompt(self) -> int:
        """Prompt tokens of all answered requests."""
        return sum(sample.n_prompt for sample in self.done)

    @property
    def n_output(self) -> int:
        """Generated tokens of all answered requests."""
        return sum(sample.n_output for sample in self.done)

    @property
    def requests_per_second(self) -> float:
        """Answered requests per second."""
        return len(self.done) / self.seconds if self.seconds else 0.0

    @property
    def output_per_second(self) -> float:
        """Generated tokens per second, of all clients together."""
        return self.n_output / self.seconds if self.seconds else 0.0

    @property
    def total_per_second(self) -> float:
        """Prompt and generated tokens per second."""
        return (self.n_prompt + self.n_output) / self.seconds if self.seconds else 0.0

    @property
    def ttft(self) -> Spread:
        """Seconds to the first text."""
        return spread([sample.ttft for sample in self.done])

    @property
    def itl(self) -> Spread:
        """Seconds between texts that follow each other, of all requests together."""
        return spread([gap for sample in self.done for gap in sample.gaps])

    @property
    def latency(self) -> Spread:
        """Seconds of whole requests."""
        return spread([sample.latency for sample in self.done])
