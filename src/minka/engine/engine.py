"""The engine as its users see it: submit a job, read its events, cancel it. Owns the thread that owns the backend."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import TypeVar

from minka.engine import limits
from minka.engine.archive import DiskArchive
from minka.engine.control import (
    ClearCache,
    Command,
    EraseSlot,
    LoadAdapter,
    LookAtCache,
    RestoreSlot,
    SaveSlot,
    SlotState,
    UnloadAdapter,
    Unpin,
)
from minka.engine.embed_plan import Ask
from minka.engine.embedding import Embedding
from minka.engine.inbox import ThreadInbox
from minka.engine.loop import Loop
from minka.engine.memory import Memory, MemoryConfig
from minka.engine.metrics import Meters
from minka.engine.outbox import Outbox
from minka.engine.pace import Pace
from minka.engine.prefix_cache import MIN_SHARED
from minka.engine.reply import answer, bug, refuse
from minka.engine.slot import Run
from minka.errors import (
    ContextSizeError,
    MinkaError,
    NotSupportedError,
    QueueFullError,
    RequestError,
    UnavailableError,
    UsageError,
)
from minka.native.embeddings import EmbeddingBackend
from minka.native.protocol import Backend
from minka.types import (
    Adapter,
    CacheView,
    Cancelled,
    Constraints,
    EmbedJob,
    EngineView,
    Event,
    Failed,
    Finished,
    Inbox,
    Job,
    Measured,
    Vectors,
)

log = logging.getLogger("minka.engine")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`queue_size`: jobs that may wait for a slot. `max_gap_ms`: longest pause of a running stream. `memory`: what is
    kept of text that loses its cells. `disk`: directory of the tier below, `disk_limit` its bytes. `shifts`: a full
    context loses its middle and goes on. `reuses`: jobs will want parts of a text to be moved (`Job.n_cache_reuse`).
    `deterministic`: a greedy job's text does not depend on other jobs. `embeds`: get ready for embeddings at the start
    and not when the first ones are asked for. `check`: test laws after every step instead of only when idle."""

    queue_size: int = 512
    max_gap_ms: int = 200
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    disk: Path | None = None
    disk_limit: int = 0
    shifts: bool = False
    reuses: bool = False
    deterministic: bool = False
    embeds: bool = False
    check: bool = False


@dataclass(frozen=True, slots=True)
class _Submit:
    run: Run


@dataclass(frozen=True, slots=True)
class _Cancel:
    id: str


@dataclass(frozen=True, slots=True)
class _EndThinking:
    id: str
    reply: Future[bool]


@dataclass(frozen=True, slots=True)
class _Look:
    reply: Future[EngineView]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Order = _EndThinking | _Look | Command
_Message = _Submit | _Cancel | Ask | _Order | _Stop


class Engine:
    """Runs jobs on a backend. Its methods may be called from any thread; events come from the engine's own."""

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        constraints: Constraints | None = None,
        embedder: EmbeddingBackend | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`constraints` makes what follows a job's grammar, and without it no job may have one; `embedder` embeddings.

        Raises NotSupportedError if the model or the layout of its cache does not allow what the config asks for."""
        self._backend = backend
        self._config = config or EngineConfig()
        self._clock = clock
        self._max_gap = self._config.max_gap_ms / 1e3
        self._constrains = constraints is not None
        limits.check_config(self._config, backend)
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._open: set[str] = set()
        self._lock = Lock()
        self._process = os.getpid()
        self._refusal = ""
        """Why it takes nothing any more."""
        self._pace = Pace()
        self._meters = Meters()
        self._archive = self._open_archive()
        memory = Memory(backend, self._config.memory, self._archive)
        self._loop = Loop(
            backend,
            Outbox(self._forget, self._meters.observe),
            max_gap=self._max_gap,
            memory=memory,
            clock=clock,
            shifts=self._config.shifts,
            deterministic=self._config.deterministic,
            constraints=constraints,
        )
        if memory.clears_idle and backend.kv_unified:
            log.debug("idle slots give their cells back when a request starts: __TEST_TAG_CACHE_IDLE_SLOTS_ENABLED__")
        self._embedding = Embedding(embedder, max_gap=self._max_gap, clock=clock) if embedder else None
        self._thread = Thread(target=self._work, name="minka-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job, inbox: Inbox) -> None:
        """Queue a job; its events go to the inbox, the last one is Finished, Failed or Cancelled.

        Raises RequestError or ContextSizeError for a job that can never run, QueueFullError if too many wait already,
        UnavailableError after `close` and as `check_alive` does.
        """
        self._check(job)
        seed = job.sampling.seed if job.sampling.seed >= 0 else secrets.randbits(32)
        run = Run(job, inbox, seed, self._clock())
        with self._lock:
            if job.id in self._open:
                raise RequestError(f"a job with the id {job.id} is running already", param="id")
            self._put(job.id, _Submit(run))

    def embed(self, job: EmbedJob) -> Future[tuple[Vectors, ...]]:
        """The vectors of a job's texts, in their order; cancel the future to take the job back.

        Raises NotSupportedError for a model that makes none, RequestError for a text that is too long, and like
        `submit` QueueFullError and UnavailableError. What happens later is the future's exception.
        """
        if self._embedding is None:
            raise NotSupportedError("this model makes no embeddings")
        self._embedding.check(job, self._backend.vocab.n_tokens)
        reply: Future[tuple[Vectors, ...]] = Future()
        id = f"embed-{secrets.token_hex(8)}"
        with self._lock:
            self._put(id, Ask(job, reply, self._clock()))
        reply.add_done_callback(lambda _reply: self._forget(id))
        return reply

    def _put(self, id: str, message: _Submit | Ask) -> None:
        """Send something that waits and has an end, if there is place for it. Needs the lock."""
        self.check_alive()
        if len(self._open) >= self._backend.n_seq_max + self._config.queue_size:
            n_waiting = self._config.queue_size
            raise QueueFullError(
                f"the queue is full: {n_waiting} requests wait already", retry_after=self._pace.retry_after(n_waiting)
            )
        self._open.add(id)
        self._messages.put(message)

    def check_alive(self) -> None:
        """Raise UnavailableError if it takes nothing any more: it was closed, it met an error that it cannot go on
        after, or this process is a fork of the one that it works in."""
        if self._process != os.getpid():
            raise UnavailableError("the model was loaded before this process was forked, and works in its parent only")
        if self._refusal:
            raise UnavailableError(self._refusal)

    def _check(self, job: Job) -> None:
        n_vocab, n_ctx = self._backend.vocab.n_tokens, self._backend.n_ctx_seq
        if not job.prompt:
            raise RequestError("the prompt has no tokens", param="prompt")
        if len(job.prompt) >= n_ctx:
            raise ContextSizeError(len(job.prompt), n_ctx)
        if bad := next((token for token in job.prompt if not 0 <= token < n_vocab), None):
            raise RequestError(f"token id {bad} is outside the vocabulary (0 to {n_vocab - 1})", param="prompt")
        if not -1 <= job.id_slot < self._backend.n_seq_max:
            raise RequestError(
                f"id_slot must be -1 to {self._backend.n_seq_max - 1}, but is {job.id_slot}", param="id_slot"
            )
        if job.n_cache_reuse:
            limits.check_reuse(self._config, self._backend)
        if job.constraint is not None and not self._constrains:
            raise NotSupportedError("this engine was made without constraints: it cannot follow a grammar")
        if job.pin:
            self._check_pin(job)

    def _check_pin(self, job: Job) -> None:
        self.require_cache()
        if len(job.prompt) < MIN_SHARED:
            raise RequestError(
                f"{len(job.prompt)} tokens are too few to pin: under {MIN_SHARED} are always computed again",
                param="prompt",
            )
        if not job.cache_prompt:
            raise RequestError("a prompt that is not to be cached cannot be pinned", param="cache_prompt")

    def require_cache(self) -> None:
        """Raise NotSupportedError if nothing is kept outside the KV cache."""
        if not self._config.memory.limit:
            raise NotSupportedError("This server keeps no computed text. Start it with `--cache-ram`")

    def cancel(self, id: str) -> None:
        """End a job as soon as the running step is over; its last event is Cancelled. Unknown ids are ignored."""
        self._messages.put(_Cancel(id))

    def end_thinking(self, id: str) -> Future[bool]:
        """Let a job's reasoning end with the running step; False if no such job runs, or it is not inside one."""
        return self._order(partial(_EndThinking, id))

    def stream(self, job: Job) -> Iterator[Event]:
        """Submit, and iterate over the events in this thread. Leaving the iteration early cancels the job.

        Raises the error of a job that fails.
        """
        inbox = ThreadInbox()
        self.submit(job, inbox)
        ended = False
        try:
            while not ended:
                event = inbox.get()
                ended = isinstance(event, Finished | Failed | Cancelled)
                if isinstance(event, Failed):
                    raise event.error
                yield event
        finally:
            if not ended:
                self.cancel(job.id)

    def view(self) -> Future[EngineView]:
        """The engine's state between two steps."""
        return self._order(_Look)

    def measured(self) -> Measured:
        """What the jobs that ended took, as histograms."""
        return self._meters.view()

    # -- cache and slots ---------------------------------------------------------------------------------------------

    def cache(self) -> Future[CacheView]:
        """The prefix cache between two steps."""
        return self._order(LookAtCache)

    def unpin(self, name: str) -> Future[bool]:
        """Let go of what a job with this `pin` kept; False if there is none. Its text stays as long as any other."""
        self.require_cache()
        return self._order(partial(Unpin, name))

    def clear_cache(self) -> Future[int]:
        """Drop all computed text that is neither pinned nor in use, in every tier; how many entries that were."""
        self.require_cache()
        return self._order(ClearCache)

    def save_slot(self, slot: int) -> Future[SlotState]:
        """A copy of what a slot holds, as soon as it is idle. A slot that does not exist is a RequestError."""
        return self._order(partial(SaveSlot, slot))

    def restore_slot(self, slot: int, saved: SlotState, salt: str = "") -> Future[None]:
        """Make a slot hold a saved state for prompts of this salt, as soon as it is idle. See `control.RestoreSlot`."""
        return self._order(partial(RestoreSlot, slot, saved, salt))

    def erase_slot(self, slot: int) -> Future[int]:
        """Empty a slot, as soon as it is idle; how many tokens it held. What memory has of them stays."""
        return self._order(partial(EraseSlot, slot))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def load_adapter(self, path: Path, scale: float) -> Future[Adapter]:
        """Load a LoRA adapter between two steps. Raises ModelError in the reply for a file that is none."""
        return self._order(partial(LoadAdapter, path, scale))

    def unload_adapter(self, id: int) -> Future[None]:
        """Free an adapter as soon as no slot computes with it; jobs that come later with it fail (NotFoundError)."""
        return self._order(partial(UnloadAdapter, id))

    def _order(self, make: Callable[[Future[T]], _Order]) -> Future[T]:
        reply: Future[T] = Future()
        order = make(reply)
        with self._lock:
            try:
                self.check_alive()
            except UnavailableError as error:
                refuse(reply, error)
            else:
                self._messages.put(order)
        return reply

    def close(self) -> None:
        """Fail what is still running, stop the thread, finish what goes to disk, free the backend. Idempotent.

        In a fork of its process it does nothing: what it would end and free is the parent's.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            self._refusal = self._refusal or "the engine is stopping"
        self._messages.put(_Stop())
        self._thread.join()
        if self._archive is not None:
            self._archive.close()
        if self._embedding is not None:
            self._embedding.close()
        self._backend.close()

    @property
    def n_open(self) -> int:
        """Jobs that were submitted and have not ended."""
        return len(self._open)

    def _forget(self, id: str) -> None:
        with self._lock:
            self._open.discard(id)
            self._pace.ended(self._clock())

    # -- the engine's thread -------------------------------------------------------------------------------------------

    def _open_archive(self) -> DiskArchive | None:
        """The disk tier of this model and kind of KV cache. The context is empty, and nobody else uses it yet."""
        directory, memory = self._config.disk, self._config.memory
        if directory is None or not memory.limit or not self._backend.sliceable:
            return None
        try:
            return DiskArchive(directory / self._backend.fingerprint, self._config.disk_limit, self._backend.block)
        except OSError as error:
            raise UsageError(f"--cache-disk {directory} cannot be used: {error.strerror}") from None

    def _prepare(self) -> None:
        """What needs an empty context and may take a while: whether states can be cut, what the disk tier has."""
        self._backend.warm_up()
        if self._embedding is not None and self._config.embeds:
            self._embedding.warm_up()
        in_blocks = self._backend.sliceable  # found out here also for slot files, which are turned to fit
        log.debug("states are saved %s", "in blocks" if in_blocks else "as a whole")
        if self._archive is not None:
            log.info("the prefix cache on disk has %d blocks", self._archive.load_into(self._loop.memory.store))

    def _work(self) -> None:
        running = self._guard(self._prepare)
        while running:
            # What comes after a message that ends the engine is left in the queue, to be refused below.
            running = all(map(self._handle, self._take()))
            running = self._guard(self._step) and running
        with self._lock:
            self._refusal = self._refusal or "the engine met an error that it cannot go on after: start it again"
        error = UnavailableError(self._refusal)
        while not self._messages.empty():
            match self._messages.get():
                case _Submit(run):
                    self._loop.queue.put(run)
                case _Cancel() | _Stop():
                    pass
                case order:
                    refuse(order.reply, error)
        self._abandon(error, keep=True)

    def _step(self) -> None:
        began = self._clock()
        self._loop.step()
        if self._embedding is not None:
            taken = self._max_gap if self._loop.prefills else self._clock() - began
            self._embedding.step(self._loop.counters, taken if self._loop.busy else -1.0, self._loop.stride)
        if self._config.check or not self._loop.busy:
            self._loop.check()

    def _guard(self, work: Callable[[], None]) -> bool:
        """Do the work. An error in it ends all jobs; False if the engine cannot go on after that."""
        try:
            work()
        except Exception as error:
            log.exception("a step failed; all running jobs end")
            return self._abandon(bug(error))
        return True

    def _abandon(self, error: MinkaError, *, keep: bool = False) -> bool:
        """End everything with an error; False if the backend cannot be emptied then."""
        is_empty = _succeeds(partial(self._loop.abandon, error, keep=keep))
        if self._embedding is not None:
            is_empty = _succeeds(partial(self._embedding.abandon, error)) and is_empty
        return is_empty

    def _take(self) -> Iterator[_Message]:
        """Messages that are there; waits for one if there is nothing to do."""
        if not self._loop.busy and not self._embedding and not self._rest():
            yield self._messages.get()
        while True:
            try:
                yield self._messages.get_nowait()
            except Empty:
                return

    def _rest(self) -> bool:
        """Use an idle moment; False if there is nothing to do in it. A message that comes meanwhile is taken next."""
        try:
            return self._messages.empty() and self._loop.rest()
        except Exception:
            log.exception("an idle slot could not be remembered")
            return False

    def _handle(self, message: _Message) -> bool:
        """Obey a message; False if nothing comes after it."""
        return not isinstance(message, _Stop) and self._guard(partial(self._obey, message))

    def _obey(self, message: _Submit | _Cancel | Ask | _Order) -> None:
        match message:
            case _Submit(run):
                self._loop.queue.put(run)
            case Ask():
                assert self._embedding is not None, "embed() refuses what nobody can do"
                self._embedding.put(message)
            case _Cancel(id):
                self._loop.cancel(id)
            case _Look(reply):
                answer(reply, self._look)
            case _EndThinking(id, asked):
                answer(asked, partial(self._loop.end_thinking, id))
            case command:
                self._loop.control.do(command)

    def _look(self) -> EngineView:
        view = self._loop.view()
        return replace(view, n_queued=view.n_queued + len(self._embedding or ()))


def _succeeds(end: Callable[[], None]) -> bool:
    try:
        end()
    except Exception:
        log.exception("the backend cannot be emptied; the engine stops")
        return False
    return True
