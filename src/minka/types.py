"""Values that all layers share: what is asked of the engine (Job) and what comes back (Event).

All are frozen and hold only plain data, so they can cross a thread, or later a process, unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, TypeAlias

from minka.params import Adapters, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
class Thinking:
    """Where a text's reasoning begins and ends, and how long it may be.

    The reasoning goes from `start` to the first of `ends` that comes; `is_open`: the prompt ends inside it. After
    `budget` tokens of reasoning (-1: never) the text of `message` and the first of `ends` are forced.
    """

    start: str
    ends: tuple[str, ...]
    is_open: bool = False
    budget: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a job's text must match: a grammar in llguidance's form (Lark source or its JSON), empty for any text.

    The grammar describes all of the generated text, the reasoning too. `thinking` is who watches the reasoning.
    """

    grammar: str = ""
    thinking: Thinking | None = None


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
    constraint: Constraint | None = None
    close_at_limit: bool = False
    """Bring a constrained text to an end that its constraint allows before `n_predict` or the context cut it off."""
    n_indent: int = 0
    """Over 0: the text ends at the first line that is indented by fewer spaces and tabs."""
    prompt_logprobs: int = -1
    """Tell the log probability of every prompt token but the first, with so many alternatives; -1 for not at all."""
    lora: Adapters = ()
    """The LoRA adapters that compute it; computed text is shared only between jobs of the same ones."""

    @property
    def namespace(self) -> str:
        """Jobs share computed text only with jobs of the same salt and adapters; of none, it is nobody's secret."""
        if not self.lora:
            return self.cache_salt
        return blake2b(repr((self.lora, self.cache_salt)).encode(), digest_size=16).hexdigest()


class Pooling(StrEnum):
    """How the vectors of a text's tokens become those of the text. NONE keeps them, RANK makes a relevance score."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class RankFrame:
    """How a query and a document become one text that a model can rank: a `template` with `{query}` and `{document}`,
    or if there is none, tokens before the query, between the two and after the document."""

    template: str | None = None
    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


Vectors: TypeAlias = "NDArray[np.float32]"
"""What became of one text: shape (1, width), or (tokens, width) if nothing was pooled."""


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """Texts that become vectors. `inputs` are their token ids, at least one text of at least one token.

    Tenants take turns. After `timeout_ms` from its submit the job fails, -1 for never.
    """

    inputs: tuple[tuple[int, ...], ...]
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    timeout_ms: int = -1


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
    rank: int = 0
    """The place of the chosen one among all tokens, 1 for the most likely; 0 where nobody counted."""


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
    queue_ms: float = 0.0
    """From the submit until the job got a slot. The prompt's time begins there: `queue_ms + prompt_ms` is the TTFT."""


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
class PromptLogprobs:
    """Log probabilities of the prompt tokens from position `first` on, each given all tokens before it.

    They come in order and without holes, before the first generated token. Only for jobs that ask for it.
    """

    id: str
    slot: int
    first: int
    entries: tuple[TokenLogprobs, ...]


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
    """The job's end; `slot` is -1 if it had lost its own. `text` was withheld and turned out to be no stop string."""

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


Event = Started | Progress | PromptLogprobs | Token | Finished | Failed | Cancelled
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
    graphs_reused: int = 0
    """Micro-batches that could go through the compute graph of the one before, as steps with the same lanes do."""
    busy_slots: int = 0
    """Sum over decode calls of the slots that took part."""
    preempted: int = 0
    """Runs that lost their slot to others because the KV cache was full."""
    n_tokens_max: int = 0
    """The longest sequence so far."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fell into buckets: `counts[i]` are those over `bounds[i - 1]` and up to `bounds[i]`, the last
    ones those over all bounds. `total` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What jobs that ended took since the start: seconds, and numbers of tokens. `ends` are how many jobs ended how:
    a FinishReason's value, or `cancelled`, or `failed`."""

    queue: Histogram
    prefill: Histogram
    first_token: Histogram
    """From the submit to the first token (TTFT)."""
    gap: Histogram
    """Between two tokens of one job."""
    per_token: Histogram
    """A job's time from its first token to its last, by the tokens after the first."""
    decode: Histogram
    whole: Histogram
    """From the submit to the end."""
    prompt_tokens: Histogram
    predicted_tokens: Histogram
    ends: Mapping[str, int]


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


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that is loaded. `scale` is its factor where a request says nothing; ids are never used twice."""

    id: int
    path: str
    scale: float = 1.0
    task_name: str = ""
    prompt_prefix: str = ""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The tokens around the parts of a fill-in-the-middle prompt; `repo` and `separator` are -1 where there is none."""

    prefix: int
    suffix: int
    middle: int
    repo: int = -1
    separator: int = -1


class Inbox(Protocol):
    """Where the engine puts events: one call per step for all of an inbox's jobs, from the engine's thread."""

    def deliver(self, events: Sequence[Event]) -> None:
        """Take the events and return at once; never block, never raise."""


class Matcher(Protocol):
    """A job's constraint at work: it follows the generated tokens. One thread uses it."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of all tokens that must not come next to minus infinity; shape (n_vocab,), in place.
        Raises RequestError for a grammar that cannot be followed any further."""

    def allows(self, token: int) -> bool:
        """Whether `apply` would leave this token, told much sooner. False once the text is over. Changes nothing."""

    def forced(self) -> Sequence[int]:
        """The tokens that have to come next because nothing else may; often none. Changes nothing.

        What they begin with is also all that `apply` leaves.
        """

    def accept(self, token: int) -> None:
        """Go on by a token. Raises NativeError for one that may not come here."""

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing may follow, so that no end token is needed."""

    @property
    def closed(self) -> bool:
        """Whether the end was brought about because the room for the text is over."""

    def end_thinking(self) -> bool:
        """Force the end of the reasoning from here on; False if the text is not inside one."""


class Constraints(Protocol):
    """Makes matchers, from constraints that were compiled before."""

    def start(self, constraint: Constraint, room: int = -1) -> Matcher:
        """A matcher at the text's beginning, which closes it in time for a `room` of tokens unless that is -1.
        Raises RequestError for a grammar that cannot be compiled."""


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
