"""A backend without a model: byte tokens, scripted logits, and the bookkeeping of sequences that libllama would do.

It is stricter than libllama: what would abort the process or read stale numbers there is a `Misuse` here, raised and
also kept in `backend.misuses`, so that a test sees it even where the engine turns every error into an event. Time is a
clock that only decodes move. Nothing here imports the engine or libllama.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, NoReturn

import numpy as np

from minka.errors import NativeError, RequestError
from minka.native.protocol import Block, Decoded, Logits
from minka.params import SamplingParams

BOS, EOS, CONTROL = 256, 257, 258
SPECIALS = ("<s>", "</s>", "<|control|>")
WAIT = 20.0
"""Seconds after which a thread that waits for a test (or a test that waits for a thread) gives up."""

Script = Callable[[Sequence[int]], int]
"""The most likely next token after a sequence: a pure function of its tokens."""


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


class FakeVocab:
    """`minka.types.Tokenizer`: one token a byte, three control tokens, and `pieces` of any bytes behind them."""

    def __init__(self, pieces: Sequence[bytes] = (), *, add_bos: bool = False) -> None:
        self._pieces = [bytes([value]) for value in range(256)] + [b""] * len(SPECIALS) + list(pieces)
        self._longest_first = sorted((p for p in pieces if p), key=len, reverse=True)
        self.n_tokens = len(self._pieces)
        self.bos, self.eos = BOS, EOS
        self.add_bos, self.add_eos = add_bos, False
        self.eog = frozenset({EOS})

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw, tokens = text.encode("utf-8", "replace"), [BOS] if add_special and self.add_bos else []
        known = {spelling.encode(): BOS + i for i, spelling in enumerate(SPECIALS)} if parse_special else {}
        known |= {piece: self._pieces.index(piece, 256) for piece in self._longest_first}
        at = 0
        while at < len(raw):
            found = next((piece for piece in known if raw.startswith(piece, at)), raw[at : at + 1])
            tokens.append(known.get(found, found[0]))
            at += len(found)
        return tokens

    def piece(self, token: int, *, special: bool) -> bytes:
        self._check(token)
        return SPECIALS[token - BOS].encode() if special and BOS <= token <= CONTROL else self._pieces[token]

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        return b"".join(self.piece(token, special=special) for token in tokens)

    def text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        return token == EOS

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise RequestError(f"token id {token} is outside the vocabulary (0 to {self.n_tokens - 1})")


def tokens_of(text: str | bytes) -> tuple[int, ...]:
    """The byte tokens of a text."""
    return tuple(text.encode() if isinstance(text, str) else text)


def digest(tokens: Sequence[int], salt: int = 0) -> int:
    """A number that depends on every token and its place."""
    return zlib.crc32(array("i", tokens).tobytes(), salt)


def hashed(alphabet: Sequence[int] = b"abcdefghij klmno\n", *, salt: int = 0) -> Script:
    """Tokens of `alphabet`, each chosen by all tokens before it: one wrong token in a sequence changes all later."""
    return lambda tokens: alphabet[digest(tokens, salt) % len(alphabet)]


def scripted(texts: Mapping[str, str | Sequence[int]], otherwise: Script | None = None) -> Script:
    """After each prompt its continuation (a text or tokens), then EOS. Other sequences follow `otherwise`."""
    rest = otherwise or hashed()
    pairs = [(tokens_of(p), tokens_of(c) if isinstance(c, str) else tuple(c)) for p, c in texts.items()]

    def script(tokens: Sequence[int]) -> int:
        for prompt, continuation in pairs:
            done = len(tokens) - len(prompt)
            if 0 <= done <= len(continuation) and tuple(tokens) == prompt + continuation[:done]:
                return (*continuation, EOS)[done]
        return rest(tokens)

    return script


def eos_after(n: int, script: Script | None = None) -> Script:
    """EOS once the sequence holds `n` tokens, `script` before."""
    before = script or hashed()
    return lambda tokens: EOS if len(tokens) >= n else before(tokens)


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


@dataclass(frozen=True, slots=True)
class FakeBlock:
    """Implements `minka.native.protocol.Block`: its K and V are the tokens, and a digest of those before them."""

    start: int
    before: int
    tokens: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        return 4 * len(self.tokens)

    def slice(self, n: int) -> FakeBlock:
        return FakeBlock(self.start, self.before, self.tokens[:n])

    def to_bytes(self) -> bytes:
        return array("q", (self.start, self.before, *self.tokens)).tobytes()


@dataclass(slots=True, eq=False)
class _Cell:
    token: int


@dataclass(slots=True)
class _Sequence:
    cells: list[_Cell] = field(default_factory=list)
    oldest: int = 0
    """First position that a sliding window still holds."""

    @property
    def tokens(self) -> list[int]:
        return [cell.token for cell in self.cells]


class FakeBackend:
    """Implements `minka.native.protocol.Backend`. As a context manager it closes itself and `verify`s at the end.

    `memory` is what its sequences can be cut to: "plain" anywhere, "recurrent" nowhere, "window" not far back
    (`window` positions are needed to go on, twice as many are kept). `nan` and `fail` look at a sequence's tokens and
    at a batch: rows that are NaN, decodes that end with NativeError after a part of the batch was written.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        unified: bool = True,
        n_seq_max: int = 4,
        n_ctx: int = 4096,
        n_batch: int = 512,
        memory: Literal["plain", "recurrent", "window"] = "plain",
        window: int = 16,
        vocab: FakeVocab | None = None,
        cost: Cost | None = None,
        clock: FakeClock | None = None,
        nan: Callable[[Sequence[int]], bool] | None = None,
        fail: Callable[[Sequence[Chunk]], bool] | None = None,
    ) -> None:
        self.kv_unified, self.n_seq_max, self.n_ctx, self.n_batch = unified, n_seq_max, n_ctx, n_batch
        self.n_ctx_seq = n_ctx if unified else n_ctx // n_seq_max
        self.vocab = vocab or FakeVocab()
        self.gate, self.clock = Gate(), clock or FakeClock()
        self.decodes: list[tuple[Chunk, ...]] = []
        """All batches that were computed, in order."""
        self.misuses: list[Misuse] = []
        self.samplers: list[FakeSampler] = []
        self.closed = False
        self.script, self._cost = script or hashed(), cost or Cost()
        self._memory, self._window = memory, window
        self._nan, self._fail = nan or (lambda _tokens: False), fail or (lambda _chunks: False)
        self._sequences = [_Sequence() for _ in range(n_seq_max)]
        self._batch: list[Chunk] = []
        self._rows: dict[int, Logits] = {}
        self._copying: set[int] = set()
        self._thread: int | None = None
        self._probed = False

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
        self._need(n_outputs <= min(self.n_batch, self.n_seq_max), f"{n_outputs} logits rows in one batch")
        self._batch.append(Chunk(seq, tuple(tokens), pos, logits, first))
        return first + len(tokens) - 1

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
        for chunk in batch:
            self._write(chunk)
        return Decoded.OK

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
        return [FakeBlock(start, digest(at.tokens[:start]), tuple(at.tokens[start:end])) for start, end in ranges]

    def insert(self, seq: int, blocks: Sequence[Block]) -> bool:
        at = self._copied(seq)
        own = [block for block in blocks if isinstance(block, FakeBlock)]
        self._need(self.sliceable and bool(own) and len(own) == len(blocks), "blocks of another backend were inserted")
        ends = [own[0].start, *(block.start + block.n_tokens for block in own)]
        self._need([block.start for block in own] == ends[:-1], f"blocks with holes between them: {ends}")
        self._need(own[0].start <= len(at.cells), f"blocks from {own[0].start} on {len(at.cells)} positions")
        self._need(self.kv_unified or own[0].start == 0, "a part of a stream was restored")
        del at.cells[own[0].start :]
        if self.used + sum(block.n_tokens for block in own) > self.n_ctx:
            return False
        for block in own:
            self._need(block.before == digest(at.tokens), "a block was inserted behind other tokens than it belongs to")
            at.cells += [_Cell(token) for token in block.tokens]
        self._need(len(at.cells) <= self.n_ctx_seq, f"sequence {seq} grows over {self.n_ctx_seq} positions")
        return True

    def block(self, raw: bytes) -> FakeBlock:
        start, before, *tokens = array("q", raw)
        return FakeBlock(start, before, tuple(tokens))

    def save(self, seq: int) -> bytes:
        at = self._copied(seq)
        return array("i", (at.oldest, *at.tokens)).tobytes()

    def restore(self, seq: int, state: bytes) -> bool:
        at, (oldest, *tokens) = self._copied(seq), array("i", state)
        at.cells, at.oldest = [], 0
        if self._memory != "recurrent" and self.used + len(tokens) > self.n_ctx:
            return False
        at.cells, at.oldest = [_Cell(token) for token in tokens], oldest
        return True

    def share(self, src: int, dst: int, n: int) -> None:
        source, target = self._at(src), self._at(dst)
        self._need(not self._batch, "cells were shared while a batch was being filled")
        self._need(src != dst, f"sequence {src} was shared with itself")
        self._need(
            max(self.floor(src), 1) <= n <= len(source.cells), f"{n} of {len(source.cells)} positions were shared"
        )
        target.cells = source.cells[:n] if self.kv_unified else [_Cell(cell.token) for cell in source.cells[:n]]
        target.oldest = source.oldest
        if not self.kv_unified:
            self._copying.add(dst)

    def cut(self, seq: int, n: int) -> None:
        at = self._at(seq)
        if n >= len(at.cells):
            return
        self._need(n == 0 or n >= max(self.floor(seq), 1), f"sequence {seq} was cut to {n}, under its floor")
        del at.cells[n:]
        at.oldest = at.oldest if n else 0

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

    def _write(self, chunk: Chunk) -> None:
        at = self._sequences[chunk.seq]
        for index, token in enumerate(chunk.tokens):
            at.cells.append(_Cell(token))
            if index >= len(chunk.tokens) - chunk.logits:
                self._rows[chunk.first_row + index] = self._row(at.tokens)
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

    def _at(self, seq: int) -> _Sequence:
        self._enter()
        self._need(0 <= seq < self.n_seq_max, f"there is no sequence {seq}")
        return self._sequences[seq]

    def _copied(self, seq: int) -> _Sequence:
        self._need(seq not in self._copying, f"sequence {seq} was used before the decode that copies its stream")
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
        self._open()
        logits = self._backend.logits(row)
        for token, bias in self._params.logit_bias:
            logits[token] += bias
        if self._params.ignore_eos:
            logits[self._backend.vocab.eos] = -np.inf
        if not np.isfinite(logits.max()):
            raise NativeError("the fake model computed no usable logits")
        token = self._pick(logits)
        self.said.append(token)
        return token

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
