"""Grammars that begin at a trigger."""

from __future__ import annotations

import pytest

from minka.errors import NativeError
from minka.grammar.bodies import source
from minka.grammar.compiler import Grammars
from minka.grammar.lazy import Triggers, lazy, pattern_problem, split
from minka.types import Constraint, Matcher
from tests.fake_vocab import FakeVocab
from tests.grammar.matching import GRAMMARS, allowed

GRAMMAR = source('"<tool>" /[0-9]+/ "."')


def begin(triggers: Triggers, grammars: Grammars = GRAMMARS) -> Matcher:
    constraint = Constraint(lazy(GRAMMAR, triggers))
    grammars.compile(constraint)
    return grammars.start(constraint)


def write(matcher: Matcher, text: str) -> None:
    for byte in text.encode():
        matcher.accept(byte)


def test_a_word_begins_the_grammar() -> None:
    matcher = begin(Triggers(words=("<tool>",)))
    write(matcher, "any text <too <tool")
    assert len(allowed(matcher)) == 259
    assert not matcher.finished
    write(matcher, ">")
    assert allowed(matcher) == list(b"0123456789")
    write(matcher, "1.")
    assert matcher.finished


@pytest.mark.parametrize(
    "triggers",
    [Triggers(patterns=("(<tool>)",)), Triggers(patterns=("x*(<to)ol>",)), Triggers(full_patterns=("[^<]*(<tool>)",))],
)
def test_a_pattern_begins_the_grammar_with_its_group(triggers: Triggers) -> None:
    matcher = begin(triggers)
    write(matcher, "text xx<tool>7")
    assert set(allowed(matcher)) == set(b"0123456789.")


def test_a_token_begins_the_grammar() -> None:
    vocab = FakeVocab([b"<tool>"])
    matcher = begin(Triggers(tokens=(259,)), Grammars(vocab))
    write(matcher, "<tool> is spelled here, which is no token ")
    matcher.accept(259)
    assert allowed(matcher, 260) == list(b"0123456789")


def test_a_token_may_hold_more_than_the_trigger() -> None:
    matcher = begin(Triggers(words=("<tool>",)), Grammars(FakeVocab([b"a<tool>1"])))
    matcher.accept(259)
    write(matcher, ".")
    assert matcher.finished


def test_what_the_grammar_cannot_begin_with_is_an_error() -> None:
    matcher = begin(Triggers(words=("<other>",)))
    with pytest.raises(NativeError):
        write(matcher, "<other>")


def test_triggers_travel_with_the_source() -> None:
    triggers = Triggers((1,), ("a\nb",), ("c",), ("d",))
    assert split(lazy(GRAMMAR, triggers)) == (triggers, GRAMMAR)
    assert split(GRAMMAR) == (None, GRAMMAR)


@pytest.mark.parametrize("pattern", ["(", "(a+)+", "a*b*c*d*", "((a*))*"])
def test_patterns_that_could_take_forever_are_refused(pattern: str) -> None:
    assert pattern_problem(pattern)


@pytest.mark.parametrize("pattern", ["<tool>", "^\\s*(\\{)", "(<a>|<b>)[\\s\\S]*", "\\*\\+\\*\\+"])
def test_usual_patterns_are_taken(pattern: str) -> None:
    assert pattern_problem(pattern) == ""
