"""Texts against grammars, byte by byte, without a model."""

from __future__ import annotations

import json
import random

import numpy as np

from minka.errors import NativeError
from minka.grammar.bodies import json_schema, source
from minka.grammar.compiler import Grammars
from minka.types import Constraint, Matcher
from tests.fake_vocab import EOS, FakeVocab

GRAMMARS = Grammars(FakeVocab())
"""One for all tests: making the vocabulary takes a moment. Nothing that a test does to it is seen by another."""


def started(grammar: str, grammars: Grammars = GRAMMARS) -> Matcher:
    """A matcher for a whole grammar."""
    constraint = Constraint(grammar)
    grammars.compile(constraint)
    return grammars.start(constraint)


def allowed(matcher: Matcher, n_vocab: int = 259) -> list[int]:
    """The tokens that may come next: what the matcher leaves, and says of each."""
    told = [token for token in range(n_vocab) if matcher.allows(token)]
    logits = np.zeros(n_vocab, np.float32)
    matcher.apply(logits)
    left = [int(token) for token in np.flatnonzero(np.isfinite(logits))]
    assert matcher.finished or told == left, "the matcher tells otherwise than it does"
    return left


def accepts(grammar: str, text: str | bytes, grammars: Grammars = GRAMMARS) -> bool:
    """Whether a text matches all of a grammar, and may end there."""
    matcher = started(grammar, grammars)
    try:
        for byte in text.encode() if isinstance(text, str) else text:
            matcher.accept(byte)
    except NativeError:
        return False
    return matcher.finished or EOS in allowed(matcher)


def body_accepts(body: str, text: str) -> bool:
    """The same for a rule body."""
    return accepts(source(body), text)


def schema_accepts(schema: object, value: object) -> bool:
    """Whether a value, written as Python writes JSON, matches a schema."""
    return body_accepts(json_schema(schema), json.dumps(value, ensure_ascii=False))


def written(matcher: Matcher, dice: random.Random, limit: int = 400) -> bytes | None:
    """A random text that the grammar allows, None if it did not end in `limit` bytes. Prefers what closes things."""
    text = bytearray()
    for n in range(limit):
        if matcher.finished:
            return bytes(text)
        choices = allowed(matcher)
        assert choices, f"nothing may come behind {bytes(text)!r}"
        if EOS in choices and (len(choices) == 1 or dice.random() < 0.4 or n > limit // 2):
            return bytes(text)
        choices = [token for token in choices if token < 256] or choices
        closing = [token for token in choices if token in b'"}],0:{[ ']
        plain = [token for token in choices if 32 <= token < 127]
        pick = closing if closing and dice.random() < (0.3 if n < 100 else 0.8) else plain or choices
        token = dice.choice(pick if dice.random() < 0.9 else choices)
        text.append(token)
        matcher.accept(token)
    return None
