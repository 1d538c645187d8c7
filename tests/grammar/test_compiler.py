"""Compiling: once, in bounded time, whatever comes; and what a matcher does with a row of logits."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from llguidance import LLMatcher

from minka.errors import NativeError, RequestError, UnavailableError
from minka.grammar.bodies import gbnf, json_schema, lark, regex, source
from minka.grammar.compiler import Grammars
from minka.grammar.jail import Jail
from minka.grammar.masks import forbid
from minka.grammar.matcher import GrammarMatcher
from minka.types import Constraint, Matcher
from tests.fake_vocab import EOS, FakeVocab, tokens_of
from tests.grammar.matching import GRAMMARS, allowed, started

ABC = Constraint(source('"abc" /[0-9]/'))


@pytest.fixture
def jail() -> Iterator[Jail]:
    made = Jail(seconds=3)
    yield made
    made.close()


def test_forced_tokens_are_those_that_nothing_else_can_replace() -> None:
    matcher = started(ABC.grammar)
    assert tuple(matcher.forced()) == tokens_of("abc")
    for token in tokens_of("abc"):
        matcher.accept(token)
    assert not matcher.forced()
    assert allowed(matcher) == list(tokens_of("0123456789"))
    matcher.accept(ord("7"))
    assert matcher.finished
    assert not matcher.forced()


class Counting:
    """A native matcher that counts how often it was asked for what is forced."""

    def __init__(self, native: LLMatcher) -> None:
        self._native = native
        self.n_asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._native, name)

    def compute_ff_tokens(self) -> list[int]:
        self.n_asked += 1
        return self._native.compute_ff_tokens()


def test_a_long_forced_text_is_looked_for_once() -> None:
    """It takes a millisecond per 1,000 characters, in the engine's thread."""
    text = "abc" * 1_000
    matcher = started(source(json.dumps(text) + " /[0-9]/"))
    assert isinstance(matcher, GrammarMatcher)
    counting = matcher.native = Counting(matcher.native)  # type: ignore[assignment]
    for n in range(0, len(text), 16):
        for token in list(matcher.forced())[:16]:
            matcher.accept(token)
        assert list(matcher.forced()[:1]) == list(text[n + 16 : n + 17].encode())
    assert counting.n_asked < 5
    assert allowed(matcher) == list(tokens_of("0123456789"))


def test_what_was_forced_is_forgotten_when_something_else_comes() -> None:
    matcher = started(source('"ab" | "a" /[0-9]/ "xy"'))
    assert tuple(matcher.forced()) == tokens_of("a")
    matcher.accept(ord("a"))
    assert not matcher.forced()
    matcher.accept(ord("7"))
    assert tuple(matcher.forced()) == tokens_of("xy")


def test_ends_are_allowed_where_the_text_may_end() -> None:
    matcher = started(source("/[ab]{1,2}/"))
    assert EOS not in allowed(matcher)
    matcher.accept(ord("a"))
    assert EOS in allowed(matcher)
    matcher.accept(ord("a"))
    assert matcher.finished


def test_a_token_that_does_not_match_is_an_error() -> None:
    matcher = started(ABC.grammar)
    with pytest.raises(NativeError):
        matcher.accept(ord("x"))


def test_matchers_of_one_grammar_do_not_share_their_place() -> None:
    one, other = started(ABC.grammar), started(ABC.grammar)
    one.accept(ord("a"))
    assert allowed(one) == [ord("b")]
    assert allowed(other) == [ord("a")]


def test_tokens_of_several_bytes_may_reach_across_parts() -> None:
    vocab = FakeVocab([b'{"', b'a": ', b"12", b'"x'])
    matcher = started(source(json_schema({"type": "object", "properties": {"a": {"type": "integer"}},
                                          "required": ["a"]})), Grammars(vocab))  # fmt: skip
    assert list(matcher.forced()) == [259, 260]
    for token in (259, 260):
        matcher.accept(token)
    found = allowed(matcher, vocab.n_tokens)
    assert 261 in found
    assert 262 not in found


@pytest.mark.parametrize("n", [1, 31, 32, 259, 5_000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_a_mask_forbids_exactly_its_zero_bits(n: int, share: float) -> None:
    bits = np.random.default_rng(n).random(n) < share
    packed = np.packbits(bits, bitorder="little")
    mask = np.zeros((n + 31) // 32, np.int32)
    mask.view(np.uint8)[: len(packed)] = packed
    logits = np.arange(n, dtype=np.float32)
    forbid(logits, mask)
    assert np.array_equal(np.isfinite(logits), bits)
    assert np.array_equal(logits[bits], np.arange(n, dtype=np.float32)[bits])


def test_the_same_grammar_is_compiled_once() -> None:
    grammars = Grammars(FakeVocab())
    many = {
        f"tool{i}": {"type": "object", "properties": {f"p{j}": {"type": "string"} for j in range(20)}}
        for i in range(40)
    }
    constraint = Constraint(source(json_schema({"type": "object", "properties": many})))
    grammars.compile(constraint)
    before = time.perf_counter()
    grammars.compile(constraint)
    grammars.start(constraint).apply(np.zeros(259, np.float32))
    assert time.perf_counter() - before < 0.1


def test_only_small_grammars_are_compiled_late() -> None:
    grammars = Grammars(FakeVocab())
    assert tuple(grammars.start(ABC).forced()) == tokens_of("abc")
    large = Constraint(source(f'"{"x" * 30_000}"'))
    with pytest.raises(UnavailableError):
        grammars.start(large)
    grammars.compile(large)
    assert grammars.start(large).forced()


def test_many_threads_may_compile() -> None:
    grammars = Grammars(FakeVocab())
    constraints = [Constraint(source(f'"{n}"')) for n in range(8)] * 4
    threads = [threading.Thread(target=grammars.compile, args=(constraint,)) for constraint in constraints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tuple(grammars.start(c).forced()) for c in constraints[:8]] == [tokens_of(str(n)) for n in range(8)]


def _chain(n: int, inner: int = 1) -> object:
    def wrapped(schema: object) -> object:
        for _ in range(inner):
            schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
        return schema

    definitions = {str(i): wrapped({"$ref": f"#/$defs/{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(n): {"type": "integer"}}}


HOSTILE: dict[str, Callable[[], str]] = {
    "deep": lambda: json_schema(_chain(1, 55)),
    "deeper": lambda: json_schema(_chain(1, 70)),
    "a long chain of definitions": lambda: json_schema(_chain(6_000)),
    "nested lists": lambda: json_schema(eval("[" * 90 + "]" * 90)),
    "a repeated repetition": lambda: json_schema({"type": "string", "pattern": "^(a{1000}){1000}$"}),
    "a catastrophic pattern": lambda: json_schema({"type": "string", "pattern": "^(a+)+$"}),
    "a large automaton": lambda: json_schema({"type": "string", "pattern": "(a|b)*a(a|b){500}"}),
    "many options": lambda: json_schema({"properties": {f"p{i}": {} for i in range(5_000)}}),
    "many tuples": lambda: json_schema({"prefixItems": [{}] * 5_000}),
    "a large enum": lambda: json_schema({"enum": [f"value {i}" for i in range(5_000)]}),
    "large multiples": lambda: json_schema({"type": "integer", "allOf": [{"multipleOf": n} for n in (65_535, 65_521)]}),
    "a merge that explodes": lambda: json_schema({"allOf": [
        {"anyOf": [{"properties": {f"a{i}{j}": {"const": 1}}, "required": [f"a{i}{j}"]} for j in range(10)]}
        for i in range(10)]}),
    "rules that lead to rules": lambda: lark(
        "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(20_000)) + '\nr20000: "b"\n'),
    "terminals that lead to terminals": lambda: lark(
        "start: T0\n" + "\n".join(f'T{i}: "a" T{i + 1}' for i in range(20_000)) + '\nT20000: "b"\n'),
    "ambiguous rules": lambda: gbnf('root ::= root root | "a" | ""'),
    "a rule of itself": lambda: gbnf("root ::= a\na ::= a"),
    "many parentheses": lambda: lark("start: " + "(" * 9_000 + '"a"' + ")" * 9_000),
    "a regex of repetitions": lambda: regex("((((.*a)*b)*c)*d)*"),
    "a million": lambda: regex("a{1000000}"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_comes_is_refused_or_compiled_soon(name: str) -> None:
    before = time.perf_counter()
    try:
        matcher = started(source(HOSTILE[name]()))
        for _ in range(20):
            choices = allowed(matcher)
            if matcher.finished or not choices or choices == [EOS]:
                break
            matcher.accept(choices[-1] if choices[-1] != EOS else choices[0])
    except (RequestError, NativeError):
        pass
    assert time.perf_counter() - before < 30  # seconds; the bound is 5, and the machine may be busy


def test_what_takes_too_long_is_stopped(jail: Jail) -> None:
    patterns = [{"pattern": f"a.{{{n}}}b"} for n in range(30)]
    endless = source(json_schema({"type": "string", "allOf": patterns}))
    with pytest.raises(RequestError, match="too much time"):
        jail.problem(endless)
    assert jail.problem(source('"a"')) == ""
    assert "unknown name" in jail.problem("start: a")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_waiting_for_a_processor_does_not_count() -> None:
    jail = Jail(seconds=0.3)
    try:
        assert jail.problem(source('"a"')) == ""
        (process,) = jail._idle
        process.send_signal(signal.SIGSTOP)
        going = threading.Timer(0.6, process.send_signal, [signal.SIGCONT])
        going.start()
        assert jail.problem(source('"b"')) == ""
        going.join()
    finally:
        jail.close()


def test_a_process_that_died_is_replaced(jail: Jail) -> None:
    assert jail.problem(source('"a"')) == ""
    for process in jail._idle:
        process.kill()
        process.wait()
    assert jail.problem(source('"b"')) == ""


def test_an_unusable_grammar_names_its_field() -> None:
    with pytest.raises(RequestError) as caught:
        GRAMMARS.compile(Constraint("start: nothing"), param="lark")
    assert caught.value.param == "lark"
    with pytest.raises(RequestError):
        GRAMMARS.start(Constraint())


def test_a_piece_that_is_too_long_for_the_trie_is_left_out() -> None:
    matcher = started(source("/a{6000}/"), Grammars(FakeVocab([b"a" * 5_000, b"aa"])))
    assert allowed(matcher, 261) == [260]
    assert set(matcher.forced()) == {260}
    matcher.accept(260)


def test_a_grammar_that_grows_too_large_on_the_way_is_the_fault_of_the_request() -> None:
    matcher = started(source("/(a?){5000}a{5000}/"))
    with pytest.raises(RequestError, match="followed any further"):
        follow(matcher, b"a" * 100)


def follow(matcher: Matcher, text: bytes) -> None:
    """Mask and accept, byte by byte."""
    for byte in text:
        allowed(matcher)
        matcher.accept(byte)
