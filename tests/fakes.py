"""A backend without a model: byte tokens, scripted logits, and the bookkeeping of sequences that libllama would do.

It is stricter than libllama: what would abort the process or read stale numbers there is a `Misuse` here, raised and
also kept in `backend.misuses`, so that a test sees it even where the engine turns every error into an event. Time is a
clock that only decodes move. Nothing here imports the engine or libllama.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn

import numpy as np

from minka.errors import ModelError, NativeError, NotFoundError
from minka.native.protocol import Block, Decoded, Logits
from minka.native.slot_file import STATE_MAGIC
from minka.params import Adapters, SamplingParams
from minka.types import Adapter
from tests.fake_cells import Cell, FakeBlock, FakeSequence, kind_of
from tests.fake_vocab import BOS, CONTROL, EOS, FakeVocab, Script, digest, eos_after, hashed, scripted, tokens_of

__all__ = [
    "BOS",
    "CONTROL",
    "EOS",
    "WAIT",
    "Chunk",
    "Cost",
    "FakeBackend",
    "FakeBlock",
    "FakeClock",
    "FakeSampler",
    "FakeVocab",
    "Gate",
    "Misuse",
    "Script",
    "digest",
    "eos_after",
    "hashed",
    "scripted",
    "tokens_of",
]

WAIT = 20.0
"""Seconds after which a thread that waits for a test (or a test that waits for a thread) gives up."""

_STATE_HEAD = struct.Struct("=Ii")
"""What the bytes of a whole state begin with, as those of libllama do."""


class Misuse(AssertionError):
    """The engine did to the backend what libllama would not survive."""


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds a decode takes: of itself, for each token of a chunk of several, for each chunk of a single token."""

    step: float = 0.0
    prefill: float = 0.0
    lane: float = 0.0


class Gate:
    """Lets a test hold the engine's thread inside `decode`, and count it through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passes: int | None = None
        self._held = False

    def close(self) -> None:
        """The next decode waits."""
        self.let(0)

    def open(self) -> None:
        """All decodes pass."""
        self._set(None)

    def let(self, n: int) -> None:
        """`n` decodes pass, the one after them waits."""
        self._set(n)

    def wait_held(self) -> None:
        """Wait until a thread is held in a decode."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held, WAIT), "no decode came to the gate"

    def pass_through(self) -> None:
        """Called by decode."""
        with self._changed:
            self._held = self._passes == 0
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._passes != 0, WAIT):
                raise Misuse("a decode was held and never let go")
            self._held = False
            if self._passes is not None:
                self._passes -= 1

    def _set(self, passes: int | None) -> None:
        with self._changed:
            self._passes, self._held = passes, self._held and passes == 0
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one `add` put into a batch. `first_row` is the index of its first token in the batch."""

    seq: int
    tokens: tuple[int, ...]
    pos: int
    logits: int
    first_row: int


class FakeBackend:
    """Implements `minka.native.protocol.Backend`. As a context manager it closes itself and `verify`s at the end.

    `memory` is what its sequences can be cut to: "plain" anywhere, "recurrent" nowhere, "window" not far back
    (`window` positions are needed to go on, twice as many are kept). `nan` and `fail` look at a sequence's tokens and
    at a batch: rows that are NaN, decodes that end with NativeError after a part of the batch was written. With
    `shapes` its numbers come out differently in batches of another shape, as those of real kernels do.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        unified: bool = True,
        n_seq_max: int = 4,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_rows: int = 0,
        memory: Literal["plain", "recurrent", "window"] = "plain",
        window: int = 16,
        can_shift: bool = True,
        shapes: bool = False,
        vocab: FakeVocab | None = None,
        cost: Cost | None = None,
        clock: FakeClock | None = None,
        nan: Callable[[Sequence[int]], bool] | None = None,
        fail: Callable[[Sequence[Chunk]], bool] | None = None,
    ) -> None:
        self.kv_unified, self.n_seq_max, self.n_ctx, self.n_batch = unified, n_seq_max, n_ctx, n_batch
        self.n_ctx_seq = n_ctx if unified else n_ctx // n_seq_max
        self.n_rows = n_rows or min(n_batch, n_seq_max + 8)
        self.vocab = vocab or FakeVocab()
        self.gate, self.clock = Gate(), clock or FakeClock()
        self.decodes: list[tuple[Chunk, ...]] = []
        """All batches that were computed, in order."""
        self.n_shifts = 0
        self.misuses: list[Misuse] = []
        self.samplers: list[FakeSampler] = []
        self.closed = False
        self.script, self._cost = script or hashed(), cost or Cost()
        self._memory, self._window = memory, window
        self.can_shift = can_shift and memory != "window"  # a window holds too few cells for it
        self.can_splice = self.can_shift and memory == "plain"
        self._shapes = shapes
        self._nan, self._fail = nan or (lambda _tokens: False), fail or (lambda _chunks: False)
        self._sequences = [FakeSequence() for _ in range(n_seq_max)]
        self._batch: list[Chunk] = []
        self._rows: dict[int, Logits] = {}
        self._copying: set[tuple[int, int]] = set()
        self._thread: int | None = None
        self._probed = False
        self._next_adapter = 0
        self.adapters: dict[int, Adapter] = {}
        """What is loaded."""
        self.adapted: Adapters = ()
        """The set that computes."""
        self.n_adapted = 0
        """How often the set was changed."""

    # -- for tests -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.gate.open()
        self.close()
        if kind is None or not issubclass(kind, Misuse):
            self.verify()

    def verify(self) -> None:
        """Raise if the engine ever misused the backend, or forgot to close a sampler."""
        assert not self.misuses, f"the engine misused its backend: {self.misuses}"
        leaked = [sampler.seed for sampler in self.samplers if not sampler.closed]
        assert not leaked, f"samplers that nobody closed (by seed): {leaked}"

    def held(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return self._sequences[seq].tokens

    def sound(self, seq: int) -> int:
        """How many of a sequence's first positions hold what computing its tokens gives: they were never moved."""
        return self._sequences[seq].sound

    @property
    def used(self) -> int:
        """Different cells that any sequence holds."""
        return len({id(cell) for sequence in self._sequences for cell in sequence.cells})

    @property
    def n_computed(self) -> int:
        """Tokens of all decodes."""
        return sum(len(chunk.tokens) for batch in self.decodes for chunk in batch)

    # -- Backend -------------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        at, first = self._at(seq), sum(len(chunk.tokens) for chunk in self._batch)
        length = len(at.cells) + sum(len(chunk.tokens) for chunk in self._batch if chunk.seq == seq)
        n_outputs = sum(chunk.logits for chunk in self._batch) + logits
        bad = [token for token in tokens if not 0 <= token < self.vocab.n_tokens]
        self._need(len(tokens) > 0, "an empty chunk was added")
        self._need(not bad, f"tokens {bad} are outside the vocabulary")
        self._need(pos == length, f"sequence {seq} has {length} positions, but tokens came for position {pos}")
        self._need(pos + len(tokens) <= self.n_ctx_seq, f"sequence {seq} grows over {self.n_ctx_seq} positions")
        self._need(first + len(tokens) <= self.n_batch, f"a batch of more than {self.n_batch} tokens")
        self._need(0 <= logits <= len(tokens), f"{logits} logits rows of {len(tokens)} tokens")
        self._need(n_outputs <= self.n_rows, f"{n_outputs} logits rows in one batch")
        self._batch.append(Chunk(seq, tuple(tokens), pos, logits, first))
        return first + len(tokens) - 1

    def warm_up(self) -> None:
        self._enter()

    def adapt(self, adapters: Adapters) -> None:
        self._enter()
        self._need(not self._batch, "the adapters were changed while a batch was being filled")
        self.check_adapters(adapters)
        self.n_adapted += adapters != self.adapted
        self.adapted = adapters

    def check_adapters(self, adapters: Adapters) -> None:
        self._enter()
        self._need(all(scale for _, scale in adapters), f"adapters with the factor 0 were used: {adapters}")
        self._need(list(adapters) == sorted(adapters), f"adapters came in another order than their ids': {adapters}")
        if missing := [id for id, _ in adapters if id not in self.adapters]:
            raise NotFoundError(f"there are no adapters {missing}", param="lora")

    def load_adapter(self, path: Path, scale: float) -> Adapter:
        self._enter()
        if path.name == "bad.gguf":
            raise ModelError(f"cannot load the adapter {path}: it is scripted to fail")
        adapter = Adapter(self._next_adapter, str(path), scale)
        self._next_adapter += 1
        self.adapters[adapter.id] = adapter
        return adapter

    def unload_adapter(self, id: int) -> None:
        self._enter()
        self.check_adapters(((id, 1.0),))
        self.adapt(())
        del self.adapters[id]

    def decode(self) -> Decoded:
        self._enter()
        self._need(bool(self._batch), "an empty batch was decoded")
        self.gate.pass_through()
        batch, self._batch, self._rows = tuple(self._batch), [], {}
        self._copying.clear()
        # A recurrent state needs no cells: such a model never runs out of them.
        if self._memory != "recurrent" and self.used + sum(len(chunk.tokens) for chunk in batch) > self.n_ctx:
            return Decoded.NO_SLOT
        self.clock.now += self._seconds(batch)
        if self._fail(batch):
            # What libllama leaves behind: the parts of the batch that it computed before the one that failed.
            self._write(Chunk(batch[0].seq, batch[0].tokens[: len(batch[0].tokens) // 2], batch[0].pos, 0, 0))
            raise NativeError("scripted failure of a decode")
        self.decodes.append(batch)
        n_rows = sum(len(chunk.tokens) for chunk in batch)
        for chunk in batch:
            self._write(chunk, n_rows)
        return Decoded.OK

    @property
    def n_graphs_reused(self) -> int:
        shapes = [tuple((chunk.seq, len(chunk.tokens)) for chunk in batch) for batch in self.decodes]
        return sum(one == other for one, other in pairwise(shapes))

    def discard(self) -> None:
        self._enter()
        self._batch = []

    def logits(self, row: int) -> Logits:
        self._enter()
        self._need(row in self._rows, f"row {row} has no logits since the last decode")
        return self._rows[row]

    def sampler(self, params: SamplingParams, seed: int) -> FakeSampler:
        self._enter()
        for token, _bias in params.logit_bias:
            self.vocab.piece(token, special=True)  # raises RequestError for an id that is none
        self.samplers.append(FakeSampler(self, params, seed))
        return self.samplers[-1]

    @property
    def sliceable(self) -> bool:
        self._need(self._probed or not (self.used or self._batch), "states were probed while the context was in use")
        self._probed = True
        return self._memory == "plain"

    @property
    def fingerprint(self) -> str:
        return "fake"

    def extract(self, seq: int, ranges: Sequence[tuple[int, int]]) -> list[FakeBlock]:
        at = self._copied(seq)
        self._need(self.sliceable, "a state that cannot be sliced was extracted in ranges")
        bad = [r for r in ranges if not 0 <= r[0] < r[1] <= len(at.cells)]
        self._need(not bad, f"ranges {bad} of a sequence of {len(at.cells)} positions")
        self._need(all(end <= at.sound for _, end in ranges), f"ranges {ranges} of sequence {seq} hold what was moved")
        return [at.block(start, end) for start, end in ranges]

    def insert(self, seq: int, blocks: Sequence[Block]) -> bool:
        at = self._settled(seq)
        own = [block for block in blocks if isinstance(block, FakeBlock)]
        self._need(self.sliceable and bool(own) and len(own) == len(blocks), "blocks of another backend were inserted")
        ends = [own[0].start, *(block.start + block.n_tokens for block in own)]
        self._need([block.start for block in own] == ends[:-1], f"blocks with holes between them: {ends}")
        self._need(own[0].start <= len(at.cells), f"blocks from {own[0].start} on {len(at.cells)} positions")
        self._need(self.kv_unified or own[0].start == 0, "a part of a stream was restored")
        self._need(at.sound >= own[0].start, f"blocks were inserted behind what was moved in sequence {seq}")
        del at.cells[own[0].start :]
        if self.used + sum(block.n_tokens for block in own) > self.n_ctx:
            return False
        for block in own:
            self._need(block.before == digest(at.tokens), "a block was inserted behind other tokens than it belongs to")
            at.cells += block.cells()
        self._need(len(at.cells) <= self.n_ctx_seq, f"sequence {seq} grows over {self.n_ctx_seq} positions")
        return True

    def block(self, raw: bytes) -> FakeBlock:
        start, before, kind, *tokens = array("q", raw)
        return FakeBlock(start, before, tuple(tokens), kind=kind)

    def save(self, seq: int) -> bytes:
        at = self._copied(seq)
        self._need(at.sound == len(at.cells), f"sequence {seq} was saved although it was shifted")
        return _STATE_HEAD.pack(STATE_MAGIC, seq) + array("i", (at.oldest, at.kind, *at.tokens)).tobytes()

    def portable(self, state: bytes) -> bytes:
        return state

    def adopt(self, state: bytes) -> bytes:
        return state

    def restore(self, seq: int, state: bytes) -> bool:
        at = self._settled(seq)
        at.cells, at.oldest = [], 0
        if len(state) < _STATE_HEAD.size + 8 or len(state) % 4 or _STATE_HEAD.unpack_from(state)[0] != STATE_MAGIC:
            return False
        oldest, kind, *tokens = array("i", state[_STATE_HEAD.size :])
        if self._memory != "recurrent" and self.used + len(tokens) > self.n_ctx:
            return False
        at.cells, at.oldest = [Cell(token, kind=kind) for token in tokens], oldest
        return True

    def share(self, src: int, dst: int, n: int) -> None:
        source, target = self._at(src), self._at(dst)
        self._need(not self._batch, "cells were shared while a batch was being filled")
        self._need(src != dst, f"sequence {src} was shared with itself")
        self._need(
            max(self.floor(src), 1) <= n <= len(source.cells), f"{n} of {len(source.cells)} positions were shared"
        )
        self._need(n <= source.sound, f"{n} positions of sequence {src} were shared, but {source.sound} are sound")
        target.cells = source.cells[:n] if self.kv_unified else [replace(cell) for cell in source.cells[:n]]
        target.oldest = source.oldest
        if not self.kv_unified:
            self._copying.add((src, dst))

    def cut(self, seq: int, n: int) -> None:
        at = self._at(seq)
        if n >= len(at.cells):
            return
        self._need(n == 0 or n >= max(self.floor(seq), 1), f"sequence {seq} was cut to {n}, under its floor")
        del at.cells[n:]
        at.oldest = at.oldest if n else 0

    def shift(self, seq: int, keep: int, discard: int) -> None:
        at, end = self._at(seq), keep + discard
        self._need(self.can_shift, "positions were changed that cannot be")
        self._need(not self._batch, "positions were changed while a batch was being filled")
        self._need(keep >= 0 < discard and end < len(at.cells), f"positions {keep} to {end} of {len(at.cells)} dropped")
        others = {id(cell) for other in self._sequences if other is not at for cell in other.cells}
        shared = [i for i, cell in enumerate(at.cells) if i >= end and id(cell) in others]
        self._need(not shared, f"positions {shared} of sequence {seq} were moved for other sequences as well")
        self.n_shifts += 1
        del at.cells[keep:end]
        for cell in at.cells[keep:]:
            cell.sound = False

    def floor(self, seq: int) -> int:
        at = self._at(seq)
        if self._memory == "recurrent":
            return len(at.cells)
        return at.oldest + self._window if at.oldest else 0

    def length(self, seq: int) -> int:
        return len(self._at(seq).cells)

    def close(self) -> None:
        self.closed = True

    # -- inside --------------------------------------------------------------------------------------------------------

    def _write(self, chunk: Chunk, n_rows: int = 0) -> None:
        at, kind = self._sequences[chunk.seq], kind_of(self.adapted)
        self._need(not at.cells or at.kind == kind, f"sequence {chunk.seq} goes on with other adapters")
        for index, token in enumerate(chunk.tokens):
            shape = digest((n_rows, chunk.first_row + index)) % 2**31
            at.cells.append(Cell(token, not at.cells or at.cells[-1].sound, shape, kind))
            if index >= len(chunk.tokens) - chunk.logits:
                known = at.tokens + ([kind] if kind else []) + (at.shapes if self._shapes else [])
                self._rows[chunk.first_row + index] = self._row(known)
        if self._memory == "window":
            at.oldest = max(at.oldest, len(at.cells) - 2 * self._window)

    def _row(self, tokens: Sequence[int]) -> Logits:
        row = np.full(self.vocab.n_tokens, np.nan if self._nan(tokens) else -9.0, dtype=np.float32)
        token = self.script(tokens)
        for rank in (3, 2, 1):  # less likely ones, so that probabilities and sampling have something to show
            row[(token + 7 * rank) % 256] += 16.0 - rank
        row[token] = row[token] + 1 if np.isnan(row[token]) else 9.0
        return row

    def _seconds(self, batch: Iterable[Chunk]) -> float:
        sizes = [len(chunk.tokens) for chunk in batch]
        return self._cost.step + sum(self._cost.lane if n == 1 else n * self._cost.prefill for n in sizes)

    def _at(self, seq: int) -> FakeSequence:
        self._enter()
        self._need(0 <= seq < self.n_seq_max, f"there is no sequence {seq}")
        return self._sequences[seq]

    def _copied(self, seq: int) -> FakeSequence:
        """A sequence that is read: what was shared with it must have arrived."""
        early = seq in {dst for _, dst in self._copying}
        self._need(not early, f"sequence {seq} was read before the decode that copies its stream")
        return self._at(seq)

    def _settled(self, seq: int) -> FakeSequence:
        """A sequence that is written to from outside: no copy may still need it."""
        early = any(seq in pair for pair in self._copying)
        self._need(not early, f"sequence {seq} was restored before the decode that copies its stream")
        return self._at(seq)

    def _enter(self) -> None:
        self._need(not self.closed, "the backend was used after it was closed")
        self._thread = self._thread or threading.get_ident()
        self._need(self._thread == threading.get_ident(), "the backend was used from two threads")

    def _need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.misuse(otherwise)

    def misuse(self, what: str) -> NoReturn:
        """Record a misuse and raise it."""
        self.misuses.append(Misuse(what))
        raise self.misuses[-1]


class FakeSampler:
    """Implements `minka.native.protocol.Sampler`: the maximum at temperature 0, else a seeded choice."""

    def __init__(self, backend: FakeBackend, params: SamplingParams, seed: int) -> None:
        self._backend, self._params, self.seed = backend, params, seed
        self._random = np.random.default_rng(seed)
        self._left: list[tuple[int, float]] = []
        self.said: list[int] = []
        """Tokens that were accepted, the prompt's included."""
        self.closed = False

    def sample(self, row: int) -> int:
        token = self.guess(row)
        self.said.append(token)
        return token

    def guess(self, row: int) -> int:
        self._open()
        logits = self._backend.logits(row).copy()
        for token, bias in self._params.logit_bias:
            logits[token] += bias
        if self._params.ignore_eos:
            logits[self._backend.vocab.eos] = -np.inf
        if not np.isfinite(logits.max()):
            raise NativeError("the fake model computed no usable logits")
        return self._pick(logits)

    def _pick(self, logits: Logits) -> int:
        if self._params.temperature <= 0:
            self._left = [(int(logits.argmax()), 1.0)]
            return self._left[0][0]
        weights = np.exp((logits - logits.max()).astype(np.float64) / self._params.temperature)
        probs = weights / weights.sum()
        self._left = [(int(token), float(probs[token])) for token in np.argsort(-probs, kind="stable")]
        return int(self._random.choice(len(probs), p=probs))

    def candidates(self) -> Sequence[tuple[int, float]]:
        self._open()
        return self._left if self._params.post_sampling_probs else ()

    def accept(self, tokens: Sequence[int]) -> None:
        self._open()
        self.said += tokens

    def close(self) -> None:
        self.closed = True

    def _open(self) -> None:
        if self.closed:
            self._backend.misuse("a sampler was used after it was closed")
