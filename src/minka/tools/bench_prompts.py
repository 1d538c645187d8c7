"""What a load test asks: conversations from a seed or from a file, of about as many tokens as wanted.

A conversation is a list of user texts; the answers between them are the server's. Knows no protocol.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Protocol

from minka.errors import UsageError


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_ADJECTIVES = _split(
    "old new small large young early late open public local common simple single final main human natural clear dark "
    "deep dry easy fair fast fine free full good great green heavy high huge kind light long low modern narrow quick "
    "quiet rich rough safe sharp short slow soft strong sweet tall thin warm wide wild wise yellow bright brown"
)
_NOUNS = _split(
    "river market teacher house garden city doctor farmer window story village school station engine bridge mountain "
    "letter picture question answer system library kitchen table paper number record family child friend captain "
    "artist writer driver worker student forest island ocean valley road field tree flower bird horse ship train wheel "
    "door floor wall roof room street corner shop office church court page word name year month week night summer stone"
)
_VERBS = _split(
    "carries follows finds keeps builds opens closes leaves reaches holds watches hears visits helps calls draws paints"
    " writes reads learns teaches sells buys brings takes gives sends moves turns covers crosses enters passes serves"
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """User texts that are sent one after another, each with all that was said before; `system` goes first."""

    turns: tuple[str, ...]
    system: str = ""


class Dataset(Protocol):
    """An endless supply of conversations."""

    @property
    def name(self) -> str:
        """What it is, for a report."""

    def conversations(self, tokens_per_word: float, seed: str) -> Iterator[Conversation]:
        """Conversations of the wanted length if a word has so many tokens. The same for the same seed."""


def prose(rng: random.Random, n_words: int) -> str:
    """Random sentences of `n_words` words."""
    words: list[str] = []
    while len(words) < n_words:
        adjective, noun, verb = rng.choice(_ADJECTIVES), rng.choice(_NOUNS), rng.choice(_VERBS)
        words += ["The", adjective, noun, verb, "the", rng.choice(_ADJECTIVES), f"{rng.choice(_NOUNS)}."]
    return " ".join(words[:n_words])


def _n_words(n_tokens: int, tokens_per_word: float) -> int:
    return max(1, round(n_tokens / tokens_per_word))


@dataclass(frozen=True, slots=True)
class Random:
    """Prompts of `n_tokens` that have nothing in common."""

    n_tokens: int

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"random, {self.n_tokens} tokens in"

    def conversations(self, tokens_per_word: float, seed: str) -> Iterator[Conversation]:
        """See `Dataset`."""
        rng = random.Random(seed)
        while True:
            yield Conversation((prose(rng, _n_words(self.n_tokens, tokens_per_word)),))


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts that all begin with the same system text of `n_prefix` tokens, and go on with `n_tokens` of their own."""

    n_prefix: int
    n_tokens: int

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"shared prefix of {self.n_prefix} + {self.n_tokens} tokens in"

    def conversations(self, tokens_per_word: float, seed: str) -> Iterator[Conversation]:
        """See `Dataset`."""
        rng = random.Random(seed)
        prefix = prose(rng, _n_words(self.n_prefix, tokens_per_word))
        while True:
            yield Conversation((prose(rng, _n_words(self.n_tokens, tokens_per_word)),), prefix)


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations of `n_turns` user texts of `n_tokens` each."""

    n_turns: int
    n_tokens: int

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"{self.n_turns} turns of {self.n_tokens} tokens in"

    def conversations(self, tokens_per_word: float, seed: str) -> Iterator[Conversation]:
        """See `Dataset`."""
        rng, n_words = random.Random(seed), _n_words(self.n_tokens, tokens_per_word)
        while True:
            yield Conversation(tuple(prose(rng, n_words) for _ in range(self.n_turns)))


@dataclass(frozen=True, slots=True)
class FromFile:
    """The conversations of a file, again and again."""

    path: Path
    found: tuple[Conversation, ...]

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"{self.path.name}, {len(self.found)} conversations"

    def conversations(self, tokens_per_word: float, seed: str) -> Iterator[Conversation]:
        """See `Dataset`. The order is the seed's."""
        order = list(self.found)
        random.Random(seed).shuffle(order)
        return iter(cycle(order))


def read_dataset(path: Path) -> FromFile:
    """A dataset from a file: a prompt a line, or with the ending .jsonl a JSON object a line.

    An object has `turns` (a list of texts, as in MT-Bench), `messages` (OpenAI's; assistant messages are left out, the
    server writes its own), or one of `prompt`, `question`, `text`. Raises UsageError for a file of another form.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts of {path}: {error}") from None
    if path.suffix == ".jsonl":
        found = tuple(_conversation(path, number, line) for number, line in enumerate(lines, 1))
    else:
        found = tuple(Conversation((line,)) for line in lines)
    if not found:
        raise UsageError(f"{path} has no prompts")
    return FromFile(path, found)


def _conversation(path: Path, number: int, line: str) -> Conversation:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} of {path} is no JSON: {error}") from None
    if isinstance(entry, str):
        return Conversation((entry,))
    if isinstance(entry, dict):
        turns = entry.get("turns") or next((entry[key] for key in ("prompt", "question", "text") if key in entry), None)
        if isinstance(entry.get("messages"), list):
            return _from_messages(path, number, entry["messages"])
        if isinstance(turns, str):
            return Conversation((turns,))
        if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
            return Conversation(tuple(turns))
    raise UsageError(f"line {number} of {path} has neither turns, messages, prompt, question nor text")


def _from_messages(path: Path, number: int, messages: list[object]) -> Conversation:
    texts: dict[str, list[str]] = {"system": [], "user": [], "assistant": []}
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in texts or not isinstance(content, str):
            raise UsageError(f"line {number} of {path} has a message that is no text of system, user or assistant")
        texts[role].append(content)
    if not texts["user"]:
        raise UsageError(f"line {number} of {path} has no user message")
    return Conversation(tuple(texts["user"]), "\n".join(texts["system"]))
