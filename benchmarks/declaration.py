"""What a scenario is: cases (server flags and a load) and the bars that its measures must clear.

Plain values; knows neither servers nor how a load is driven.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.load import Load

Measures = Mapping[str, float]
"""What one run of a case measured: name with its unit -> number."""

Drive = Callable[[Load], Awaitable[Measures]]
"""A load: an async function that a load process runs against one fresh server."""


class Model(StrEnum):
    """Which model file a case is served from."""

    MAIN = "main"
    TINY = "tiny"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Bar:
    """What is demanded of one measure: bounds of the ratio Minka / peer, of Minka's own value, or both."""

    measure: str
    ratio_min: float | None = None
    ratio_max: float | None = None
    value_min: float | None = None
    value_max: float | None = None

    def holds(self, value: float, ratio: float | None) -> bool:
        """True when all bounds hold. A bound of the ratio fails when there is no ratio."""
        pairs = [
            (self.value_min, value, 1),
            (self.value_max, value, -1),
            (self.ratio_min, ratio, 1),
            (self.ratio_max, ratio, -1),
        ]
        return all(
            bound is None or (number is not None and (number - bound) * sign >= 0) for bound, number, sign in pairs
        )

    def __str__(self) -> str:
        """As it is printed, for example `≤ 300, ≤ 0.125x`."""
        bounds = [("≥", self.value_min, ""), ("≤", self.value_max, ""), ("≥", self.ratio_min, "x")]
        bounds.append(("≤", self.ratio_max, "x"))
        return ", ".join(f"{sign} {bound:g}{unit}" for sign, bound, unit in bounds if bound is not None)


@dataclass(frozen=True, slots=True)
class Case:
    """One server configuration under one load.

    `flags` are given to both servers as they are. `cold`: the load starts together with the server and waits for it
    itself; otherwise it starts when the server is healthy and has answered a warm-up request. With more than one of
    `starts` the server is stopped and started again, and the load goes on; the last start's measures count. `{scratch}`
    in a flag is a directory that lasts as long as the run.
    """

    name: str
    flags: tuple[str, ...]
    drive: Drive
    bars: tuple[Bar, ...]
    model: Model = Model.MAIN
    cold: bool = False
    timeout_s: float = 300.0
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set of cases. `with_peer` False: it is Minka's alone. `by_default`: part of a plain run.

    `rounds` limits how often it is run, for a load that is its own repetition.
    """

    name: str
    what: str
    cases: tuple[Case, ...]
    with_peer: bool = True
    by_default: bool = True
    rounds: int | None = None
