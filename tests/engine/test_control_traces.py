"""Commands among jobs, at random: every job gives what it gives alone, and what is pinned is there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random

import pytest

from minka.engine.control import SlotState
from minka.engine.memory import MemoryConfig
from minka.types import Failed, Finished, Job
from tests.engine.rig import Rig, job
from tests.engine.test_control import MEMORIES, clear, erase, restore, save
from tests.fakes import tokens_of

Rigs = Callable[..., Rig]

STEMS = [
    "Once upon a time in a land by the sea there was ",
    "You are a helper. Answer in one sentence, and never guess. ",
]
N_JOBS = 40


class Trace:
    """Does one thing after another to a rig."""

    def __init__(self, rig: Rig, choose: Random) -> None:
        self._rig, self._choose = rig, choose
        self._replies: list[Future[SlotState]] = []
        self._slots = range(rig.backend.n_seq_max)
        others = [self.pin, self.unpin, self.save, self.restore, self.erase, self.clear, self.cancel]
        self.deeds = [self.ask] * 6 + others

    def _prompt(self) -> str:
        return self._choose.choice(STEMS) * self._choose.randint(1, 2) + "".join(self._choose.choices("abc", k=5))

    def ask(self) -> None:
        slot = self._choose.choice((-1, -1, -1, *self._slots))
        salt = self._choose.choice(("", "", "me"))
        n = self._choose.choice((1, 5, 20))
        self._rig.submit(job(f"{len(self._rig.jobs)}", self._prompt(), n, id_slot=slot, cache_salt=salt))

    def pin(self) -> None:
        name, salt = self._choose.choice("xy"), self._choose.choice(("", "me"))
        prompt = tokens_of(self._choose.choice(STEMS))
        self._rig.submit(Job(f"{len(self._rig.jobs)}", prompt, n_predict=0, pin=name, cache_salt=salt))

    def unpin(self) -> None:
        self._rig.memory.unpin(self._choose.choice("xy"))

    def save(self) -> None:
        self._replies.append(save(self._rig, self._choose.choice(self._slots)))

    def restore(self) -> None:
        done = [reply.result() for reply in self._replies if reply.done()]
        if done:
            saved = self._choose.choice(done)
            bad = self._choose.random() < 0.3
            wrong = SlotState(saved.tokens, saved.state[: self._choose.randrange(len(saved.state))])
            restore(self._rig, wrong if bad else saved, self._choose.choice(self._slots))

    def erase(self) -> None:
        erase(self._rig, self._choose.choice(self._slots))

    def clear(self) -> None:
        clear(self._rig)

    def cancel(self) -> None:
        if self._rig.jobs:
            self._rig.loop.cancel(self._choose.choice(list(self._rig.jobs)))


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("seed", range(6))
def test_commands_among_jobs(rig: Rigs, memory: str, seed: int) -> None:
    choose = Random(f"{memory} {seed}")
    kept = MemoryConfig(limit=4 * 300, block=16, step=32, clear_idle=choose.random() < 0.5)
    r = rig(kept=kept, memory=memory, n_seq_max=3, n_ctx=600, n_batch=64)
    trace = Trace(r, choose)
    while len(r.jobs) < N_JOBS:
        choose.choice(trace.deeds)()
        r.loop.check()
        r.step(choose.randint(0, 4))
        assert r.memory.store.n_bytes <= kept.limit
        assert r.memory.snapshots.n_bytes <= kept.limit
        expect_pins(r)
    r.run()
    finished = [id for id in r.jobs if isinstance(r.inbox.events[id][-1], Finished) and not r.jobs[id].pin]
    failed = [id for id in r.jobs if isinstance(r.inbox.events[id][-1], Failed)]
    assert len(finished) > N_JOBS // 3
    assert all(r.jobs[id].pin for id in failed), "only a pin can have no room"
    r.expect_solo(*finished)
    r.expect_all_idle()


def expect_pins(r: Rig) -> None:
    """Everything that is pinned is in memory."""
    for pin in r.memory.pins():
        held = [
            salt
            for salt in ("", "me")
            for stem in map(tokens_of, STEMS)
            if len(stem) == pin.n_tokens and r.memory.known([*stem, 0], salt) >= pin.n_tokens
        ]
        assert held, f"{pin.name} is not there"
