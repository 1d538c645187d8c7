"""Anything in any order, as a state machine: all kinds of jobs, cancels, time, faults, commands.

Whatever was done, once nothing is left to do: every job has one end and the text it has alone, every command an answer,
no cell is held by nobody, and the counters are the sums of what the events told.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minka.engine.control import EraseSlot, LoadAdapter, RestoreSlot, SaveSlot, SlotState, UnloadAdapter
from minka.engine.memory import MemoryConfig
from minka.errors import DeadlineError, MinkaError, NotFoundError, RequestError
from minka.params import Adapters, SamplingParams
from minka.types import Cancelled, Constraint, Failed, Finished, Job, Priority, Started, Thinking, Token
from tests.engine.rig import Rig
from tests.engine.test_constraint_traces import Alone, alone
from tests.fake_constraints import FakeConstraints
from tests.fakes import Cost, FakeBackend, tokens_of

STEMS = ("Once upon a time in a land by the sea there was ", "You are a helper. Answer in one sentence. ")
GRAMMARS = ("ab?c", "?" * 20, "{name:?,kind:??}", "x" * 60)
N_SLOTS, N_CTX = 3, 300

slots = st.integers(0, N_SLOTS - 1)
constraints = st.builds(
    Constraint,
    st.sampled_from(GRAMMARS),
    st.none()
    | st.builds(lambda budget: Thinking("<", ("ab",), is_open=True, budget=budget), st.sampled_from((-1, 0, 5))),
)
prompts = st.builds(
    lambda stem, times, tail: tokens_of(stem * times + tail),
    st.sampled_from(STEMS),
    st.integers(0, 3),
    st.text("ab", min_size=1, max_size=20),
)
jobs = st.builds(
    Job,
    id=st.just(""),
    prompt=prompts,
    sampling=st.sampled_from((SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, n_probs=1))),
    n_predict=st.sampled_from((0, 1, 2, 7, 30, 400)),
    n_keep=st.sampled_from((0, -1, 10, 10_000)),
    n_discard=st.sampled_from((0, 1, 10_000)),
    stop=st.sampled_from(((), ("ab",), ("c", "abc"))),
    priority=st.sampled_from(Priority),
    id_slot=st.just(-1) | slots,
    cache_prompt=st.sampled_from((True, True, True, False)),
    cache_salt=st.sampled_from(("", "", "me")),
    tenant=st.sampled_from(("", "a", "b")),
    timeout_ms=st.sampled_from((-1, -1, -1, 0, 3_000)),
    constraint=st.none() | constraints,
    prompt_logprobs=st.sampled_from((-1, -1, 0, 2)),
)
sets: st.SearchStrategy[Adapters] = st.sampled_from(((), (), ((0, 1.0),), ((0, 1.0), (1, 0.5))))


class Machine(RuleBasedStateMachine):
    """One engine's loop, and everybody who may ask something of it."""

    @initialize(
        unified=st.booleans(),
        memory=st.sampled_from(("plain", "plain", "recurrent", "window")),
        limit=st.sampled_from((0, 1500, 10**6)),
        shifts=st.booleans(),
    )
    def begin(self, unified: bool, memory: str, limit: int, shifts: bool) -> None:
        self.fails = False
        backend = FakeBackend(
            unified=unified,
            n_seq_max=N_SLOTS,
            n_ctx=N_CTX if unified else N_SLOTS * N_CTX,
            n_batch=64,
            memory=memory,  # type: ignore[arg-type]
            cost=Cost(0.02, 0.001, 0.001),
            fail=self._fail,
        )
        self.shifts = shifts and backend.can_shift
        kept = MemoryConfig(limit=limit, block=16, step=32)
        self.rig = Rig(backend, kept=kept, shifts=self.shifts, constraints=FakeConstraints())
        self.limit = limit
        self.replies: list[Future[object]] = []
        self.saved: list[Future[SlotState]] = []
        self.cancelled: set[str] = set()
        self.unloaded = False
        for n in range(2):
            backend.load_adapter(Path(f"{n}.gguf"), 1.0)

    def _fail(self, _batch: object) -> bool:
        fails, self.fails = self.fails, False
        return fails

    # -- what may be done ----------------------------------------------------------------------------------------------

    @rule(job=jobs, lora=sets, pin=st.sampled_from(("", "", "", "x", "y")))
    def submit(self, job: Job, lora: Adapters, pin: str) -> None:
        can_pin = self.limit and job.cache_prompt and len(job.prompt) >= 16
        fields = {name: getattr(job, name) for name in Job.__slots__}
        fields |= {"id": f"{len(self.rig.jobs)}", "lora": lora, "pin": pin if can_pin else ""}
        self.rig.submit(Job(**fields))

    @precondition(lambda self: self.rig.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.rig.jobs)))
        self.cancelled.add(id)
        self.rig.loop.cancel(id)

    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        self.rig.step(n)

    @rule(seconds=st.sampled_from((0.1, 5.0)))
    def wait(self, seconds: float) -> None:
        self.rig.clock.now += seconds

    @rule()
    def let_a_decode_fail(self) -> None:
        self.fails = True

    @rule()
    def rest(self) -> None:
        self.rig.loop.rest()

    @rule(slot=slots)
    def save(self, slot: int) -> None:
        reply: Future[SlotState] = Future()
        self.rig.loop.control.do(SaveSlot(slot, reply))
        self.saved.append(reply)

    @rule(slot=slots, salt=st.sampled_from(("", "me")), cut=st.sampled_from((0, 0, 1, 30)), data=st.data())
    def restore(self, slot: int, salt: str, cut: int, data: st.DataObject) -> None:
        done = [reply.result() for reply in self.saved if reply.done() and reply.exception() is None]
        if done:
            saved = data.draw(st.sampled_from(done))
            wrong = SlotState(saved.tokens, saved.state[: len(saved.state) - cut])
            reply: Future[None] = Future()
            self.rig.loop.control.do(RestoreSlot(slot, wrong, salt, reply))
            self.replies.append(reply)  # type: ignore[arg-type]

    @rule(slot=slots)
    def erase(self, slot: int) -> None:
        reply: Future[int] = Future()
        self.rig.loop.control.do(EraseSlot(slot, reply))
        self.replies.append(reply)  # type: ignore[arg-type]

    @rule()
    def load(self) -> None:
        reply: Future[object] = Future()
        self.rig.loop.control.do(LoadAdapter(Path("more.gguf"), 1.0, reply))  # type: ignore[arg-type]
        self.replies.append(reply)

    @rule()
    def unload(self) -> None:
        reply: Future[None] = Future()
        self.unloaded = True
        self.rig.loop.control.do(UnloadAdapter(1, reply))
        self.replies.append(reply)  # type: ignore[arg-type]

    @rule(name=st.sampled_from("xy"))
    def unpin(self, name: str) -> None:
        self.rig.memory.unpin(name)

    @rule()
    def clear(self) -> None:
        self.rig.memory.clear()

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "rig"):
            self.rig.loop.check()
            assert self.rig.loop.view().used_cells == self.rig.backend.used
            assert self.rig.memory.store.n_bytes <= self.limit
            assert self.rig.memory.snapshots.n_bytes <= self.limit
            pinned = sum(pin.n_bytes for pin in self.rig.memory.pins())
            assert not pinned or pinned <= 2 * self.limit

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.fails = False
        self.rig.step()
        self.rig.step_until(lambda: not self.rig.loop.busy, 5000)
        self.rig.expect_all_idle()
        for job in self.rig.jobs.values():
            self._check_end(job)
        errors = [reply.exception(0) for reply in self.replies] + [reply.exception(0) for reply in self.saved]
        assert all(isinstance(error, MinkaError | None) for error in errors)
        self._check_counters()
        self.rig.__exit__(None, None, None)

    def _check_end(self, job: Job) -> None:
        match self.rig.inbox.end(job.id):
            case Finished(reason=reason, timings=timings) if timings.deadline:
                assert job.timeout_ms >= 0, reason
            case Finished(reason=reason):
                got = Alone(tuple(self.rig.inbox.tokens(job.id)), self.rig.inbox.text(job.id), reason)
                assert got == alone(job, self.rig.backend, shifts=self.shifts)
            case Failed(error=DeadlineError()):
                assert job.timeout_ms >= 0
            case Failed(error=NotFoundError()):
                assert self.unloaded
            case Failed(error=RequestError() as error):
                assert job.pin, error
            case Failed(error=error):
                assert "scripted failure" in str(error), error
            case Cancelled():
                assert job.id in self.cancelled

    def _check_counters(self) -> None:
        counters, events = self.rig.loop.counters, [e for own in self.rig.inbox.events.values() for e in own]
        assert counters.predicted_tokens == sum(isinstance(event, Token) for event in events)
        assert counters.cached_tokens == sum(event.n_cached for event in events if isinstance(event, Started))
        assert counters.recalled_tokens <= counters.cached_tokens
        assert counters.decode_calls == len(self.rig.backend.decodes)
        assert counters.busy_slots == sum(len(batch) for batch in self.rig.backend.decodes)
        ends = [event for event in events if isinstance(event, Finished | Failed | Cancelled)]
        assert len(ends) == len(self.rig.jobs) == len(self.rig.ended)


def test_anything_in_any_order() -> None:
    chosen = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(Machine, settings=chosen)
