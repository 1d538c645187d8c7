"""One answer of the engine, shown while it comes; Ctrl-C ends the answer and not the program.

Also the one who answers a conversation: from messages to a job. Knows no screen and no keyboard.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from minka.chat.messages import Message
from minka.chat.prompt import prompt_tokens
from minka.engine.engine import Engine
from minka.params import Adapters
from minka.protocols.body import decode_lora
from minka.protocols.constraint import own_constraint
from minka.protocols.served import Served
from minka.terminal.tuning import Tuning
from minka.types import Constraint, Finished, FinishReason, Job, Progress, Started, Timings, Token, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    Handler = Callable[[int, FrameType | None], object] | int | None

IMPATIENCE = 1.0
"""Seconds in which further presses of Ctrl-C mean the same as the first."""

Show = Callable[[str], None]
Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job. `reason` is why it ended, None if somebody stopped it with `signal` (0 if nobody did).

    `n_past` is how many tokens of the context are in use now. `is_full`: the context's end ended the text.
    """

    text: str
    timings: Timings
    n_past: int
    reason: FinishReason | None = None
    is_full: bool = False
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of a command that has nothing else to do."""
        return 0 if self.reason is not None else 128 + self.signal


class Stopper:
    """While it is entered, Ctrl-C and a request to terminate stop what `arm` named instead of ending the program.

    Pressed again after a moment, Ctrl-C raises KeyboardInterrupt. For the main thread only.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since = 0.0
        self._stop: Callable[[], None] | None = None
        self._before: Mapping[signal.Signals, Handler] = {}
        self.signal = 0
        """The first signal that came, 0 before."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self, stop: Callable[[], None]) -> None:
        """Say what stops the work that begins now; called at once if a signal came already."""
        self._stop = stop
        if self.signal:
            stop()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = self._clock()
        if not self.signal:
            self.signal, self._since = number, now
            if self._stop is not None:
                self._stop()
        elif now - self._since > IMPATIENCE:
            raise KeyboardInterrupt


def run_job(
    engine: Engine,
    job: Job,
    show: Show,
    stopper: Stopper,
    watch: Watch | None = None,
    each: Callable[[Token], None] | None = None,
) -> Answer:
    """Run a job to its end, or until it is stopped; what it wrote until then is the answer. Raises the job's error.

    `show` is called with each piece of text, `watch` with the progress on the prompt if the job asks for it, `each`
    with each token.
    """
    pieces: list[str] = []
    timings, n_past = Timings(), len(job.prompt)
    for event in engine.stream(job):
        match event:
            case Started():
                stopper.arm(lambda: engine.cancel(job.id))
            case Token():
                timings, n_past = event.timings, len(job.prompt) + event.timings.predicted_n
                _add(event.text, pieces, show)
                if each is not None:
                    each(event)
            case Progress() if watch is not None:
                watch(event)
            case Finished():
                _add(event.text, pieces, show)
                is_full = event.truncated and event.reason is FinishReason.LIMIT
                return Answer("".join(pieces), event.timings, event.n_past, event.reason, is_full)
            case _:
                pass
    return Answer("".join(pieces), timings, n_past, signal=stopper.signal)


def _add(text: str, pieces: list[str], show: Show) -> None:
    if text:
        pieces.append(text)
        show(text)


class Responder(Protocol):
    """Who answers a conversation."""

    @property
    def n_ctx(self) -> int:
        """The context in tokens."""

    @property
    def n_ctx_train(self) -> int:
        """The largest context that makes sense, in tokens."""

    def answer(self, messages: Sequence[Message], tuning: Tuning, show: Show, stopper: Stopper, watch: Watch) -> Answer:
        """Answer the last message. Raises ContextSizeError if the messages do not fit, and any other MinkaError."""


class ModelResponder:
    """A loaded model: renders the messages with its chat template and runs a job on its engine.

    `look` is called with the tokens of every prompt. `special`: special tokens are part of the answer's text.
    """

    def __init__(
        self, engine: Engine, served: Served, *, special: bool, look: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        self._engine = engine
        self._served = served
        self._preserved = all_tokens(served.tokenizer) if special else frozenset[int]()
        self._look = look
        self._count = 0

    @property
    def n_ctx(self) -> int:
        """See Responder."""
        return self._served.n_ctx

    @property
    def n_ctx_train(self) -> int:
        """See Responder."""
        return self._served.model.n_ctx_train

    def answer(
        self,
        messages: Sequence[Message],
        tuning: Tuning,
        show: Show,
        stopper: Stopper,
        watch: Watch | None = None,
    ) -> Answer:
        """See Responder."""
        text = self._served.template.render(messages, kwargs=self._served.template_kwargs)
        tokens = prompt_tokens(text, self._served.tokenizer)
        if self._look is not None:
            self._look(tokens)
        self._count += 1
        job = make_job(
            f"chat-{self._count}",
            tokens,
            tuning,
            preserved=self._preserved,
            return_progress=watch is not None,
            lora=decode_lora(None, self._served.adapters),
            constraint=own_constraint(self._served.content, self._served.grammars),
        )
        return run_job(self._engine, job, show, stopper, watch)


def make_job(
    id: str,
    tokens: Sequence[int],
    tuning: Tuning,
    *,
    preserved: frozenset[int] = frozenset(),
    return_progress: bool = False,
    lora: Adapters = (),
    constraint: Constraint | None = None,
) -> Job:
    """The job of a prompt; `preserved` are tokens that are written as text although they are special."""
    generation = tuning.generation
    return Job(
        id=id,
        prompt=tuple(tokens),
        sampling=tuning.sampling,
        n_predict=generation.n_predict,
        n_keep=generation.n_keep,
        n_discard=generation.n_discard,
        n_cache_reuse=generation.n_cache_reuse,
        stop=generation.stop,
        t_max_predict_ms=generation.t_max_predict_ms,
        close_at_limit=generation.close_at_limit,
        cache_prompt=generation.cache_prompt,
        return_progress=return_progress,
        preserved_tokens=preserved,
        lora=lora,
        constraint=constraint,
    )


def all_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """What `--special` preserves. Ordinary tokens read the same either way, and to tell them apart takes longer."""
    return frozenset(range(tokenizer.n_tokens))
