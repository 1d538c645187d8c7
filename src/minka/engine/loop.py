"""One step of the engine: admit, plan, decode, accept, publish. It carries out what the pure policies decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter

from minka.engine import prefix_cache, reuse, scheduler
from minka.engine.control import Control
from minka.engine.ending import ending
from minka.engine.memory import Memory, MemoryConfig
from minka.engine.metrics import view_slot
from minka.engine.one_at_a_time import CHUNK, OneAtATime
from minka.engine.outbox import Outbox
from minka.engine.picking import force, pick
from minka.engine.prefix_cache import Placement
from minka.engine.prompt_scores import rows_wanted, score
from minka.engine.queue import Queue
from minka.engine.reply import bug
from minka.engine.scheduler import Grant, Scheduler
from minka.engine.sequences import Sequences
from minka.engine.shift import context_shift
from minka.engine.slot import Run, Slot
from minka.engine.turns import Turns
from minka.errors import DeadlineError, MinkaError, NativeError, NotSupportedError
from minka.native.protocol import Backend, Decoded
from minka.types import (
    Cancelled,
    Constraint,
    Constraints,
    Counters,
    End,
    EngineView,
    Failed,
    Finished,
    FinishReason,
    Job,
    Matcher,
    Progress,
    PromptLogprobs,
    Started,
    Token,
    TokenLogprobs,
)

log = logging.getLogger("minka.engine")

Clock = Callable[[], float]


def _late(run: Run) -> DeadlineError:
    return DeadlineError(f"the request's time of {run.job.timeout_ms} ms was over before its first token")


class Loop:
    """Slots, queue and backend of one context. One thread calls it; nothing here waits or locks.

    `shifts`: a text that fills its context loses its middle and goes on. `deterministic`: see `one_at_a_time`.
    `constraints`: for jobs that have one; without it they fail.
    """

    def __init__(
        self,
        backend: Backend,
        outbox: Outbox,
        *,
        max_gap: float,
        memory: Memory | None = None,
        clock: Clock = perf_counter,
        shifts: bool = False,
        deterministic: bool = False,
        constraints: Constraints | None = None,
    ) -> None:
        self._backend = backend
        self._constraints = constraints
        self._outbox = outbox
        self._clock = clock
        self._slots = [Slot(seq) for seq in range(backend.n_seq_max)]
        self._shifts = shifts
        self._unit = min(CHUNK, backend.n_batch) if deterministic else 1
        memory = memory or Memory(backend, MemoryConfig())
        self._sequences = Sequences(backend, self._slots, memory, unit=self._unit)
        planner = OneAtATime(self._unit) if deterministic else Scheduler(backend.n_batch, max_gap)
        self._scheduler = Turns(planner, backend.n_rows)
        self._n_admitted = 0
        self._stepped = 0.0
        """When the last step was over, 0 before the first."""
        self.memory = self._sequences.memory
        self.queue = Queue()
        self.counters = Counters()
        self.control = Control(backend, self._slots, self._sequences, self.counters, clock)

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Compute one batch. False if there was nothing to compute."""
        self.control.settle()
        self._drop_late()
        self._end_waits()
        self._admit()
        rows = self._decode()
        for grant, row in rows:
            self._advance(self._slots[grant.slot], grant.n, row)
        self._outbox.send()
        self._stepped = self._clock()
        return bool(rows)

    def rest(self) -> bool:
        """Do a part of what the next run would wait for; False if nothing is left to do."""
        return self._sequences.keep_one()

    @property
    def busy(self) -> bool:
        """Whether any run is in a slot or waits for one, or a command waits."""
        return bool(self.queue) or self.control.waits or any(not slot.idle for slot in self._slots)

    @property
    def prefills(self) -> bool:
        """Whether the next step will compute prompts, as far as is known."""
        return any(slot.prefilling for slot in self._slots)

    @property
    def stride(self) -> int:
        """Steps from one of a running stream's to its next."""
        return self._scheduler.speed.stride

    def _drop_late(self) -> None:
        """End runs whose time is over. Those that generate end by themselves, with their next token."""
        now = self._clock()
        for run in self.queue.remove(lambda run: run.is_late(now)):
            if run.n_generated:  # it had a slot, and would have to wait and be computed again for that
                run.timed_out = True
                self._finish(run, FinishReason.LIMIT)
            else:
                self._end(run, Failed(run.job.id, _late(run)))
        for slot in self._slots:
            if slot.run is not None and not slot.run.n_generated and slot.run.is_late(now):
                self._end(slot.run, Failed(slot.run.job.id, _late(slot.run)), slot)

    # -- admit -------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        for run in self.queue.in_order(self._clock()):
            if all(not slot.idle for slot in self._slots):
                return
            placement = self._place(run)
            if placement is None:
                continue  # it wants a certain slot; those behind it need not wait for that
            if not self._has_room(run, placement):
                return
            self._start(run, placement)

    def _place(self, run: Run, only: int = -1) -> Placement | None:
        floors, n_known = self._sequences.floors(), self._sequences.known(run)
        placement = prefix_cache.place(run, self._slots, floors, n_known=n_known, only=only, unit=self._unit)
        if placement is None or not run.job.n_cache_reuse:
            return placement
        movable = self._sequences.movable()
        return reuse.improve(placement, run, self._slots, floors, movable, n_known=n_known, only=only)

    def _has_room(self, run: Run, placement: Placement) -> bool:
        if not self._backend.kv_unified:
            return True
        shared = placement.source >= 0 and not self._slots[placement.source].idle
        kept = placement.wait.n if placement.wait else placement.n_reuse if shared else 0
        need = len(run.context) - kept
        return scheduler.has_room(need, self._slots, self._backend.n_ctx, self._sequences.busy_cells())

    def _start(self, run: Run, placement: Placement) -> None:
        """Give a run of the queue its slot. It waits there until then, so that no error can lose it."""
        slot = self._slots[placement.slot]
        try:
            self._equip(run)
            self._sequences.take(slot, placement, run)
        except MinkaError as error:
            self.queue.take(run)
            self._end(run, Failed(run.job.id, error))
            return
        self.queue.take(run)
        slot.tokens, slot.run, slot.wait = run.context, run, placement.wait
        slot.salt, slot.private, slot.lora = run.job.namespace, not run.job.cache_prompt, run.job.lora
        slot.last_job, slot.last_used = run.job, self._clock()
        if run.order < 0:
            self._n_admitted += 1
            run.order, run.started = self._n_admitted, slot.last_used
        if slot.wait is None:
            self._announce(slot, run)

    def _equip(self, run: Run) -> None:
        """Make what a run needs and does not have yet. Raises MinkaError; a bug in here is of this run alone."""
        self._backend.check_adapters(run.job.lora)
        try:
            if run.sampler is None:
                run.sampler = self._backend.sampler(run.job.sampling, run.seed)
                run.sampler.accept(run.tokens)
            if run.job.constraint is not None and run.matcher is None:
                run.matcher = self._match(run.job, run.job.constraint)
        except MinkaError:
            raise
        except Exception as error:
            log.exception("job %s cannot be started", run.job.id)
            raise bug(error) from error

    def _announce(self, slot: Slot, run: Run) -> None:
        """Tell the client that its run starts, once, as soon as it is known how much of it is cached."""
        if run.announced:
            return  # it comes back after it was preempted
        run.announced, run.n_cached = True, slot.n_past
        self.counters.cached_tokens += run.n_cached
        self.counters.recalled_tokens += run.n_recalled
        self.counters.device_hits += run.n_cached > run.n_recalled
        self._outbox.put(run.inbox, Started(run.job.id, slot.id, run.n_prompt, run.n_cached))
        self._progress(slot, run)

    def _progress(self, slot: Slot, run: Run) -> None:
        if run.job.return_progress:
            elapsed = (self._clock() - run.started) * 1e3
            done = min(slot.n_past, run.n_prompt)
            self._outbox.put(run.inbox, Progress(run.job.id, slot.id, run.n_prompt, run.n_cached, done, elapsed))

    def _end_waits(self) -> None:
        """Let slots go on whose leader has computed what they wait for, or will not do so any more."""
        for slot in self._slots:
            if slot.run is None or slot.wait is None:
                continue
            leader = self._slots[slot.wait.leader]
            if not prefix_cache.wait_is_over(slot.wait, leader):
                continue
            run, slot.run, slot.wait = slot.run, None, None
            slot.tokens = slot.tokens[: slot.n_past]
            self.queue.put_back(run)
            again = self._place(run, only=slot.id)
            assert again is not None, "the slot was freed just now"
            self._start(run, again)

    # -- plan and decode ---------------------------------------------------------------------------------------------

    def _decode(self) -> list[tuple[Grant, int]]:
        """Compute the planned batch; grants with the place of their last token in it, which is its logits row."""
        self._scheduler.speed.since = self._clock() - self._stepped if self._stepped else 0.0
        while grants := self._scheduler.plan(self._slots):
            began = self._clock()
            self._backend.adapt(self._scheduler.adapters)
            rows = [self._fill(self._slots[grant.slot], grant.n) for grant in grants]
            try:
                decoded = self._backend.decode()
            except NativeError as error:
                self._fail(grants, error)
                continue
            if decoded is Decoded.OK:
                self._observe(grants, self._clock() - began)
                return list(zip(grants, rows, strict=True))
            self._make_room()
        return []

    def _fill(self, slot: Slot, n: int) -> int:
        assert slot.run is not None, "only slots with a run are granted tokens"
        n_rows = max(int(n == slot.pending), rows_wanted(slot.run, slot.n_past, n))
        tokens = slot.tokens[slot.n_past : slot.n_past + n]
        return self._backend.add(slot.id, tokens, slot.n_past, logits=n_rows)

    def _observe(self, grants: Sequence[Grant], seconds: float) -> None:
        n_decode = sum(self._slots[grant.slot].generating for grant in grants)
        n_prefill = sum(grant.n - self._slots[grant.slot].generating for grant in grants)
        self._scheduler.speed.observe(n_prefill, n_decode, seconds)
        self.counters.decode_calls += 1
        self.counters.busy_slots += len(grants)

    def _make_room(self) -> None:
        """Free KV cells: text of an idle slot, else the run that matters least goes back to the queue."""
        if self._sequences.evict_oldest():
            return
        slot = scheduler.victim(self._slots)
        if slot is None:
            lost = [Grant(slot.id, 0) for slot in self._slots if not slot.idle]
            self._fail(lost, NativeError("the KV cache has no room for this request although it is alone"))
            return
        assert slot.run is not None, "a victim has a run"
        log.info("the KV cache is full: job %s gives way and is computed again later", slot.run.job.id)
        self.counters.preempted += 1
        self.queue.put_back(slot.run)
        self._release(slot)
        self._sequences.evict(slot)

    # -- accept ------------------------------------------------------------------------------------------------------

    def _advance(self, slot: Slot, n: int, row: int) -> None:
        """Book the computed tokens; if they were the last ones, sample the next."""
        run = slot.run
        assert run is not None, "only slots with a run are granted tokens"
        n_past = slot.n_past
        self._sequences.grow(slot, n)
        if self.memory.is_due(slot.n_past, slot.n_past - n):
            self._sequences.snapshot(slot)
        self.counters.n_tokens_max = max(self.counters.n_tokens_max, slot.n_past)
        if not run.n_generated:
            self.counters.prompt_tokens += n
            self._progress(slot, run)
        try:
            if run.scores:
                self._score(slot, run, n_past, row)
            if not slot.pending:
                self._sample(slot, run, row)
        except MinkaError as error:
            self._drop(slot, error)
        except Exception as error:
            log.exception("job %s failed", run.job.id)
            self._drop(slot, bug(error))

    def _score(self, slot: Slot, run: Run, n_past: int, row: int) -> None:
        """Tell the log probabilities of the prompt tokens that the step gives."""
        first = run.n_scored + 1
        entries = score(run, n_past, slot.n_past - n_past, row, self._backend.logits, self._backend.vocab)
        run.n_scored += len(entries)
        if entries:
            self._outbox.put(run.inbox, PromptLogprobs(run.job.id, slot.id, first, entries))

    def _sample(self, slot: Slot, run: Run, row: int) -> None:
        now = self._clock()
        if not run.first_token:
            self._sequences.snapshot(slot)
            if run.job.pin:
                self._sequences.pin(slot, run.job.pin)
            run.first_token = now
            self.counters.prompt_seconds += now - run.started
        if run.job.n_predict == 0:
            self._finish(run, FinishReason.LIMIT, slot)
            return
        token, logprobs = pick(run, row, self._backend)
        run.n_forced = 0
        if self._accept(slot, run, token, logprobs, now):
            return
        for token in force(run, self._backend):
            run.n_forced += 1
            if self._accept(slot, run, token, None, now):
                return
        if len(run.context) >= self._backend.n_ctx_seq:
            self._shift(slot, run)

    def _accept(self, slot: Slot, run: Run, token: int, logprobs: TokenLogprobs | None, now: float) -> bool:
        """Append a token and tell of it; whether the run ended with it."""
        run.append(token)
        if run.last_token:
            self.counters.predicted_steps += 1
            self.counters.predicted_seconds += now - run.last_token
        run.last_token = now
        self.counters.predicted_tokens += 1
        special = token in run.job.preserved_tokens
        text = run.text.feed(self._backend.vocab.piece(token, special=special))
        run.has_new_line = run.has_new_line or "\n" in text
        self._outbox.put(run.inbox, Token(run.job.id, slot.id, token, text, run.timings(now), logprobs))
        reason = ending(run, token, self._backend, now, shifts=self._shifts)
        if reason is not None:
            self._finish(run, reason, slot)
        return reason is not None

    def _shift(self, slot: Slot, run: Run) -> None:
        """Make room for the token that comes next, in a context that has none left."""
        add_bos = self._backend.vocab.add_bos
        shift = context_shift(run.job, slot.n_past, self._backend.n_ctx_seq, add_bos=add_bos)
        log.debug("slot %d: context shift, n_keep = %d, n_discard = %d", slot.id, shift.keep, shift.discard)
        run.shift(shift)
        slot.tokens = run.context
        self._sequences.shift(slot, shift)

    def _match(self, job: Job, constraint: Constraint) -> Matcher:
        if self._constraints is None:
            raise NotSupportedError("this engine was made without constraints: it cannot follow a grammar")
        return self._constraints.start(constraint, self._room(job) if job.close_at_limit else -1)

    def _room(self, job: Job) -> int:
        """The most tokens that a job's text can have, -1 for any number."""
        limits = [job.n_predict] if job.n_predict >= 0 else []
        if not self._shifts:
            limits.append(self._backend.n_ctx_seq - len(job.prompt))
        return min(limits, default=-1)

    def end_thinking(self, id: str) -> bool:
        """Let a running job's reasoning end now; False if no such job is inside one."""
        runs = [slot.run for slot in self._slots if slot.run is not None and slot.run.job.id == id]
        return any(run.matcher is not None and run.matcher.end_thinking() for run in runs)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, run: Run, reason: FinishReason, slot: Slot | None = None) -> None:
        now = self._clock()
        rest = "" if run.text.stopped else run.text.flush()
        if run.text.stopped:
            reason = FinishReason.WORD
        full = reason is FinishReason.LIMIT and not self._shifts and len(run.context) >= self._backend.n_ctx_seq
        end = Finished(
            id=run.job.id,
            slot=slot.id if slot is not None else -1,
            reason=reason,
            text=rest,
            timings=run.timings(now),
            stop_word=run.text.stop_word,
            truncated=full or run.truncated,
            n_past=slot.n_past if slot is not None else len(run.context),
        )
        self._end(run, end, slot)

    def _end(self, run: Run, end: End, slot: Slot | None = None) -> None:
        """Tell the end of a run that is in no queue. It leaves its slot first: if anything fails here, it has ended."""
        if slot is not None:
            slot.run = None
        self._outbox.put(run.inbox, end)
        sampler, run.sampler = run.sampler, None
        if sampler is not None:
            sampler.close()
        if slot is not None:
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        """The slot is free; its sequence keeps what it holds, for prompts that start the same."""
        slot.run = slot.wait = None
        slot.tokens = slot.tokens[: slot.n_past]
        slot.last_used = self._clock()
        if slot.private:
            self._sequences.cut(slot, 0)

    def _drop(self, slot: Slot, error: MinkaError) -> None:
        """End a slot's run with an error, and forget its sequence."""
        if slot.run is not None:
            self._end(slot.run, Failed(slot.run.job.id, error), slot)
        self._sequences.cut(slot, 0)

    def _fail(self, grants: Iterable[Grant], error: MinkaError) -> None:
        for grant in grants:
            self._drop(self._slots[grant.slot], error)

    def cancel(self, id: str) -> None:
        """End a job wherever it is: queued, waiting, in prefill, generating. Unknown ids are ignored."""
        for run in self.queue.remove(lambda run: run.job.id == id):
            self._end(run, Cancelled(id))
        for slot in self._slots:
            if slot.run is not None and slot.run.job.id == id:
                self._end(slot.run, Cancelled(id), slot)

    def abandon(self, error: MinkaError, *, keep: bool = False) -> None:
        """End every job with an error: the engine stops, or met a bug. `keep` remembers what the sequences hold."""
        self.control.abandon(error)
        runs = [*self.queue.remove(lambda _run: True), *(slot.run for slot in self._slots if slot.run is not None)]
        for slot in self._slots:
            slot.run = None  # whatever fails below, nobody is told of an end twice
        for run in runs:
            self._outbox.put(run.inbox, Failed(run.job.id, error))
        self._outbox.send()
        for run in runs:
            if run.sampler is not None:
                run.sampler.close()
        self._backend.discard()
        for slot in self._slots:
            self._release(slot)
            if keep:
                self._sequences.evict(slot)
            else:
                self._sequences.cut(slot, 0)

    # -- look --------------------------------------------------------------------------------------------------------

    def view(self) -> EngineView:
        """A copy of the state, for `/slots` and the metrics."""
        slots = tuple(map(view_slot, self._slots))
        counters = replace(self.counters, graphs_reused=self._backend.n_graphs_reused)
        return EngineView(slots, len(self.queue), counters, self._sequences.used_cells)

    def check(self) -> None:
        """Raise NativeError if slots, ledger and backend disagree."""
        self._sequences.check()
