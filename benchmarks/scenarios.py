"""The scenarios: each is a small load function and one entry of the table at the end.

A load gets a fresh, warmed-up server and prompts that no earlier request shared, and returns what it measured.
Adding a scenario is adding an entry to SCENARIOS, with its function if no existing one fits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from statistics import fmean, median

from benchmarks.churn import churn
from benchmarks.declaration import Bar, Case, Measures, Model, Scenario
from benchmarks.load import History, Load, Running, gather
from benchmarks.streams import Stream, longest_gap
from minka.tools.load_client import LoadError

MS = 1000.0
RUNNING_FRAMES = 8
"""Frames after which a stream counts as running: the role, and a few tokens."""


def total_rate(streams: Sequence[Stream]) -> float:
    """Tokens of all streams a second, from the first request to the last byte."""
    wall = max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
    return sum(stream.n_generated for stream in streams) / wall


async def one(load: Load) -> Measures:
    """One stream on an otherwise idle server."""
    stream = await load.chat(load.prose(100), 128)
    return {"decode tokens/s": stream.decode_rate, "TTFT ms": stream.ttft * MS}


async def many(load: Load, n_streams: int, n_prompt: int, n_tokens: int) -> Measures:
    """Distinct prompts, all at once."""
    prompts = [load.prose(n_prompt) for _ in range(n_streams)]
    streams = await gather([load.chat(prompt, n_tokens) for prompt in prompts])
    return {"tokens/s": total_rate(streams), "TTFT ms": median(stream.ttft for stream in streams) * MS}


def tails(load: Load, n: int) -> list[str]:
    """Prompts that share a cold prefix of 1,000 tokens and differ in their last 20."""
    prefix = load.prose(1000)
    return [f"{prefix} {load.prose(20)}" for _ in range(n)]


async def shared(load: Load) -> Measures:
    """Eight streams with the same cold prefix, all at once."""
    streams = await gather([load.chat(prompt, 64) for prompt in tails(load, 8)])
    return {"tokens/s": total_rate(streams), "TTFT ms": median(stream.ttft for stream in streams) * MS}


async def shared16(load: Load) -> Measures:
    """Sixteen such requests through eight clients, beside a stream that was running before they came."""
    running = await start_running(load, 1500)
    prompts = iter(tails(load, 16))

    async def client(mine: Iterator[str]) -> list[Stream]:
        return [await load.chat(prompt, 64) for prompt in mine]

    began = time.monotonic()
    streams = list(chain.from_iterable(await gather([client(prompts) for _ in range(8)])))
    ended = time.monotonic()
    beside = await running.cut()
    gap = longest_gap(beside.arrivals, began, ended)
    return {"tokens/s": total_rate(streams), "longest gap ms": gap * MS}


async def start_running(load: Load, n_tokens: int) -> Running:
    """A stream of which several tokens have come."""
    running = load.begin(load.prose(100), n_tokens)
    await running.reached(RUNNING_FRAMES)
    return running


async def tiny(load: Load, n_streams: int, n_requests: int) -> Measures:
    """Streams of a model that costs next to nothing: what is left is the server. Each client asks several times."""

    async def client(prompts: Sequence[str]) -> list[Stream]:
        return [await load.complete(prompt, 128) for prompt in prompts]

    prompts = [[load.prose(32) for _ in range(n_requests)] for _ in range(n_streams)]
    streams = list(chain.from_iterable(await gather([client(each) for each in prompts])))
    wall = max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
    return {"chunks/s": sum(len(stream.arrivals) for stream in streams) / wall, "tokens/s": total_rate(streams)}


N_TEXTS = 256


async def embed_at_once(load: Load) -> Measures:
    """Short texts, all in one request."""
    seconds = await load.embed([load.prose(16) for _ in range(N_TEXTS)])
    return {"texts/s": N_TEXTS / seconds}


async def embed_one_by_one(load: Load, n_clients: int) -> Measures:
    """Short texts, a request each, from several clients."""
    waiting = iter([load.prose(16) for _ in range(N_TEXTS)])

    async def client() -> list[float]:
        return [await load.embed([text]) for text in waiting]

    began = time.monotonic()
    latencies = list(chain.from_iterable(await gather([client() for _ in range(n_clients)])))
    return {"texts/s": N_TEXTS / (time.monotonic() - began), "latency ms": median(latencies) * MS}


async def start(load: Load) -> Measures:
    """From the start of the process to the first token of its first request."""
    deadline = load.order.spawned + 60
    listening = 0.0
    while True:
        try:
            reply = await load.get("/health")
            listening = listening or time.monotonic()
            if reply.status == 200:
                break
        except ConnectionError:
            pass
        if time.monotonic() > deadline:
            raise LoadError("not healthy within 60 s")
        await asyncio.sleep(0.002)
    healthy = time.monotonic()
    stream = await load.complete("The capital of France is", 1)
    moments = {"listening s": listening, "healthy s": healthy, "first token s": stream.arrivals[0]}
    return {name: moment - load.order.spawned for name, moment in moments.items()}


async def storm(load: Load) -> Measures:
    """Many more requests than slots: all must come out whole."""
    prompts = [load.prose(40) for _ in range(64)]
    streams = await gather([load.chat(prompt, 16) for prompt in prompts])
    return {"completed": float(len(streams)), "tokens/s": total_rate(streams)}


async def stall(load: Load) -> Measures:
    """A stream is running when four prompts of 4,000 tokens arrive."""
    running = await start_running(load, 3800)
    prompts = [load.prose(3950) for _ in range(4)]
    began = time.monotonic()
    streams = await gather([load.chat(prompt, 8) for prompt in prompts])
    ended = time.monotonic()
    beside = await running.cut()
    return {"longest gap ms": longest_gap(beside.arrivals, began, ended) * MS, "all four s": ended - began,
            "first of four s": min(stream.ttft for stream in streams)}  # fmt: skip


async def short_behind_long(load: Load) -> Measures:
    """A short prompt sent right after two of 4,000 tokens."""
    longs = [load.begin(load.prose(3950), 8) for _ in range(2)]
    await asyncio.sleep(0.05)
    short = await load.chat(load.prose(20), 16)
    streams = await gather([running.whole() for running in longs])
    return {"TTFT ms": short.ttft * MS, "TTFT of the long ones s": fmean(stream.ttft for stream in streams)}


async def conversations(load: Load) -> Measures:
    """32 conversations of 4 turns, a turn of each in order, four at a time."""
    histories: list[History] = [[] for _ in range(32)]
    ttft: list[list[float]] = []

    async def client(mine: Iterator[History], turn: int) -> None:
        for history in mine:
            ttft[turn].append((await take_turn(load, history, 40 if turn else 200)).ttft)

    began = time.monotonic()
    for turn in range(4):
        ttft.append([])
        waiting = iter(histories)
        await gather([client(waiting, turn) for _ in range(4)])
    later = list(chain.from_iterable(ttft[1:]))
    return {"mean TTFT turn 2+ ms": fmean(later) * MS, "wall s": time.monotonic() - began}


async def restarted(load: Load) -> Measures:
    """The next turn of eight conversations whose server was restarted meanwhile, and conversations of that length that
    nobody knows."""
    if not load.order.start:
        load.histories += [[] for _ in range(8)]
        for _ in range(4):
            for history in load.histories:
                await take_turn(load, history, 40 if history else 1000)
        return {}
    known = [await take_turn(load, history, 40) for history in load.histories]
    n_known = round(fmean(stream.n_prompt for stream in known))
    cold = [await load.chat(load.prose(n_known), 24) for _ in known]
    warm_ttft, cold_ttft = (fmean(stream.ttft for stream in streams) * MS for streams in (known, cold))
    return {"next / cold": warm_ttft / cold_ttft, "TTFT next turn ms": warm_ttft, "TTFT cold ms": cold_ttft}


async def take_turn(load: Load, history: History, n_tokens: int) -> Stream:
    """Say something in a conversation, and note the answer."""
    history.append({"role": "user", "content": load.prose(n_tokens)})
    stream = await load.chat(history, 24)
    history.append({"role": "assistant", "content": stream.text})
    return stream


ANIMAL: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "class": {"enum": ["mammal", "bird", "fish", "reptile", "insect"]},
        "weight_kg": {"type": "number", "minimum": 0, "maximum": 10000},
        "foods": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 3},
    },
    "required": ["name", "class", "weight_kg", "foods"],
    "additionalProperties": False,
}
"""Four fields: a string, an enum, a number, an array."""


async def schema(load: Load, n_clients: int, n_requests: int) -> Measures:
    """Answers that must match a schema, then free ones, each as long as one of them.

    One of each comes before and is not timed: a server prepares its vocabulary for grammars once.
    """

    def question() -> str:
        return f"Describe an animal of this story as JSON: {load.prose(60)}"

    async def client() -> list[int]:
        return [await load.structured(question(), ANIMAL, 400) for _ in range(n_requests)]

    async def free(lengths: Sequence[int]) -> None:
        for n_tokens in lengths:
            await load.chat(question(), n_tokens)

    await free([await load.structured(question(), ANIMAL, 400)])
    began = time.monotonic()
    lengths = await gather([client() for _ in range(n_clients)])
    between = time.monotonic()
    await gather([free(each) for each in lengths])
    n_tokens = sum(chain.from_iterable(lengths))
    rate, free_rate = n_tokens / (between - began), n_tokens / (time.monotonic() - between)
    return {"tokens/s": rate, "free tokens/s": free_rate, "schema / free": rate / free_rate}


def schema_case(n_clients: int, n_requests: int, *bars: Bar) -> Case:
    """So many clients with a slot each."""
    name = f"{n_clients} client" + "s" * (n_clients > 1)
    drive = partial(schema, n_clients=n_clients, n_requests=n_requests)
    return Case(name, ("-c", str(2048 * n_clients), "-np", str(n_clients)), drive, bars)


def layout(name: str, flag: str, n_prompt: int) -> Case:
    """Eight distinct streams in one KV layout."""
    flags = ("-c", "16384", "-np", "8", flag)
    return Case(
        name, flags, partial(many, n_streams=8, n_prompt=n_prompt, n_tokens=64), (Bar("tokens/s", ratio_min=1.0),)
    )


def tiny_case(n_streams: int, n_requests: int, bars: tuple[Bar, ...] = ()) -> Case:
    """The tiny model on as many slots as streams."""
    flags = ("-c", str(512 * n_streams), "-np", str(n_streams))
    drive = partial(tiny, n_streams=n_streams, n_requests=n_requests)
    return Case(f"{n_streams} streams", flags, drive, bars, model=Model.TINY)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "one",
        "one stream: decode speed and time to first token",
        (Case("1 stream", ("-c", "4096", "-np", "1"), one, (Bar("decode tokens/s", ratio_min=0.97),)),),
    ),
    Scenario(
        "eight",
        "eight distinct streams at once",
        (
            Case(
                "8 streams",
                ("-c", "8192", "-np", "8"),
                partial(many, n_streams=8, n_prompt=100, n_tokens=64),
                (Bar("tokens/s", ratio_min=1.0),),
            ),
        ),
    ),
    Scenario(
        "shared",
        "eight streams with the same cold prefix of 1,000 tokens",
        (Case("8 at once", ("-c", "16384", "-np", "8"), shared, (Bar("tokens/s", ratio_min=2.5),)),),
    ),
    Scenario(
        "shared16",
        "sixteen such requests through eight clients, beside a running stream",
        (
            Case(
                "16 through 8",
                ("-c", "16384", "-np", "8"),
                shared16,
                (Bar("tokens/s", ratio_min=3.3), Bar("longest gap ms", ratio_max=1 / 8)),
            ),
        ),
    ),
    Scenario(
        "tiny",
        "a tiny model: what the server itself costs",
        (tiny_case(1, 8), tiny_case(8, 4), tiny_case(32, 2, (Bar("chunks/s", ratio_min=1.0),))),
    ),
    Scenario(
        "embeddings",
        "256 short texts through /v1/embeddings, with an encoder",
        tuple(
            Case(name, ("--embeddings",), drive, (Bar("texts/s", ratio_min=1.0),), model=Model.EMBEDDING)
            for name, drive in (
                ("one request", embed_at_once),
                ("16 clients", partial(embed_one_by_one, n_clients=16)),
            )
        ),
    ),
    Scenario(
        "start",
        "from process start to the first token",
        (Case("cold", ("-c", "4096", "-np", "1"), start, (Bar("first token s", ratio_max=2.0),), cold=True),),
    ),
    Scenario(
        "storm",
        "64 requests at once on 4 slots",
        (Case("64 on 4", ("-c", "4096", "-np", "4"), storm, (Bar("completed", value_min=64),)),),
        with_peer=False,
    ),
    Scenario(
        "churn",
        "200 clients that come and leave at random moments",
        (
            Case(
                "200 visits",
                ("-c", "4096", "-np", "4", "--cache-ram", "64"),
                partial(churn, n_visits=200, n_clients=8),
                (Bar("idle slots", value_min=4), Bar("RSS MiB per 100 visits", value_max=4.0)),
            ),
        ),
        with_peer=False,
        rounds=1,
    ),
    Scenario(
        "schema",
        "answers that must match a JSON schema of four fields",
        (
            schema_case(1, 6, Bar("tokens/s", ratio_min=1.2)),
            schema_case(8, 3, Bar("tokens/s", ratio_min=1.6), Bar("schema / free", value_min=0.97)),
        ),
    ),
    Scenario(
        "stall",
        "the longest gap of a running stream while four prompts of 4,000 tokens arrive",
        (
            Case(
                "4 x 4,000",
                ("-c", "32768", "-np", "8"),
                stall,
                (Bar("longest gap ms", value_max=300.0, ratio_max=1 / 8),),
                timeout_s=900.0,
            ),
        ),
        by_default=False,
    ),
    Scenario(
        "short-behind-long",
        "a prompt of 20 tokens right after two of 4,000",
        (
            Case(
                "20 after 2 x 4,000", ("-c", "32768", "-np", "8"), short_behind_long, (Bar("TTFT ms", ratio_max=1 / 5),)
            ),
        ),
        by_default=False,
    ),
    Scenario(
        "conversations",
        "32 conversations of 4 turns on 4 slots",
        (
            Case(
                "32 x 4 turns",
                ("-c", "8192", "-np", "4"),
                conversations,
                (Bar("mean TTFT turn 2+ ms", ratio_max=0.8),),
                timeout_s=600.0,
            ),
        ),
        by_default=False,
    ),
    Scenario(
        "restart",
        "the next turn of conversations after a restart, from the disk tier",
        (
            Case(
                "8 x 5 turns",
                ("-c", "8192", "-np", "4", "--cache-disk", "{scratch}"),
                restarted,
                (Bar("next / cold", value_max=0.15),),
                timeout_s=600.0,
                starts=2,
            ),
        ),
        with_peer=False,
        by_default=False,
    ),
    Scenario(
        "layouts",
        "eight distinct streams, short and long prompts, split and unified KV cache",
        (
            layout("split, 100 tokens", "--no-kv-unified", 100),
            layout("split, 1,000 tokens", "--no-kv-unified", 1000),
            layout("unified, 100 tokens", "--kv-unified", 100),
            layout("unified, 1,000 tokens", "--kv-unified", 1000),
        ),
        by_default=False,
    ),
)


def find(scenario: str, case: str) -> Case:
    """The case of that name. Raises KeyError."""
    for entry in SCENARIOS:
        for each in entry.cases:
            if (entry.name, each.name) == (scenario, case):
                return each
    raise KeyError(f"{scenario}: {case}")
