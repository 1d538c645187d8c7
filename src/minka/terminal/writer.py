"""Goes on from tokens, without a chat template: one job after another on an engine, shown while it is computed.

Knows nothing of what the text is; a dialogue's turns are dialogue.py's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from minka.engine.engine import Engine
from minka.protocols.body import decode_lora
from minka.protocols.constraint import own_constraint
from minka.protocols.served import Served
from minka.terminal.answer import Answer, Show, Stopper, all_tokens, make_job, run_job
from minka.terminal.tuning import Tuning
from minka.types import Job, Token


class Written(NamedTuple):
    """What came of a job, and its tokens: those of a stop string are among them, though not in the answer's text."""

    answer: Answer
    tokens: tuple[int, ...]


class Writer:
    """Writes with the parameters of `served`. `special`: special tokens are part of the text.

    `count_every`: print how much of the context is used to standard error after so many tokens; 0 or less does not.
    """

    def __init__(self, engine: Engine, served: Served, show: Show, *, special: bool, count_every: int = 0) -> None:
        self.tuning = Tuning(served.sampling, served.generation)
        self._engine, self._served, self._show = engine, served, show
        self._special, self._count_every = special, count_every
        self._preserved = all_tokens(served.tokenizer) if special else frozenset[int]()
        self._jobs = 0

    def job(self, tokens: Sequence[int]) -> Job:
        """The job that goes on from tokens."""
        self._jobs += 1
        served = self._served
        return make_job(
            f"complete-{self._jobs}",
            tokens,
            self.tuning,
            preserved=self._preserved,
            lora=decode_lora(None, served.adapters),
            constraint=own_constraint(served.content, served.grammars),
        )

    def write(self, job: Job, stopper: Stopper) -> Written:
        """Run a job to its end, or until it is stopped. Raises the job's error."""
        generated: list[int] = []

        def count(token: Token) -> None:
            generated.append(token.token)
            used = len(job.prompt) + len(generated)
            if self._count_every > 0 and used % self._count_every == 0:
                print(f"\nTokens consumed so far = {used} / {self._served.n_ctx}", file=sys.stderr)

        answer = run_job(self._engine, job, self._show, stopper, each=count)
        return Written(answer, tuple(generated))

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens read as in the output."""
        return self._served.tokenizer.detokenize(tokens, special=self._special).decode("utf-8", "replace")

    def keep(self, n_tokens: int) -> None:
        """Let a shift of a full context keep so many of the first tokens."""
        self.tuning = replace(self.tuning, generation=replace(self.tuning.generation, n_keep=n_tokens))
