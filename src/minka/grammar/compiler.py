"""Constraints to matchers: compiled once, kept by content, copied for each text.

Compiling is for a worker thread; starting is for the engine's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property

from llguidance import LLMatcher

from minka.errors import RequestError, UnavailableError
from minka.grammar.closing import Closable, ClosingWatch
from minka.grammar.deep import run_deep
from minka.grammar.jail import Jail
from minka.grammar.lazy import LazyMatcher, split
from minka.grammar.limits import FOREIGN, GUARDED, LIMITS, MAX_SOURCE
from minka.grammar.marks import spell
from minka.grammar.matcher import GrammarMatcher
from minka.grammar.problems import explain, problem_of
from minka.grammar.thinking import ThinkingWatch
from minka.grammar.vocabulary import Vocabulary
from minka.types import Constraint, Matcher, Thinking, Tokenizer

CACHE_SIZE = 600
"""Grammars that are kept compiled: more than texts can wait. A small one takes 160 kB."""

CACHE_BYTES = 1_500_000
"""Source text of all kept grammars together; compiled, a large one takes 130 times its source."""

MAX_LATE = 20_000
"""Characters of a grammar that the engine's thread may compile again if it is not kept any more: some 300 ms."""


class Grammars:
    """Implements `minka.types.Constraints` for one model. `compile` may be called from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._jail = Jail()
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tokenizer)

    def compile(self, constraint: Constraint, *, param: str = "grammar") -> None:
        """Make sure that the constraint can be started. Raises RequestError, which names `param`, if it cannot.

        Takes milliseconds for a usual grammar and is bounded for any; the first call also reads the vocabulary.
        """
        _, source = split(constraint.grammar)
        if source:
            self._compiled(source, param)

    def start(self, constraint: Constraint, room: int = -1) -> Matcher:
        """See Constraints. Raises UnavailableError for a large grammar that others have driven out of the memory."""
        matcher = self._started(constraint)
        return matcher if room < 0 else ClosingWatch(matcher, room)

    def _started(self, constraint: Constraint) -> Closable:
        triggers, source = split(constraint.grammar)
        matcher: Closable | None = None
        if source and triggers is not None:
            matcher = LazyMatcher(triggers, lambda: self._matcher(source), self._piece, self._plain_tokens)
        elif source:
            matcher = self._matcher(source)
        if constraint.thinking is not None:
            return ThinkingWatch(constraint.thinking, matcher, self._piece, self._ending(constraint.thinking))
        if matcher is None:
            raise RequestError("the constraint asks for nothing")
        return matcher

    def _matcher(self, source: str) -> GrammarMatcher:
        if len(source) > MAX_LATE and source not in self._kept:
            raise UnavailableError("many large grammars wait at the same time: try again later")
        native = self._compiled(source, "grammar").deep_copy()
        return GrammarMatcher(native, self._vocabulary.native.vocab_size, self._vocabulary.closers)

    def _compiled(self, source: str, param: str) -> LLMatcher:
        with self._lock:
            known = self._kept.get(source)
            if known is not None:
                self._kept.move_to_end(source)
                return known
        made = self._make(source, param)
        with self._lock:
            self._kept[source] = made
            while len(self._kept) > CACHE_SIZE or (len(self._kept) > 1 and sum(map(len, self._kept)) > CACHE_BYTES):
                self._kept.popitem(last=False)
        return made

    def _make(self, source: str, param: str) -> LLMatcher:
        if len(source) > 2 * MAX_SOURCE:
            raise RequestError(f'"{param}" makes a grammar that is too large', param=param)
        spelled = spell(source, self._tokenizer)
        if FOREIGN in spelled or GUARDED in spelled:
            self._try_elsewhere(spelled, param)
        native = self._vocabulary.native

        def make() -> LLMatcher:
            matcher = LLMatcher(native, spelled, log_level=0, limits=LIMITS)
            if not matcher.is_error():
                # The first mask is what can turn out to be too much.
                matcher.compute_bitmask()
            return matcher

        matcher = run_deep(make, len(spelled))
        if matcher.is_error():
            raise explain(spelled, matcher.get_error(), param, problem_of)
        return matcher

    def _try_elsewhere(self, spelled: str, param: str) -> None:
        try:
            problem = self._jail.problem(spelled)
        except RequestError as error:
            raise RequestError(f'"{param}": {error.message}', param=param) from None
        if problem:
            raise explain(spelled, problem, param, self._jail.problem)

    def close(self) -> None:
        """End what was started to compile."""
        self._jail.close()

    def _piece(self, token: int) -> bytes:
        return self._tokenizer.piece(token, special=True)

    def _plain_tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokens(text, parse_special=True)

    def _ending(self, thinking: Thinking) -> list[int]:
        return self._vocabulary.tokens(thinking.message + thinking.ends[0], parse_special=True)
