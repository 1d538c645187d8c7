"""Grammars that begin at a trigger."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import pytest

from minka.errors import NativeError
from minka.grammar.bodies import source
from minka.grammar.compiler import Grammars
from minka.grammar.lazy import Triggers, lazy, patterns_problem, split
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


EXPENSIVE = (
    *("(", "(a+)+", "a*b*c*d*", "((a*))*", "x*x*y", "(a|b|.)*#", "(?:.?){2000}#", ".?" * 30 + "#", "(.|.|.){30}#"),
    *("(.?.?.?){9}#", "(?#[)(a*)*b", "(?x)(a*)*  # [", "[]a]*[^]b]*#", r"(.*)\1", "(?P<n>.)(?P=n)", "x" * 501),
)


@pytest.mark.parametrize("pattern", EXPENSIVE)
def test_patterns_that_could_take_forever_are_refused(pattern: str) -> None:
    assert patterns_problem(Triggers(patterns=(pattern,)))


USUAL = (
    *("<tool>", r"^\s*(\{)", r"(<a>|<b>)[\s\S]*", r"\*\+\*\+", r"[\s\S]*?(<tool_call>)", r"(?i)(?:```(?:json)?\n)?\{"),
    *("[*+?]{2}[]|(]{3}", "(?=<)(?P<call><function=)", "a{,3}{b}"),
)


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_are_taken(pattern: str) -> None:
    assert patterns_problem(Triggers(patterns=(pattern,))) == ""


def test_a_pattern_for_the_whole_text_may_repeat_twice() -> None:
    pattern = r"[\s\S]*</think>\s*(<tool_call>)"
    assert patterns_problem(Triggers(full_patterns=(pattern,))) == ""
    assert "too many ways" in patterns_problem(Triggers(patterns=(pattern,)))


def test_all_patterns_together_have_a_limit() -> None:
    few = Triggers(patterns=("a*b",) * 4)
    assert patterns_problem(few) == ""
    assert "too many ways" in patterns_problem(replace(few, patterns=("a*b",) * 20))


@pytest.mark.parametrize("pattern", [r"[\s\S]*?(<tool_call>)", "(.|[^#]){2}[^#]*#"])
def test_what_is_taken_is_quick(pattern: str) -> None:
    """A pattern that is tried at every place of a text, all in vain."""
    assert patterns_problem(Triggers(patterns=(pattern,))) == ""
    matcher = begin(Triggers(patterns=(pattern,)), Grammars(FakeVocab([b"abcd" * 250])))
    matcher.accept(259)
    began = perf_counter()
    matcher.accept(259)
    assert perf_counter() - began < 2.0
