"""The state of the engine as plain data: a run (one job under way) and a slot (one sequence of the KV cache).

Every fact that follows from others is a property.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minka.engine.shift import Shift
from minka.engine.text import TextStream
from minka.native.protocol import Sampler
from minka.params import Adapters
from minka.types import Inbox, Job, Matcher, Timings

ALL = 2**62
"""More positions than there can be."""


@dataclass(slots=True, eq=False)
class Run:
    """One job from submit to its end. It keeps its tokens when it loses its slot."""

    job: Job
    inbox: Inbox
    seed: int
    submitted: float
    """Time of submit, seconds of the engine's clock, as all times here."""
    tokens: list[int] = field(init=False)
    """The prompt and what was generated so far."""
    context: list[int] = field(init=False)
    """What its sequence is to hold: all tokens (the very same list), or after a context shift those that are left."""
    text: TextStream = field(init=False)
    sampler: Sampler | None = None
    matcher: Matcher | None = None
    """What follows its constraint; it has seen what was generated, also when the run lost its slot."""
    n_scored: int = 0
    """Prompt tokens whose rows were read, if the log probabilities of the prompt are wanted."""
    n_forced: int = 0
    """Tokens that its constraint appended behind the one that was sampled last."""
    turn: int = 0
    """Its turn in the queue, between tenants."""
    order: int = -1
    """Number of its (first) admission, -1 before: a larger one is younger."""
    n_cached: int = 0
    n_recalled: int = 0
    n_draft: int = 0
    n_accepted: int = 0
    started: float = 0.0
    """When it first got a slot, 0 before."""
    first_token: float = 0.0
    """When its first token was sampled, 0 before."""
    last_token: float = 0.0
    announced: bool = False
    timed_out: bool = False
    has_new_line: bool = False
    truncated: bool = False
    """Whether its context was shifted."""

    def __post_init__(self) -> None:
        self.tokens = self.context = list(self.job.prompt)
        self.text = TextStream(self.job.stop, self.job.n_indent)

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens.append(token)
        if self.context is not self.tokens:
            self.context.append(token)

    def shift(self, shift: Shift) -> None:
        """Drop a part of the context."""
        self.context = shift.apply(self.context)
        self.truncated = True

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.job.prompt)

    @property
    def n_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def scores(self) -> bool:
        """Whether there are prompt tokens whose log probabilities are still to be told."""
        return self.job.prompt_logprobs >= 0 and self.n_scored < self.n_prompt - 1

    @property
    def n_reusable(self) -> int:
        """Tokens that may be taken over from others: what is taken over gives no logits."""
        return self.n_scored if self.scores else ALL

    def is_late(self, now: float) -> bool:
        """Whether its time is over."""
        return self.job.timeout_ms >= 0 and (now - self.submitted) * 1e3 > self.job.timeout_ms

    def timings(self, now: float) -> Timings:
        """Counts and durations up to now."""
        prompt_end = self.first_token or now
        return Timings(
            cache_n=self.n_cached,
            prompt_n=self.n_prompt - self.n_cached,
            prompt_ms=(prompt_end - self.started) * 1e3,
            predicted_n=self.n_generated,
            predicted_ms=(now - self.first_token) * 1e3 if self.first_token else 0.0,
            draft_n=self.n_draft,
            draft_n_accepted=self.n_accepted,
            deadline=self.timed_out,
            queue_ms=(self.started - self.submitted) * 1e3,
        )


@dataclass(frozen=True, slots=True)
class Wait:
    """A slot that computes nothing until `leader` holds the `n` tokens that both need."""

    leader: int
    order: int
    """The leader's run: if that slot serves another one by now, the wait is over."""
    n: int


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence. `tokens[:n_past]` are in the KV cache; the rest is to be computed next.

    A prompt, a sampled token, a draft and tokens that a grammar forces are all the same here: tokens to append.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    n_past: int = 0
    run: Run | None = None
    wait: Wait | None = None
    last_used: float = 0.0
    last_job: Job | None = None
    salt: str = ""
    """The namespace of the tokens it holds, see `Job.namespace`."""
    lora: Adapters = ()
    """The LoRA adapters that computed what it holds, and compute what comes."""
    private: bool = False
    """Whether nobody else may start from what it holds."""
    n_kept: int = 0
    """`n_past` when memory was last told of its text while it was idle."""
    n_sound: int = ALL
    """Others may start from so many of its tokens: from there on it holds something else than they would compute."""

    @property
    def idle(self) -> bool:
        """Whether it serves no run; it may still hold text that a later prompt can start from."""
        return self.run is None

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.n_past

    @property
    def generating(self) -> bool:
        """Whether its next step yields a token with nothing to compute but what the last step appended."""
        return self.run is not None and self.run.n_generated > 0 and 0 < self.pending <= 1 + self.run.n_forced

    @property
    def prefilling(self) -> bool:
        """Whether it has prompt tokens to compute (or to compute again, after it lost its cells)."""
        return self.run is not None and not self.generating
