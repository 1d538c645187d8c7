"""The files of multiple-choice benchmarks in llama-perplexity's formats, and the subset of tasks that is taken of them.

HellaSwag: six lines a task (context, index of the right ending, four endings). Winogrande: CSV lines of index, sentence
with `_`, two choices, 1 or 2. Multiple choice: binary, described at `parse_multiple_choice`. Texts are bytes, as they
are in the file. Knows no model.
"""

from __future__ import annotations

import logging
import re
import struct
from dataclasses import dataclass

from minka.errors import UsageError
from minka.tools.scoring_random import drawn_by_swapping, drawn_in_order

log = logging.getLogger("minka.perplexity")

HELLASWAG_LINES = 6
MAX_ANSWERS = 100


@dataclass(frozen=True, slots=True)
class Choice:
    """One task: a model is right if it prefers an answer whose number is in `right`. `texts` are whole sentences.

    `heads` are the beginnings of the sentences up to the answer's end, where only what follows may be scored.
    """

    texts: tuple[bytes, ...]
    right: frozenset[int]
    heads: tuple[bytes, ...] = ()


def parse_hellaswag(data: bytes, n_tasks: int) -> list[Choice]:
    """At most `n_tasks` of the tasks, 0 for all, in random order. Raises UsageError for a file of another form."""
    lines = _lines(data)
    if not lines or len(lines) % HELLASWAG_LINES:
        raise UsageError(
            f"the HellaSwag file has {len(lines)} lines, and a task has {HELLASWAG_LINES}: the context, the index of "
            "the right ending and the four endings"
        )
    total = len(lines) // HELLASWAG_LINES
    return [_hellaswag(lines, task) for task in drawn_in_order(total, n_tasks or total)]


def _hellaswag(lines: list[bytes], task: int) -> Choice:
    context, gold, *endings = lines[task * HELLASWAG_LINES :][:HELLASWAG_LINES]
    if gold.strip() not in (b"0", b"1", b"2", b"3"):
        raise UsageError(
            f"line {task * HELLASWAG_LINES + 2} of the HellaSwag file must be the index of the right ending, 0 to 3, "
            f"but is {gold[:40].decode('utf-8', 'replace')!r}"
        )
    return Choice(tuple(context + b" " + ending for ending in endings), frozenset({int(gold)}))


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def parse_winogrande(data: bytes, n_tasks: int) -> list[Choice]:
    """`n_tasks` random tasks, or all in order if that is 0. Lines of another form are skipped with a warning.

    What follows the last line end is no line, as in llama-perplexity. Raises UsageError if no task is left.
    """
    tasks = [task for line in data.split(b"\n")[:-1] if (task := _winogrande(line)) is not None]
    if not tasks:
        raise UsageError(
            "the Winogrande file has no task: a task is a line INDEX,SENTENCE WITH _,CHOICE1,CHOICE2,ANSWER"
        )
    return [tasks[i] for i in drawn_by_swapping(len(tasks), n_tasks)] if 0 < n_tasks < len(tasks) else tasks


_CSV = re.compile(rb'(?:[^,"]|"[^"]*")*')
_ANSWER = re.compile(rb"\s*([12])(?!\d)")


def _winogrande(line: bytes) -> Choice | None:
    fields: list[bytes] = []
    at = 0
    while len(fields) < 4 and (match := _CSV.match(line, at)) and line[match.end() : match.end() + 1] == b",":
        fields.append(match[0])
        at = match.end() + 1
    answer = _ANSWER.match(line, at)
    if len(fields) < 4 or answer is None:
        log.warning("a line is no INDEX,SENTENCE,CHOICE1,CHOICE2,ANSWER and is skipped: %s", _excerpt(line))
        return None
    sentence = fields[1][1:-1] if fields[1].startswith(b'"') else fields[1]
    first, blank, second = sentence.partition(b"_")
    if not blank:
        log.warning("a line has no _ in its sentence and is skipped: %s", _excerpt(line))
        return None
    heads = tuple(first + choice for choice in fields[2:])
    return Choice(tuple(head + second for head in heads), frozenset({int(answer[1]) - 1}), heads)


def _excerpt(line: bytes) -> str:
    return line[:80].decode("utf-8", "replace")


def parse_multiple_choice(data: bytes, n_tasks: int) -> list[Choice]:
    """`n_tasks` random tasks, or all in order if that is 0. Raises UsageError for a file of another form.

    uint32 n, uint32 offset[n] of the tasks in the file. A task is a string (the question) and two lists of answers, of
    which the first is used; a list is uint32 n, n strings, int32 label[n] (1: right); a string is uint32 length, bytes.
    """
    reader = _Reader(data)
    total = reader.number()
    offsets = [reader.number() for _ in range(total)] if 4 * total <= len(data) else []
    if not offsets:
        raise UsageError("the multiple-choice file holds no tasks; give a file in llama-perplexity's format with -bf")
    if not 0 < n_tasks < total:
        return [reader.task(i) for i in range(total)]
    chosen = []
    for i in drawn_by_swapping(total, n_tasks):
        reader.at = offsets[i]
        chosen.append(reader.task(i))
    return chosen


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self) -> int:
        try:
            (value,) = struct.unpack_from("<I", self._data, self.at)
        except struct.error:
            raise self._broken() from None
        self.at += 4
        return int(value)

    def string(self) -> bytes:
        length = self.number()
        self.at += length
        if self.at > len(self._data):
            raise self._broken()
        return self._data[self.at - length : self.at]

    def answers(self) -> tuple[list[bytes], list[int]]:
        n = self.number()
        if n > MAX_ANSWERS:
            raise self._broken()
        return [self.string() for _ in range(n)], [self.number() for _ in range(n)]

    def task(self, number: int) -> Choice:
        question = self.string()
        answers, labels = self.answers()
        self.answers()
        if not question or not answers or not all(answers):
            raise UsageError(f"task {number} of the multiple-choice file has no question, no answers or an empty one")
        right = frozenset(i for i, label in enumerate(labels) if label == 1)
        return Choice(tuple(question + b" " + answer for answer in answers), right)

    def _broken(self) -> UsageError:
        return UsageError(f"the multiple-choice file is broken: what is at byte {self.at} is no task in this format")
