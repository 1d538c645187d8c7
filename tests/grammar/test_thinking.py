"""Watching the reasoning: counting, waiting for a whole character, forcing the end, beginning again."""

from __future__ import annotations

import numpy as np
import pytest

from minka.grammar.bodies import json_schema, source
from minka.grammar.compiler import Grammars
from minka.grammar.lazy import Triggers, lazy
from minka.grammar.marks import mark, until
from minka.grammar.utf8 import is_complete
from minka.types import Constraint, Matcher, Thinking
from tests.fake_vocab import FakeVocab
from tests.grammar.matching import GRAMMARS, allowed

TAGS = Thinking("<think>", ("</think>", "[call]"))


def begin(thinking: Thinking, grammar: str = "", grammars: Grammars = GRAMMARS) -> Matcher:
    constraint = Constraint(grammar, thinking)
    grammars.compile(constraint)
    return grammars.start(constraint)


def write(matcher: Matcher, text: str | bytes) -> None:
    for byte in text.encode() if isinstance(text, str) else text:
        matcher.accept(byte)


def forced(matcher: Matcher) -> str:
    return bytes(matcher.forced()).decode()


def budget(n: int, *, is_open: bool = False, message: str = "") -> Thinking:
    return Thinking(TAGS.start, TAGS.ends, is_open=is_open, budget=n, message=message)


def test_the_end_is_forced_when_the_budget_is_used() -> None:
    matcher = begin(budget(3, message="Enough."))
    write(matcher, "so <think>")
    for char in "abc":
        assert not matcher.forced()
        write(matcher, char)
    assert forced(matcher) == "Enough.</think>"
    assert allowed(matcher) == [ord("E")]
    write(matcher, "Enough.</think>")
    assert not matcher.forced()
    assert len(allowed(matcher)) == 259
    assert not matcher.finished


def test_a_text_that_begins_inside_is_counted_from_its_start() -> None:
    matcher = begin(budget(2, is_open=True))
    write(matcher, "ab")
    assert forced(matcher) == "</think>"


def test_no_budget_at_all_ends_the_reasoning_at_once() -> None:
    assert forced(begin(budget(0, is_open=True))) == "</think>"
    matcher = begin(budget(0))
    assert not matcher.forced()
    write(matcher, "<think>")
    assert forced(matcher) == "</think>"


def test_an_end_that_comes_by_itself_is_the_end() -> None:
    for end in TAGS.ends:
        matcher = begin(budget(20, is_open=True))
        write(matcher, f"a{end}")
        assert not matcher.end_thinking()
        write(matcher, "x" * 30)
        assert not matcher.forced()


def test_the_count_begins_again_with_the_next_start() -> None:
    matcher = begin(budget(10, is_open=True))
    write(matcher, "a</think>" + "b" * 30 + "<think>" + "c" * 9)
    assert not matcher.forced()
    write(matcher, "d")
    assert forced(matcher) == "</think>"


def test_a_character_is_not_cut_in_half() -> None:
    matcher = begin(budget(2, is_open=True))
    euro = "a€".encode()
    write(matcher, euro[:2])
    assert not matcher.forced()
    write(matcher, euro[2:])
    assert forced(matcher) == "</think>"


def test_thinking_can_be_ended_from_outside() -> None:
    matcher = begin(budget(-1))
    assert not matcher.end_thinking()
    write(matcher, "<think>a")
    assert matcher.end_thinking()
    assert forced(matcher) == "</think>"
    assert matcher.end_thinking()  # it is still inside
    write(matcher, "</think>")
    assert not matcher.end_thinking()


def test_a_grammar_goes_on_behind_the_reasoning() -> None:
    grammar = source(f"({mark('<think>')} {until('</think>')})? {json_schema({'const': 7})}")
    matcher = begin(budget(2, message="!"), grammar)
    write(matcher, "<think>ab")
    assert forced(matcher) == "!</think>"
    write(matcher, "!</think>")
    assert forced(matcher) == "7"
    write(matcher, "7")
    assert matcher.finished


def test_tags_may_be_special_tokens() -> None:
    vocab = FakeVocab([b"<th", b"ink>a"])
    matcher = begin(Thinking("<|control|>", ("</s>",), budget=1), grammars=Grammars(vocab))
    matcher.accept(258)
    matcher.accept(ord("a"))
    assert list(matcher.forced()) == [257]
    inside = begin(budget(1), grammars=Grammars(vocab))
    inside.accept(259)
    inside.accept(260)  # the rest of the tag, and more
    assert not inside.forced()
    inside.accept(ord("b"))
    assert bytes(inside.forced()) == b"</think>"


def test_forcing_keeps_the_logit() -> None:
    matcher = begin(budget(0, is_open=True))
    logits = np.arange(259, dtype=np.float32)
    matcher.apply(logits)
    assert logits[ord("<")] == ord("<")
    assert np.isneginf(np.delete(logits, ord("<"))).all()


@pytest.mark.parametrize("text", ["", "a", "é", "€", "😀", "a😀"])
def test_complete_text_is_known(text: str) -> None:
    raw = text.encode()
    assert is_complete(raw)
    for cut in range(1, len(text[-1:].encode())):
        assert not is_complete(raw[:-cut])


def test_a_grammar_that_does_not_let_the_reasoning_end_comes_first() -> None:
    grammar = source(r'/<think>[a-z]{5,}/ "</think>" "!"')
    matcher = begin(budget(2), grammar)
    write(matcher, "<think>abcd")
    assert not matcher.forced()
    write(matcher, "e")
    assert forced(matcher) == "</think>"
    write(matcher, "</think>")
    assert forced(matcher) == "!"


def late(*, tokens: tuple[int, ...] = (), words: tuple[str, ...] = ()) -> str:
    return lazy(source('("</think>" | "<tool>") /[0-9]+/ "."'), Triggers(tokens=tokens, words=words))


def test_a_grammar_that_begins_late_does_not_begin_within_the_reasoning() -> None:
    matcher = begin(budget(-1), late(words=("<tool>",)))
    write(matcher, "<think>a <tool> would do</think>b")
    assert len(allowed(matcher)) == 259
    write(matcher, "<tool>")
    assert set(allowed(matcher)) == set(b"0123456789")


@pytest.mark.parametrize("n", [-1, 3])
def test_the_end_of_the_reasoning_may_begin_a_grammar(n: int) -> None:
    matcher = begin(budget(n, is_open=True), late(words=("</think>",)))
    write(matcher, "abc")
    assert (forced(matcher) == "</think>") == (n == 3)
    write(matcher, "</think>")
    assert set(allowed(matcher)) == set(b"0123456789")
