"""Clients that come and leave at random moments: before they ask, while queued, in prefill, in mid-stream, or served.

Afterwards every slot must be idle, a request must still be answered, and the server's memory must not have grown.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from statistics import linear_regression

from benchmarks.declaration import Measures
from benchmarks.load import CHAT, Load, gather
from minka.tools.load_client import LoadError

IDLE_WITHIN = 10.0
VISITS = ("connect", "half a request", "leave soon", "leave soon", "leave in mid-stream", "leave in mid-stream", "stay")


async def churn(load: Load, n_visits: int, n_clients: int) -> Measures:
    """`n_visits` visits by `n_clients` clients at a time, drawn from the round's seed."""
    plans = iter([random.Random(load.rng.random()) for _ in range(n_visits)])
    rss: list[float] = []

    async def client(mine: Iterator[random.Random]) -> None:
        for rng in mine:
            await visit(load, rng)
            rss.append(load.rss_mib())

    await gather([client(plans) for _ in range(n_clients)])
    n_idle, seconds = await idle_slots(load)
    await load.chat(load.prose(40), 16)
    return {
        "idle slots": float(n_idle),
        "seconds until idle": seconds,
        "RSS MiB per 100 visits": 100 * slope(rss[len(rss) // 2 :]),
        "RSS MiB at the end": rss[-1],
    }


def slope(values: Sequence[float]) -> float:
    """Least-squares growth from one value to the next; needs two."""
    return linear_regression(range(len(values)), values).slope


async def visit(load: Load, rng: random.Random) -> None:
    """One visit, of a kind and at a pace drawn from `rng`. Raises LoadError when a stream brings an error."""
    kind = rng.choice(VISITS)
    if kind == "connect":
        (await load.client.connect()).abort()
    elif kind == "half a request":
        connection = await load.client.connect()
        request = load.client.encode("POST", CHAT, {"messages": [{"role": "user", "content": load.prose(50)}]})
        connection.send(request[: rng.randrange(1, len(request))])
        await asyncio.sleep(rng.uniform(0, 0.05))
        connection.abort()
    elif kind == "stay":
        await load.chat(load.prose(rng.randrange(10, 60)), rng.randrange(4, 12))
    else:
        running = load.begin(load.prose(rng.randrange(20, 400)), 64)
        if kind == "leave soon":
            await asyncio.sleep(rng.uniform(0, 0.8))
        else:
            await running.reached(rng.randrange(1, 12))
        await running.abandon()


async def idle_slots(load: Load) -> tuple[int, float]:
    """How many slots are idle once all are, or time is up, and after how many seconds that was."""
    began = time.monotonic()
    while True:
        reply = await load.get("/slots")
        if reply.status != 200:
            raise LoadError(f"GET /slots got {reply.status}: {reply.body[:200]!r}")
        busy = [slot["is_processing"] for slot in json.loads(reply.body)]
        waited = time.monotonic() - began
        if not any(busy) or waited > IDLE_WITHIN:
            return busy.count(False), waited
        await asyncio.sleep(0.05)
