"""Rounds: each side in turn gets a fresh server and a fresh load process, never both servers at once.

A round starts with the other side than the one before, so that a drift of the machine hits both. Knows nothing of what
the numbers mean.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import proc, worker
from benchmarks.declaration import Case, Model, Scenario
from benchmarks.load import Failure, Order, Outcome
from benchmarks.servers import BenchmarkError, Server, Side, tail

READY_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """One side in one round: an outcome, or the error that it is reported as."""

    side: str
    round: int
    load_average: float
    outcome: Outcome | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs have in common. `quiet_s`: how long a run may wait for the machine to fall quiet."""

    sides: tuple[Side, ...]
    models: Mapping[Model, Path]
    rounds: int
    logs: Path
    common_flags: tuple[str, ...] = ("-t", "2")
    quiet_s: float = 0.0


def run_case(scenario: Scenario, case: Case, setting: Setting, tell: Callable[[str], None]) -> list[Run]:
    """All rounds of a case. A run that fails does not stop the others; `tell` gets a line about each."""
    sides = setting.sides if scenario.with_peer else setting.sides[:1]
    runs: list[Run] = []
    for number in range(min(setting.rounds, scenario.rounds or setting.rounds)):
        for side in sides if number % 2 == 0 else reversed(sides):
            tell(f"{scenario.name}, {case.name}: round {number + 1}, {side.name}")
            log = setting.logs / f"{scenario.name}-{case.name}-{number + 1}-{side.name}.log".replace(" ", "_")
            runs.append(run_once(scenario, case, side, number, setting, log))
            if error := runs[-1].error:
                tell(f"FAILED: {error}\n{tail(log)}")
    return runs


def run_once(scenario: Scenario, case: Case, side: Side, number: int, setting: Setting, log: Path) -> Run:
    """One side, one round; the server writes to `log`."""
    proc.wait_quiet(setting.quiet_s)
    average = os.getloadavg()[0]
    try:
        outcome = measure(scenario, case, side, f"{scenario.name}/{case.name}/{number}", setting, log)
    except BenchmarkError as error:
        return Run(side.name, number, average, None, str(error))
    return Run(side.name, number, average, outcome, None)


def measure(scenario: Scenario, case: Case, side: Side, seed: str, setting: Setting, log: Path) -> Outcome:
    """A fresh load process and a fresh server, both gone when this returns. Raises BenchmarkError."""
    process, pipe = start_worker()
    try:
        receive(process, pipe, READY_WITHIN)
        with TemporaryDirectory(prefix="minka-bench-") as scratch:
            flags = (*setting.common_flags, *(flag.format(scratch=scratch) for flag in case.flags))
            for start in range(case.starts):
                with Server(side, setting.models[case.model], flags, log) as server:
                    if not case.cold:
                        server.wait_healthy()
                    order = Order(scenario.name, case.name, seed, server.port, server.pid, server.spawned, start=start)
                    outcome = load_once(process, pipe, order, case)
                    if not server.alive:
                        raise BenchmarkError(f"{side.name} died under the load")
        return outcome
    finally:
        process.kill()
        process.join()
        pipe.close()


def load_once(process: SpawnProcess, pipe: Connection, order: Order, case: Case) -> Outcome:
    """Let the load process carry out an order. Raises BenchmarkError with its reason if it cannot."""
    pipe.send(order)
    answer = receive(process, pipe, case.timeout_s)
    if isinstance(answer, Outcome):
        return answer
    raise BenchmarkError(answer.message if isinstance(answer, Failure) else f"unexpected answer {answer!r}")


def start_worker() -> tuple[SpawnProcess, Connection]:
    """Start a load process; it says Ready, then waits for its order."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.main, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def receive(process: SpawnProcess, pipe: Connection, timeout_s: float) -> object:
    """The next message of a load process. Raises BenchmarkError when none comes in time or the process ends."""
    if not pipe.poll(timeout_s):
        raise BenchmarkError(f"the load was not done within {timeout_s:g} s")
    try:
        message: object = pipe.recv()
    except EOFError:
        process.join()
        raise BenchmarkError(f"the load process ended with code {process.exitcode}, see its traceback") from None
    return message
