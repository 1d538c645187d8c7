"""A long run of random traffic on a real engine with all its laws checked after every step.

Random shared beginnings, cancels, priorities, salts, deadlines, a KV cache that is too small (so that runs give way)
and small memory tiers (so that blocks come and go), in both layouts. Prints what it did; exit code 1 if anything
failed, if books disagreed, or if memory grows by more than 1 MB per 1,000 requests.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.tiny import write_llama

from minka.engine.engine import Engine, EngineConfig
from minka.engine.inbox import ThreadInbox
from minka.engine.memory import MemoryConfig
from minka.errors import DeadlineError
from minka.native.context import Context
from minka.native.model import Model
from minka.params import ContextParams, ModelParams, SamplingParams
from minka.types import Cancelled, Failed, Finished, Job, Priority

MAX_OPEN = 24
"""Jobs in the engine at a time."""


class Traffic:
    """Random jobs for a context of a certain size."""

    def __init__(self, seed: int, n_ctx_seq: int, n_vocab: int) -> None:
        self.random = random.Random(seed)
        self._n_ctx_seq, self._n_vocab = n_ctx_seq, n_vocab
        self._stems = [[self._token() for _ in range(n_ctx_seq)] for _ in range(12)]

    def _token(self) -> int:
        return self.random.randrange(3, self._n_vocab)

    def job(self, number: int) -> Job:
        """A prompt that begins like many others, with everything that a request can ask of the scheduler."""
        r = self.random
        stem = r.choice(self._stems)[: r.randint(1, self._n_ctx_seq * 2 // 3)]
        tail = [self._token() for _ in range(r.randint(1, 8))]
        return Job(
            id=f"job {number}",
            prompt=(*stem, *tail),
            sampling=SamplingParams(temperature=r.choice((0.0, 0.8)), seed=r.randrange(2**32), ignore_eos=True),
            n_predict=r.choice((0, 1, 8, 32, 64)),
            priority=Priority(r.choice((-1, 0, 0, 1))),
            cache_prompt=r.random() < 0.9,
            cache_salt=r.choice(("", "", "", "a", "b")),
            tenant=r.choice(("", "x", "y")),
            timeout_ms=r.choice((-1, -1, -1, -1, 50)),
        )


def soak(engine: Engine, traffic: Traffic, seconds: float) -> Counter[str]:
    """Drive the engine for a while; returns how the jobs ended, by kind."""
    inbox, ends, waiting, number = ThreadInbox(), Counter[str](), set[str](), 0
    until = time.monotonic() + seconds
    while waiting or time.monotonic() < until:
        while len(waiting) < MAX_OPEN and time.monotonic() < until:
            job = replace(traffic.job(number), id=f"{traffic.random.random()} {number}")
            number += 1
            waiting.add(job.id)
            engine.submit(job, inbox)
        if waiting and traffic.random.random() < 0.02:
            engine.cancel(traffic.random.choice(sorted(waiting)))
        event = inbox.get()
        if isinstance(event, Finished | Failed | Cancelled):
            waiting.discard(event.id)
            ends[_kind(event)] += 1
    return ends


def _kind(end: Finished | Failed | Cancelled) -> str:
    if isinstance(end, Failed):
        return "late" if isinstance(end.error, DeadlineError) else f"failed: {end.error}"
    return "finished" if isinstance(end, Finished) else "cancelled"


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def run(seconds: float, seed: int, *, unified: bool, directory: Path) -> bool:
    """One layout; prints a line. Whether all was well."""
    model = Model.load(write_llama(directory / f"soak-{unified}.gguf", seed=seed), ModelParams())
    context = Context(model, ContextParams(n_ctx=1024, parallel=6, kv_unified=unified, threads=1, n_batch=256))
    memory = MemoryConfig(limit=4 << 20)
    engine = Engine(context, EngineConfig(memory=memory, disk=directory, disk_limit=8 << 20, check=True))
    traffic = Traffic(seed, context.n_ctx_seq, model.vocab.n_tokens)
    warm = soak(engine, traffic, seconds / 4)
    before, ends = resident(), soak(engine, traffic, seconds * 3 / 4)
    growth = (resident() - before) / 1e6 / max(1, ends.total()) * 1000
    counters = engine.view().result().counters
    engine.close()
    model.close()
    failed = {kind: n for kind, n in (warm + ends).items() if kind.startswith("failed")}
    print(
        f"{'unified' if unified else 'split'}: {dict(warm + ends)}, {counters.preempted} gave way, "
        f"{counters.cached_tokens} tokens cached ({counters.recalled_tokens} recalled), "
        f"{growth:+.2f} MB per 1,000 requests"
    )
    return not failed and growth < 1.0


def main() -> int:
    """Both layouts, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="for both layouts together (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        seconds = args.minutes * 30
        good = [run(seconds, args.seed, unified=unified, directory=Path(directory)) for unified in (True, False)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
