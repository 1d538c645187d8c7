"""Multiple-choice benchmarks: HellaSwag, Winogrande and the like, by the mean log-probability of each answer.

The batches and scores are llama-perplexity's (llama.cpp, tools/perplexity/perplexity.cpp): the sentences of a task are
sequences that share the cells of their common beginning. Knows no command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from minka.errors import UsageError
from minka.native.raw import TokenList, Tokens
from minka.params import ContextParams, ModelParams
from minka.tools.scoring_context import DEFAULT_CTX, Hardware, Layout, Scorer, open_scorer
from minka.tools.scoring_input import Choice, parse_hellaswag, parse_multiple_choice, parse_winogrande
from minka.tools.scoring_math import F64, I32, log_norms

MIN_SEQUENCES = 4
"""Sequences of the context if the user asks for fewer; a HellaSwag task needs as many."""
_TRAILING = 3
"""Winogrande: with more tokens than this after the common beginning of both sentences, the choice is not scored."""


class Benchmark(Enum):
    """A kind of task."""

    HELLASWAG = "hellaswag"
    WINOGRANDE = "winogrande"
    MULTIPLE_CHOICE = "multiple-choice"

    def parse(self, data: bytes, n_tasks: int) -> list[Choice]:
        """The tasks of a file; `n_tasks` random ones, all of them if that is 0. Raises UsageError."""
        match self:
            case Benchmark.HELLASWAG:
                return parse_hellaswag(data, n_tasks)
            case Benchmark.WINOGRANDE:
                return parse_winogrande(data, n_tasks)
            case Benchmark.MULTIPLE_CHOICE:
                return parse_multiple_choice(data, n_tasks)

    @property
    def max_sequences(self) -> int:
        """The most sequences of a batch."""
        return 256 if self is Benchmark.WINOGRANDE else 128


@dataclass(frozen=True, slots=True)
class Task:
    """The token sequences of a task, the first `n_shared` tokens of which are the same.

    Of sequence s the tokens `targets[s]` are scored, by the logits rows `rows[s]` of the task: row 0 is the one of the
    last shared token, then come those of what is each sequence's own, without its last token if not `all_rows`.
    """

    sequences: tuple[I32, ...]
    right: frozenset[int]
    n_shared: int
    targets: tuple[I32, ...]
    rows: tuple[I32, ...]
    all_rows: bool

    def n_tokens(self, *, coupled: bool) -> int:
        """Tokens to compute; `coupled`: the shared ones once."""
        return sum(len(tokens) for tokens in self.sequences) - coupled * self.n_shared * (len(self.sequences) - 1)

    def add_to(self, batch: TokenList, seq: int, *, coupled: bool) -> None:
        """Append the shared tokens and then each sequence's own, as sequences `seq` and on.

        If not `coupled` each sequence has the shared tokens for itself; there are the same rows either way.
        """
        seqs = range(seq, seq + len(self.sequences))
        if coupled:
            batch.add(self.sequences[0][: self.n_shared], 0, seqs, slice(self.n_shared - 1, None))
        start = self.n_shared if coupled else 0
        for number, tokens in zip(seqs, self.sequences, strict=True):
            first_row = self.n_shared - start - (not coupled and number == seq)
            batch.add(tokens[start:], start, [number], slice(first_row, None if self.all_rows else -1))


def make_task(choice: Choice, number: int, tokenize: Callable[[bytes], I32]) -> Task:
    """Tokenize a task. Raises UsageError if its sentences do not begin alike."""
    sequences = tuple(tokenize(text) for text in choice.texts)
    shortest = min(len(tokens) for tokens in sequences) - 1
    table = np.stack([tokens[: max(shortest, 0)] for tokens in sequences])
    differs = np.flatnonzero((table != table[0]).any(axis=0))
    n_shared = int(differs[0]) if len(differs) else shortest
    if n_shared < 1:
        raise UsageError(f"the sentences of task {number} do not have even their first token in common")
    if choice.heads:
        targets, rows = _tails(sequences, n_shared, [len(tokenize(head)) for head in choice.heads])
    else:
        targets, rows = _endings(sequences, n_shared)
    return Task(sequences, choice.right, n_shared, targets, rows, all_rows=bool(choice.heads))


_Scored = tuple[tuple[I32, ...], tuple[I32, ...]]


def _endings(sequences: Sequence[I32], n_shared: int) -> _Scored:
    """All that is a sequence's own is scored, its first token by row 0."""
    rows, next_row = [], 1
    for tokens in sequences:
        n = len(tokens) - n_shared - 1
        rows.append(np.array([0, *range(next_row, next_row + n)], np.int32))
        next_row += n
    return tuple(tokens[n_shared:] for tokens in sequences), tuple(rows)


def _tails(sequences: Sequence[I32], n_shared: int, n_heads: Sequence[int]) -> _Scored:
    """What follows the choice is scored, without the last token if there are others.

    With few tokens after the common beginning, the choice is scored too; the first token of the second sentence is then
    scored by the last row of the first one. llama-perplexity notes that this is wrong, and its scores are the standard.
    """
    after_choice = all(len(tokens) - n_shared > _TRAILING for tokens in sequences)
    targets, rows, first_row = [], [], 0
    for tokens, n_head in zip(sequences, n_heads, strict=True):
        start = min(max(n_head, n_shared), len(tokens) - 1) if after_choice else n_shared
        end = len(tokens) - (1 if len(tokens) - start > 1 else 0)
        targets.append(tokens[start:end])
        rows.append(np.arange(end - start, dtype=np.int32) + np.int32(first_row + start - n_shared))
        first_row += len(tokens) - n_shared
    return tuple(targets), tuple(rows)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task was scored: the mean log-probability of each answer, and which is the best. Counts are of all so far."""

    index: int
    scores: tuple[float, ...]
    chosen: int
    right: frozenset[int]
    n_right: int

    @property
    def accuracy(self) -> float:
        """Share of right answers so far, 0 to 1."""
        return self.n_right / (self.index + 1)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The outcome of a benchmark; `planned` tasks were asked for, `n_answers` is how many could be chosen among."""

    tasks: tuple[TaskScore, ...]
    planned: int
    n_answers: int

    @property
    def value(self) -> float:
        """Share of right answers, 0 to 1; NaN for no tasks."""
        return self.tasks[-1].accuracy if self.tasks else math.nan

    @property
    def error(self) -> float:
        """Standard error of the share."""
        return deviation(self.value, len(self.tasks))

    @property
    def chance(self) -> float:
        """Share that a random choice would have."""
        return len(self.tasks) / self.n_answers if self.n_answers else math.nan


def deviation(share: float, n: int) -> float:
    """Standard error of a share of n; NaN for one."""
    return math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.nan


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n (Wilson's score interval)."""
    za = 1.95996398454
    z = za * za / n
    half = z * math.sqrt(n * (4 * share * (1 - share) + z)) / (za + za)
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


class ChoiceRun:
    """The tasks of a benchmark. Iterating scores them one by one; `result` tells how far it came, at any time.

    Raises UsageError for tasks that do not fit the context.
    """

    def __init__(self, scorer: Scorer, kind: Benchmark, choices: Sequence[Choice]) -> None:
        self._scorer, self._kind = scorer, kind
        self.tasks = [make_task(choice, number, scorer.tokenize) for number, choice in enumerate(choices)]
        self._done: list[TaskScore] = []
        context = scorer.context
        self._coupled = not scorer.model.has_state  # a state belongs to one sequence
        self._max_seq = min(kind.max_sequences, context.n_seq_max)
        for number, task in enumerate(self.tasks):
            if (n_tokens := task.n_tokens(coupled=self._coupled)) > context.n_ctx:
                raise UsageError(
                    f"task {number} needs {n_tokens} tokens, and the context has {context.n_ctx} in all: "
                    "give a larger --ctx-size"
                )
            if len(task.sequences) > self._max_seq:
                raise UsageError(f"task {number} has {len(task.sequences)} answers: give at least as many --parallel")

    def __len__(self) -> int:
        """Tasks to score."""
        return len(self.tasks)

    def __iter__(self) -> Generator[TaskScore]:
        start = 0
        while start < len(self.tasks):
            group = self._group(start)
            for task, log_probs in zip(group, self._log_probs(group), strict=True):
                yield self._judge(task, log_probs)
            start += len(group)

    def _group(self, start: int) -> list[Task]:
        """The tasks from `start` on that are computed together."""
        group: list[Task] = []
        n_tokens = n_seq = 0
        for task in self.tasks[start:]:
            n_tokens += task.n_tokens(coupled=self._coupled)
            n_seq += len(task.sequences)
            if n_tokens > self._scorer.context.n_ctx or n_seq > self._max_seq:
                break
            group.append(task)
        return group

    def _log_probs(self, group: Sequence[Task]) -> list[list[F64]]:
        """The log-probabilities of what is scored of each sequence of each task."""
        batch, first_rows, seq = TokenList(), [], 0
        for task in group:
            first_rows.append(batch.n_outputs)
            task.add_to(batch, seq, coupled=self._coupled)
            seq += len(task.sequences)
        rows = [first + task_rows for task, first in zip(group, first_rows, strict=True) for task_rows in task.rows]
        targets = [tokens for task in group for tokens in task.targets]
        found = self._decode(batch.tokens(), np.concatenate(rows), np.concatenate(targets))
        parts = iter(np.split(found, np.cumsum([len(tokens) for tokens in targets])[:-1]))
        return [[next(parts) for _ in task.sequences] for task in group]

    def _decode(self, tokens: Tokens, rows: I32, targets: I32) -> F64:
        """ln p(target) of pairs of a logits row and a target, in as many batches as the tokens need."""
        result = np.empty(len(rows))
        n_batch, first = self._scorer.context.n_batch, 0
        self._scorer.clear()
        for start in range(0, len(tokens), n_batch):
            logits = self._scorer.decode(tokens.part(start, min(start + n_batch, len(tokens))))
            here = np.flatnonzero((rows >= first) & (rows < first + len(logits)))
            own = rows[here] - first
            result[here] = logits[own, targets[here]] - log_norms(logits, self._scorer.workers)[own]
            first += len(logits)
        return result

    def _judge(self, task: Task, log_probs: Sequence[F64]) -> TaskScore:
        scores = tuple(float(values.mean()) for values in log_probs)
        if self._kind is Benchmark.WINOGRANDE:
            chosen = 0 if scores[0] > scores[1] else 1
        else:
            chosen = scores.index(max(scores))
        n_right = (self._done[-1].n_right if self._done else 0) + (chosen in task.right)
        self._done.append(TaskScore(len(self._done), scores, chosen, task.right, n_right))
        return self._done[-1]

    def result(self) -> Accuracy:
        """What was scored so far."""
        n_answers = sum(len(task.scores) for task in self._done)
        return Accuracy(tuple(self._done), len(self.tasks), n_answers)


def choice_layout(context: ContextParams, n_ctx: int) -> Layout:
    """A context of `n_ctx` tokens for each of at least MIN_SEQUENCES sequences, which share all cells."""
    n_seq = max(MIN_SEQUENCES, context.parallel)
    total = n_seq * n_ctx
    return Layout(total, n_seq, min(context.n_batch, total), kv_unified=True)


def accuracy(
    model: str | Path | ModelParams,
    benchmark: Benchmark | str,
    data: bytes,
    *,
    n_tasks: int = 0,
    n_ctx: int = DEFAULT_CTX,
    context: ContextParams | None = None,
    hardware: Hardware | None = None,
    on_task: Callable[[TaskScore], None] | None = None,
) -> Accuracy:
    """Share of right answers of a model; `benchmark` is hellaswag, winogrande or multiple-choice.

    `data` is the content of a file in the benchmark's format, of which `n_tasks` random tasks are taken, or all if that
    is 0. `n_ctx` tokens are there for each of `context.parallel`, but at least four, sequences. Raises UsageError for
    other data and for tasks that do not fit, ModelError for a model that cannot score a text.
    """
    kind, context = Benchmark(benchmark), context or ContextParams()
    choices = kind.parse(data, n_tasks)
    with open_scorer(model, choice_layout(context, n_ctx), context, hardware or Hardware()) as scorer:
        run = ChoiceRun(scorer, kind, choices)
        for task in run:
            if on_task is not None:
                on_task(task)
        return run.result()
