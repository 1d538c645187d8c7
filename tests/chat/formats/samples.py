"""Samples of what a family writes, and the checks that every family has to pass: see docs/tool-calls.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llguidance
import pytest

from minka.chat.formats.families import find_family
from minka.chat.formats.format import (
    Ask,
    CallArguments,
    CallBroken,
    CallEnd,
    Calls,
    CallStart,
    Content,
    Delta,
    Format,
    Reasoning,
    Tool,
)
from minka.grammar.marks import spell

DIRECTORY = os.environ.get("MINKA_TEMPLATES", "")

WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
NOW = Tool("get_time", "The time", {})
CODE = Tool(
    "run_code",
    "Run code",
    {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"]},
            "mode": {"enum": ["fast", "safe"]},
        },
        "required": ["code"],
    },
)
TOOLS = (WEATHER, NOW, CODE)


@dataclass(frozen=True)
class Sample:
    """What a model writes, and what a client gets. `calls` are names with arguments, and the id where one is written.

    `broken` are calls that turn out to be none, `cut` is the arguments' text of a call that was cut off. `accepted`:
    the grammar lets it through (what a model should not write, but a parser forgives, is not); None if that hangs on
    the vocabulary, as where a tag stands in a string.
    """

    raw: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, object] | tuple[str, object, str]] = ()
    broken: int = 0
    cut: str | None = None
    ask: Ask = Ask(TOOLS, Calls.AUTO, thinks=True)  # noqa: RUF009
    accepted: bool | None = True


@dataclass(frozen=True)
class Folded:
    """All deltas of an answer, joined."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str, str], ...]
    """Names, ids, and arguments as text, of complete calls."""
    broken: int
    cut: tuple[str, str, str] | None
    """The call that was cut off."""


def fold(deltas: Iterable[Delta]) -> Folded:
    """Join deltas, and check their order: a call is opened, filled, and closed."""
    content, reasoning, broken = "", "", 0
    calls: list[tuple[str, str, str]] = []
    open_call: list[str] | None = None
    n_calls = 0
    for delta in deltas:
        match delta:
            case Content():
                assert delta.text
                content += delta.text
            case Reasoning():
                assert delta.text
                reasoning += delta.text
            case CallStart():
                assert open_call is None
                assert delta.index == n_calls
                open_call, n_calls = [delta.name, delta.id, ""], n_calls + 1
            case CallArguments():
                assert open_call is not None
                assert delta.index == n_calls - 1
                open_call[2] += delta.text
            case CallEnd():
                assert open_call is not None
                assert delta.index == n_calls - 1
                assert isinstance(json.loads(open_call[2]), dict)
                calls.append((open_call[0], open_call[1], open_call[2]))
                open_call = None
            case CallBroken():
                assert open_call is not None
                open_call, broken = None, broken + 1
    cut = (open_call[0], open_call[1], open_call[2]) if open_call else None
    return Folded(content, reasoning, tuple(calls), broken, cut)


def read(format: Format, sample: Sample, n: int) -> Folded:
    """What a parser makes of the sample, fed `n` characters at a time."""
    parser = format.parser(sample.ask)
    deltas: list[Delta] = []
    for start in range(0, len(sample.raw), n):
        deltas += parser.feed(sample.raw[start : start + n])
    return fold(deltas + parser.end())


def check(format: Format, sample: Sample) -> None:
    """The sample comes out as it says, whole and in pieces of every length, and the grammar knows it."""
    whole = read(format, sample, max(1, len(sample.raw)))
    assert whole.content == sample.content
    assert whole.reasoning == sample.reasoning
    expected = [(call[0], call[1]) for call in sample.calls]
    assert [(name, json.loads(arguments)) for name, _, arguments in whole.calls] == expected
    for call, (_, id, _) in zip(sample.calls, whole.calls, strict=True):
        assert id == (call[2] if len(call) == 3 else "")
    assert whole.broken == sample.broken
    assert (whole.cut and whole.cut[2]) == sample.cut
    for n in range(1, len(sample.raw)):
        assert read(format, sample, n) == whole, f"in pieces of {n}"
    check_grammar(format, sample)


def check_grammar(format: Format, sample: Sample) -> None:
    """The grammar takes the text or not, whether the tags are special tokens of the model or plain text."""
    if not sample.ask.tools or sample.accepted is None:
        return
    asks = (
        [sample.ask, replace(sample.ask, calls=Calls.REQUIRED)] if sample.calls and not sample.content else [sample.ask]
    )
    for ask in asks:
        for special in (True, False):
            taken = accepts(format, ask, sample.raw, special=special)
            assert taken == sample.accepted, f"{ask.calls}, special tokens: {special}"


def accepts(format: Format, ask: Ask, text: str, *, special: bool = True) -> bool:
    """Whether the text is all that the grammar asks for. `special`: the format's tags are special tokens."""
    vocab = vocabulary(tuple(format.marks) if special else ())
    source = format.grammar(ask)
    assert source
    grammar = spell(source, vocab)
    matcher = llguidance.LLMatcher(vocab.guide, grammar, log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    n_taken = matcher.validate_tokens(tokens)
    return n_taken == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


class Vocabulary:
    """Implements `minka.types.Tokenizer`: bytes, an end token, and tags as special tokens."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._pieces = [bytes([value]) for value in range(256)] + [b"</s>", *(tag.encode() for tag in tags)]
        self.n_tokens = len(self._pieces)
        self.bos, self.eos, self.eog = -1, 256, frozenset({256})
        self.add_bos = self.add_eos = False
        self.bos_token_id, self.eos_token_id = None, 256
        self.special_token_ids = list(range(256, self.n_tokens))
        self.tokens = self._pieces
        self._tags = sorted(enumerate(self._pieces[257:], 257), key=lambda pair: len(pair[1]), reverse=True)
        self.guide = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw, at, tokens = text.encode(), 0, []
        while at < len(raw):
            token = next((token for token, tag in self._tags if parse_special and raw.startswith(tag, at)), raw[at])
            tokens.append(token)
            at += len(self._pieces[token])
        return tokens

    def piece(self, token: int, *, special: bool) -> bytes:
        return self._pieces[token] if special or token < 256 else b""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        return b"".join(self.piece(token, special=special) for token in tokens)

    def text(self, token: int) -> str:
        return self._pieces[token].decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        return token == self.eos


@cache
def vocabulary(tags: tuple[str, ...]) -> Vocabulary:
    """The vocabulary with these tags."""
    return Vocabulary(tags)


def real(name: str) -> str:
    """The source of a real template: a file of the directory MINKA_TEMPLATES, llama.cpp's models/templates."""
    if not DIRECTORY:
        pytest.skip("set MINKA_TEMPLATES to llama.cpp's models/templates to try the real ones")
    return (Path(DIRECTORY) / f"{name}.jinja").read_text(encoding="utf-8")


def family(source: str) -> Format:
    """The format that a family has for this source; some family must know it."""
    found = find_family(source)
    assert found is not None
    return found


def refuses(format: Format, *texts: str, ask: Ask = Ask(TOOLS, Calls.REQUIRED)) -> None:  # noqa: B008
    """The grammar takes none of these texts, whatever the vocabulary."""
    for text in texts:
        for special in (True, False):
            assert not accepts(format, ask, text, special=special), text
