"""From runs to a verdict: medians, ratios, bars, the printed table and the JSON record.

Pure arithmetic on outcomes; a case with a failed run has no medians, it is reported as failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.declaration import Bar, Case, Scenario
from benchmarks.runner import Run

if TYPE_CHECKING:
    from rich.table import Table

MINKA = "minka"
PEER = "peer"
DISTURBED = 0.1
"""Share of one core; more than this taken by other processes makes a run doubtful."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of one case. `ratio` is Minka's median over the peer's; `ok` is None where no bar is set."""

    case: str
    measure: str
    minka: float | None
    peer: float | None
    bar: str
    ok: bool | None

    @property
    def ratio(self) -> float | None:
        """Minka / peer, None without a peer's value or when that is zero."""
        return ratio(self.minka, self.peer)


@dataclass(frozen=True, slots=True)
class CaseReport:
    """A case with its runs, the rows made of them, and remarks for the reader."""

    case: Case
    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when nothing failed and no bar was missed."""
        return all(row.ok is not False for row in self.rows)


def ratio(minka: float | None, peer: float | None) -> float | None:
    """Minka / peer where both are known and the peer's is not zero."""
    return minka / peer if minka is not None and peer else None


def medians(runs: Sequence[Run], side: str) -> dict[str, float]:
    """The median of every measure over the rounds of one side; empty when one of its runs failed."""
    outcomes = [run.outcome for run in runs if run.side == side]
    measures = [outcome.measures for outcome in outcomes if outcome is not None]
    if len(measures) < len(outcomes):
        return {}
    return {name: median(each[name] for each in measures) for name in (measures[0] if measures else ())}


def judge(case: Case, runs: Sequence[Run]) -> CaseReport:
    """Make the rows of a case: every measure, and a bar where one is set. A failed run misses all bars."""
    minka, peer = medians(runs, MINKA), medians(runs, PEER)
    bars = {bar.measure: bar for bar in case.bars}
    names = list(dict.fromkeys([*minka, *peer, *bars]))
    rows = tuple(_row(case.name, name, minka.get(name), peer.get(name), bars.get(name)) for name in names)
    failures = [f"{run.side}, round {run.round + 1} failed: {run.error}" for run in runs if run.error]
    if failures and not case.bars:
        rows = (*rows, Row(case.name, "all runs", None, None, "no failure", ok=False))
    return CaseReport(case, tuple(runs), rows, (*failures, *prompt_differences(runs), *disturbances(runs)))


def _row(case: str, name: str, minka: float | None, peer: float | None, bar: Bar | None) -> Row:
    if bar is None:
        return Row(case, name, minka, peer, "", ok=None)
    ok = minka is not None and bar.holds(minka, ratio(minka, peer))
    return Row(case, name, minka, peer, str(bar), ok)


def prompt_differences(runs: Sequence[Run]) -> list[str]:
    """One remark for each round in which the two sides counted different prompt tokens for the same prompts."""
    counts: dict[int, dict[str, int]] = {}
    for run in runs:
        if run.outcome is not None:
            total = sum(int(stream["prompt_tokens"]) for stream in run.outcome.streams)
            counts.setdefault(run.round, {})[run.side] = total
    return [
        f"round {number + 1}: prompt tokens differ, {by_side}"
        for number, by_side in counts.items()
        if len(set(by_side.values())) > 1
    ]


def disturbances(runs: Sequence[Run]) -> list[str]:
    """A remark when other processes used more than DISTURBED of a core during a run."""
    shares = [run.outcome.others_cpu_s / run.outcome.wall_s for run in runs if run.outcome is not None]
    if not (high := [share for share in shares if share > DISTURBED]):
        return []
    span = f"{min(high):.0%} to {max(high):.0%}"
    return [f"no clean numbers: other processes used {span} of a core during {len(high)} of {len(shares)} runs"]


def table(scenario: Scenario, reports: Sequence[CaseReport]) -> Table:
    """The rows as they are printed."""
    from rich.table import Table

    grid = Table(title=f"{scenario.name}: {scenario.what}", title_justify="left")
    for title in ("case", "measure"):
        grid.add_column(title, no_wrap=True)
    for title in ("Minka", "peer", "ratio", "bar"):
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("ok")
    marks = {True: "[green]yes[/]", False: "[red]NO[/]", None: ""}
    for report in reports:
        for row in report.rows:
            numbers = (number(row.minka), number(row.peer), number(row.ratio, "x"), row.bar, marks[row.ok])
            grid.add_row(row.case, row.measure, *numbers)
        grid.add_section()
    return grid


def number(value: float | None, unit: str = "") -> str:
    """A measure with about three significant digits; a dash when there is none."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}{unit}"


def document(scenario: Scenario, reports: Sequence[CaseReport], facts: Mapping[str, object]) -> dict[str, object]:
    """The JSON record: the facts of the sitting, and for each case its flags, rows and every run's raw numbers."""
    cases = [
        {
            "case": report.case.name,
            "flags": list(report.case.flags),
            "ok": report.ok,
            "rows": [{**asdict(row), "ratio": row.ratio} for row in report.rows],
            "notes": list(report.notes),
            "runs": [asdict(run) for run in report.runs],
        }
        for report in reports
    ]
    return {"scenario": scenario.name, "what": scenario.what, **facts, "cases": cases}
