"""The load process: takes Orders from its pipe, drives the load, sends back an Outcome or a Failure for each.

It shares no interpreter with a server or with the harness, so that nothing but the load costs it time. Its garbage
collector is off: the process lives for one run.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection

import uvloop

from benchmarks import proc
from benchmarks.declaration import Case, Model
from benchmarks.load import Failure, History, Load, Order, Outcome
from benchmarks.scenarios import find
from benchmarks.streams import Stream
from minka.tools.load_client import Client, LoadError


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has imported all it needs and waits for its order."""


def main(pipe: Connection) -> None:
    """Body of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which ends this process
    pipe.send(Ready())
    gc.disable()
    histories: list[History] = []
    while (order := pipe.recv()) is not None:
        result: Outcome | Failure
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                result = runner.run(perform(order, find(order.scenario, order.case), histories))
        except (LoadError, OSError) as error:
            result = Failure(f"{type(error).__name__}: {error}")
        pipe.send(result)


async def perform(order: Order, case: Case, histories: list[History]) -> Outcome:
    """Warm the server up unless the case is cold, run the drive, collect what it measured."""
    load = Load(order, Client(order.host, order.port), random.Random(f"{order.seed}/{order.start}"), histories)
    if not case.cold:
        await warm_up(load, case.model)
    before = cpu_times(order.pid)
    began = time.monotonic()
    measures = dict(await case.drive(load))
    wall = time.monotonic() - began
    client, server, all_busy = (after - start for after, start in zip(cpu_times(order.pid), before, strict=True))
    streams = [numbers(stream, began) for stream in load.streams]
    outcome = Outcome(measures, streams, wall, client, server, max(0.0, all_busy - client - server), load.rss_mib())
    load.client.close()
    return outcome


def cpu_times(pid: int) -> tuple[float, float, float]:
    """CPU seconds so far: of this process, of the server, of the whole machine."""
    return time.process_time(), proc.cpu_seconds(pid), proc.busy_seconds()


async def warm_up(load: Load, model: Model) -> None:
    """One short request, so that lazy imports and first touches of memory are not measured; learn the vocabulary."""
    if model is Model.TINY:
        await load.complete("Once upon a time", 4)
    elif model is Model.EMBEDDING:
        await load.embed(["Say hello."])
    else:
        await load.chat("Say hello.", 4)
    await load.calibrate()
    load.streams.clear()


def numbers(stream: Stream, began: float) -> dict[str, float]:
    """The raw numbers of a stream that are kept; seconds since the load began."""
    gaps = [later - earlier for earlier, later in pairwise(stream.arrivals)]
    return {
        "sent": round(stream.sent - began, 6),
        "first": round(stream.arrivals[0] - began, 6),
        "last": round(stream.arrivals[-1] - began, 6),
        "ended": round(stream.ended - began, 6),
        "longest_gap": round(max(gaps, default=0.0), 6),
        "chunks": len(stream.arrivals),
        "prompt_tokens": stream.n_prompt,
        "cached_tokens": stream.n_cached,
        "completion_tokens": stream.n_generated,
    }
