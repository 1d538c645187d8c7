"""What engine tests stand on: a loop with a fake backend under a test's control, a recorder of events, and the oracle.

`solo` is the oracle: the text that a job must give, computed from its definition, without engine, cache or slots.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from minka.engine.loop import Loop
from minka.engine.memory import Memory, MemoryConfig
from minka.engine.outbox import Outbox
from minka.engine.slot import Run, Slot
from minka.errors import UnavailableError
from minka.params import SamplingParams
from minka.types import (
    Cancelled,
    Constraints,
    End,
    Event,
    Failed,
    Finished,
    FinishReason,
    Job,
    Progress,
    Started,
    Token,
)
from tests.fake_cells import kind_of
from tests.fakes import Chunk, FakeBackend, FakeVocab, Script, tokens_of

GREEDY = SamplingParams(temperature=0.0)


def job(id: str, prompt: str | Sequence[int], n_predict: int = 8, **fields: object) -> Job:
    """A greedy job. `prompt` may be text, for byte tokens."""
    tokens = tokens_of(prompt) if isinstance(prompt, str) else tuple(prompt)
    return Job(id, tokens, **{"sampling": GREEDY, "n_predict": n_predict, **fields})  # type: ignore[arg-type]


class Recorder:
    """An inbox that keeps what it gets, and insists on the order Started, (Progress | Token)*, end."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.events: dict[str, list[Event]] = {}
        self.times: dict[str, list[float]] = {}
        """When each token came, by job."""
        self.deliveries = 0
        self._clock = clock

    def deliver(self, events: Sequence[Event]) -> None:
        self.deliveries += 1
        for event in events:
            before = self.events.setdefault(event.id, [])
            first = not before
            assert not (before and isinstance(before[-1], End)), f"{event} came after {before[-1]}"
            assert first or not isinstance(event, Started), f"{event.id} was started twice"
            assert not first or not isinstance(event, Token | Progress | Finished), f"{event} came before Started"
            before.append(event)
            if isinstance(event, Token):
                self.times.setdefault(event.id, []).append(self._clock())

    def end(self, id: str) -> End:
        """The job's last event."""
        last = self.events[id][-1]
        assert isinstance(last, End), f"{id} has not ended: {last}"
        return last

    def finished(self, id: str) -> Finished:
        """The job's end, which must be a good one."""
        end = self.end(id)
        assert isinstance(end, Finished), f"{id} ended with {end}"
        return end

    def error(self, id: str) -> Exception:
        """The job's error."""
        end = self.end(id)
        assert isinstance(end, Failed), f"{id} ended with {end}"
        return end.error

    def started(self, id: str) -> Started:
        """The job's first event."""
        first = self.events[id][0]
        assert isinstance(first, Started), f"{id} began with {first}"
        return first

    def tokens(self, id: str) -> list[int]:
        """The tokens generated so far."""
        return [event.token for event in self.events.get(id, ()) if isinstance(event, Token)]

    def text(self, id: str) -> str:
        """The text shown so far."""
        return "".join(event.text for event in self.events.get(id, ()) if isinstance(event, Token | Finished))

    def has_ended(self, id: str) -> bool:
        return isinstance(self.events.get(id, [None])[-1], End)


class Rig:
    """A loop, stepped by the test; after every step the loop's laws are checked."""

    def __init__(
        self,
        backend: FakeBackend,
        *,
        max_gap: float = 0.2,
        kept: MemoryConfig | None = None,
        shifts: bool = False,
        deterministic: bool = False,
        constraints: Constraints | None = None,
    ) -> None:
        self.backend, self.clock, self._shifts = backend, backend.clock, shifts
        self.inbox = Recorder(self.clock)
        self.ended: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.memory = Memory(backend, kept or MemoryConfig())
        self.loop = Loop(
            backend,
            Outbox(self.ended.append),
            max_gap=max_gap,
            memory=self.memory,
            clock=self.clock,
            shifts=shifts,
            deterministic=deterministic,
            constraints=constraints,
        )
        self._slots: list[Slot] = self.loop._slots
        assert backend.sliceable in (True, False), "found out while the context is empty, as the engine does"

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.loop.abandon(UnavailableError("the test is over"))
            self.backend.__exit__(None, None, None)

    def submit(self, *jobs: Job, seed: int = 0) -> None:
        for new in jobs:
            self.jobs[new.id] = new
            own = new.sampling.seed
            self.loop.queue.put(Run(new, self.inbox, own if own >= 0 else seed, self.clock()))

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.loop.step()
            self.loop.check()
            self._check_sound()

    def _check_sound(self) -> None:
        """What was moved is where the slots say, and only in texts that may have it."""
        for slot in self._slots:
            sound = self.backend.sound(slot.id)
            assert sound >= min(slot.n_sound, slot.n_past), f"{slot} is not as sound as it says"
            if slot.run is not None and not slot.run.truncated and not slot.run.job.n_cache_reuse:
                assert sound == slot.n_past, f"{slot} goes on from what was moved"

    def step_until(self, holds: Callable[[], bool], limit: int = 2000) -> None:
        """Step until something is so."""
        for _ in range(limit):
            if holds():
                return
            self.step()
        raise AssertionError(f"not so after {limit} steps; busy slots: {[s for s in self._slots if not s.idle]}")

    def run(self, *jobs: Job, limit: int = 2000) -> None:
        """Submit, and step until nothing is left to do."""
        self.submit(*jobs)
        self.step_until(lambda: not self.loop.busy, limit)

    def slot(self, id: str) -> Slot:
        """The slot that serves a job."""
        return next(slot for slot in self._slots if slot.run is not None and slot.run.job.id == id)

    def slots(self) -> list[Slot]:
        return self._slots

    def batch(self) -> dict[str, Chunk]:
        """The last batch, by the job that each chunk belongs to now (jobs that ended with it are left out)."""
        by_seq = {chunk.seq: chunk for chunk in self.backend.decodes[-1]}
        return {s.run.job.id: by_seq[s.id] for s in self._slots if s.run is not None and s.id in by_seq}

    def expect_solo(self, *ids: str) -> None:
        """The jobs finished with the tokens, text and reason that they have alone."""
        for id in ids or tuple(self.jobs):
            backend = self.backend
            expected = solo(self.jobs[id], backend.script, backend.vocab, backend.n_ctx_seq, shifts=self._shifts)
            end = self.inbox.finished(id)
            got = Solo(tuple(self.inbox.tokens(id)), self.inbox.text(id), end.reason, end.stop_word)
            assert got == expected, f"{id} among others differs from {id} alone"

    def expect_all_idle(self) -> None:
        """No slot serves anything, and ledger, slots and backend agree on what is left in them."""
        assert [slot.id for slot in self._slots if not slot.idle or slot.wait] == []
        self.loop.check()
        assert self.loop.view().used_cells == self.backend.used
        for slot in self._slots:
            assert slot.tokens == self.backend.held(slot.id)


@dataclass(frozen=True, slots=True)
class Solo:
    """What a job gives."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    stop_word: str


def solo(job: Job, script: Script, vocab: FakeVocab, n_ctx_seq: int, *, shifts: bool = False) -> Solo:
    """The definition of a greedy job: append the likeliest token until something ends it."""
    generated: list[int] = []
    context = list(job.prompt)
    while True:
        raw = vocab.detokenize(generated, special=False)
        text, word = cut_at_stop(raw.decode("utf-8", "replace"), job.stop)
        if generated and found_for_sure(raw, job.stop):
            return Solo(tuple(generated), text, FinishReason.WORD, word)
        eos = bool(generated) and vocab.is_eog(generated[-1])
        full = len(generated) == job.n_predict or (len(context) >= n_ctx_seq and not shifts)
        if eos or full:
            reason = FinishReason.WORD if word else FinishReason.EOS if eos else FinishReason.LIMIT
            return Solo(tuple(generated), text, reason, word)
        if generated and len(context) >= n_ctx_seq:
            drop_some(context, job, n_ctx_seq, int(vocab.add_bos))
        generated.append(script([*context, kind_of(job.lora)] if job.lora else context))
        context.append(generated[-1])


def drop_some(context: list[int], job: Job, n_ctx: int, add_bos: int) -> None:
    """llama-server's rule for a context that is full: its last token is not computed yet."""
    n_keep = min(n_ctx - 4, (len(job.prompt) if job.n_keep == -1 else job.n_keep) + add_bos)
    n_left = len(context) - 1 - n_keep
    n_discard = job.n_discard or n_left // 2
    del context[n_keep : n_keep + min(n_discard, n_left - 1)]


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """The text before the stop string that starts first (of two, the shorter), and that string."""
    found = [(text.find(word), len(word), word) for word in stop if word and word in text]
    start, _, word = min(found, default=(len(text), 0, ""))
    return text[:start], word


def found_for_sure(raw: bytes, stop: Sequence[str]) -> bool:
    """Whether a stop string is there that no further byte can beat: none that starts earlier is still open."""
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    shown, word = cut_at_stop(whole, stop)
    return bool(word) and not any(other.startswith(whole[at:]) for at in range(len(shown)) for other in stop)


def only_cancelled(events: Sequence[Event]) -> bool:
    """Whether the last event, and only it, is Cancelled."""
    return [isinstance(event, Cancelled) for event in events] == [False] * (len(events) - 1) + [True]
