"""Values that all layers share: what is asked of the engine (Job) and what comes back (Event).

All are frozen and hold only plain data, so they can cross a thread, or later a process, unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from minka.params import SamplingParams


class Priority(IntEnum):
    """Order in the queue; a higher one is admitted first, and preempted last."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


class FinishReason(StrEnum):
    """Why a job ended. The value is llama-server's `stop_type`."""

    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Job:
    """One completion of one prompt.

    `prompt` is token ids, at least one. `n_predict` is the most tokens to generate, -1 for as many as the context
    holds. `stop` are strings that end the text and are not part of it. `id_slot` pins the job to a slot, -1 for any.
    Tenants take turns in the queue. After `timeout_ms` from its submit the job fails, or ends with what it has.
    Jobs share computed prefixes only with jobs of the same `cache_salt`, and with none unless `cache_prompt`.
    Where the engine shifts full contexts, the first `n_keep` tokens stay (-1: the prompt) and `n_discard` of those
    behind them are dropped (0: half). `n_cache_reuse` over 0 lets equal runs of so many tokens be taken over although
    they stood elsewhere in a text.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    stop: tuple[str, ...] = ()
    t_max_predict_ms: int = -1
    priority: Priority = Priority.NORMAL
    id_slot: int = -1
    cache_prompt: bool = True
    cache_salt: str = ""
    tenant: str = ""
    timeout_ms: int = -1
    return_progress: bool = False
    preserved_tokens: frozenset[int] = frozenset()
    pin: str = ""
    """What is computed of the prompt stays in memory under this name until it is unpinned; empty for not at all."""


@dataclass(frozen=True, slots=True)
class TokenProb:
    """A token with its natural-log probability (of the whole vocabulary, before sampling, unless asked otherwise)."""

    id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token that was chosen, with the most likely alternatives, best first."""

    chosen: TokenProb
    top: tuple[TokenProb, ...]


@dataclass(frozen=True, slots=True)
class Timings:
    """Token counts and durations of one job. Times are milliseconds; a count that is not reached yet is 0.

    `cache_n + prompt_n` is the prompt's length: tokens taken over from a cache and tokens computed.
    """

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    deadline: bool = False
    """Whether the job ended because its time was over."""


@dataclass(frozen=True, slots=True)
class Started:
    """The job has a slot. `n_cached` of its `n_prompt` tokens need no compute."""

    id: str
    slot: int
    n_prompt: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens `processed` so far (the cached ones included). Only for jobs that ask for it."""

    id: str
    slot: int
    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` may be empty while a character or a possible stop string is incomplete."""

    id: str
    slot: int
    token: int
    text: str
    timings: Timings
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The job's end. `text` is the rest that was withheld and turned out not to be a stop string."""

    id: str
    slot: int
    reason: FinishReason
    text: str
    timings: Timings
    stop_word: str = ""
    truncated: bool = False
    n_past: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's end by an error. `error` is one of minka.errors."""

    id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job's end because somebody called cancel."""

    id: str


Event = Started | Progress | Token | Finished | Failed | Cancelled
End = Finished | Failed | Cancelled


@dataclass(slots=True)
class Counters:
    """Totals since the start; seconds where it says so."""

    prompt_tokens: int = 0
    """Prompt tokens computed."""
    cached_tokens: int = 0
    """Prompt tokens that did not have to be computed."""
    recalled_tokens: int = 0
    """Those of them that came from the memory tiers under the KV cache."""
    device_hits: int = 0
    """Jobs of which the KV cache itself held a part."""
    predicted_tokens: int = 0
    predicted_steps: int = 0
    """Those predicted tokens that another one came before: the ones that `predicted_seconds` went into."""
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    decode_calls: int = 0
    busy_slots: int = 0
    """Sum over decode calls of the slots that took part."""
    preempted: int = 0
    """Runs that lost their slot to others because the KV cache was full."""
    n_tokens_max: int = 0
    """The longest sequence so far."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot as `/slots` shows it. `job` is the one it serves, or served last."""

    id: int
    busy: bool
    job: Job | None
    n_past: int
    n_prompt: int
    n_cached: int
    n_processed: int
    n_generated: int
    has_new_line: bool
    order: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine between two steps."""

    slots: tuple[SlotView, ...]
    n_queued: int
    counters: Counters
    used_cells: int


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier of the prefix cache.

    `entries` are slots with text (device), blocks or whole states (ram), files (disk); what they hold may be the same
    text. A device is measured in cells, so it has no bytes, and its limit is in tokens. `limit` None is none at all.
    `hits` is how often a prompt got anything from this tier, `served` how many tokens that was.
    """

    name: str
    entries: int
    tokens: int
    n_bytes: int | None
    limit: int | None
    hits: int
    served: int


@dataclass(frozen=True, slots=True)
class PinView:
    """A pinned prefix: its tokens, and the memory that it takes (shared with others that begin the same)."""

    name: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache between two steps. `whole`: states are kept whole, because the model's cannot be cut."""

    whole: bool
    tiers: tuple[TierView, ...]
    pins: tuple[PinView, ...]


class Inbox(Protocol):
    """Where the engine puts events: one call per step for all of an inbox's jobs, from the engine's thread."""

    def deliver(self, events: Sequence[Event]) -> None:
        """Take the events and return at once; never block, never raise."""


class Tokenizer(Protocol):
    """What text needs from a model's vocabulary. Thread-safe; ids are checked, a bad one raises RequestError."""

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary; ids are 0 <= id < n_tokens."""

    @property
    def bos(self) -> int:
        """Begin-of-text id, -1 if the vocabulary has none."""

    @property
    def eos(self) -> int:
        """End-of-text id, -1 if the vocabulary has none."""

    @property
    def add_bos(self) -> bool:
        """Whether `tokenize(add_special=True)` puts BOS in front."""

    @property
    def add_eos(self) -> bool:
        """Whether `tokenize(add_special=True)` puts EOS at the end."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text. `parse_special`: spellings of special tokens become those tokens."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes that a token stands for; empty for a control token unless `special`."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """The bytes of all pieces, joined."""

    def text(self, token: int) -> str:
        """The token's spelling in the vocabulary (`<s>`), not what it stands for."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""

    @property
    def eog(self) -> frozenset[int]:
        """All tokens that end a generation."""
