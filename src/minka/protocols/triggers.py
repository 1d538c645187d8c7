"""llama-server's lazy grammars: `grammar_lazy` with `grammar_triggers` and `preserved_tokens`."""

from __future__ import annotations

from collections.abc import Mapping

from minka.errors import RequestError
from minka.grammar.lazy import Triggers, patterns_problem
from minka.params import json_type
from minka.protocols.schema import COUNT, FLAG, TEXT, TOKEN, Field, either, listed, record
from minka.types import Tokenizer

LAZY_FIELDS = ("grammar_lazy", "grammar_triggers")
"""The fields that only completions of plain prompts take: chat makes its own."""

MAX_TRIGGERS = 100

_TOKEN, _WORD, _PATTERN, _PATTERN_FULL = range(4)

JsonObject = Mapping[str, object]


def decode_triggers(body: JsonObject, tokenizer: Tokenizer) -> Triggers | None:
    """What begins the grammar, None if it begins at once. Raises RequestError as llama-server does."""
    lazy = body.get("grammar_lazy")
    if not isinstance(lazy, bool | None):
        raise RequestError('"grammar_lazy" must be true or false', param="grammar_lazy")
    values = body.get("grammar_triggers")
    values = [] if values is None else values
    if not isinstance(values, list) or len(values) > MAX_TRIGGERS:
        raise RequestError(f'"grammar_triggers" must be a list of at most {MAX_TRIGGERS}', param="grammar_triggers")
    preserved = decode_preserved(body, tokenizer)
    found = [_trigger(value, f"grammar_triggers[{index}]", tokenizer, preserved) for index, value in enumerate(values)]
    if not lazy:
        return None
    if not found:
        raise RequestError("Error: no triggers set for lazy grammar!", param="grammar_triggers")
    triggers = Triggers(
        tokens=tuple(int(value) for kind, value in found if kind == _TOKEN),
        words=tuple(value for kind, value in found if kind == _WORD),
        patterns=tuple(value for kind, value in found if kind == _PATTERN),
        full_patterns=tuple(value for kind, value in found if kind == _PATTERN_FULL),
    )
    if problem := patterns_problem(triggers):
        raise RequestError(f'"grammar_triggers": {problem}', param="grammar_triggers")
    return triggers


def _trigger(value: object, path: str, tokenizer: Tokenizer, preserved: frozenset[int]) -> tuple[int, str]:
    if not isinstance(value, Mapping):
        raise RequestError(f'"{path}" must be an object, but is {json_type(value)}', param=path)
    kind, text = value.get("type"), value.get("value")
    if isinstance(kind, bool) or not isinstance(kind, int) or kind not in range(4):
        raise RequestError(f'"{path}.type" must be 0 (token), 1 (word), 2 (pattern) or 3 (whole pattern)', param=path)
    if kind == _TOKEN:
        token = value.get("token", -1)
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < tokenizer.n_tokens:
            raise RequestError(f'"{path}.token" must be a token of the vocabulary', param=path)
        return kind, str(token)
    if not isinstance(text, str) or not text:
        raise RequestError(f'"{path}.value" must be a string that is not empty', param=path)
    if kind == _WORD:
        return _word(text, tokenizer, preserved)
    alone = Triggers(patterns=(text,)) if kind == _PATTERN else Triggers(full_patterns=(text,))
    if problem := patterns_problem(alone):
        raise RequestError(f'"{path}.value": {problem}', param=path)
    return kind, text


def _word(text: str, tokenizer: Tokenizer, preserved: frozenset[int]) -> tuple[int, str]:
    """A word that is one token has to be kept as that, and is the token then."""
    tokens = tokenizer.tokenize(text, add_special=False, parse_special=True)
    if len(tokens) != 1:
        return _WORD, text
    if tokens[0] not in preserved:
        raise RequestError(
            f"Grammar trigger word should be marked as preserved token: {text}", param="preserved_tokens"
        )
    return _TOKEN, str(tokens[0])


def decode_preserved(body: JsonObject, tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens whose spelling stays in the text although they are special: ids, or texts that are one token."""
    values = body.get("preserved_tokens")
    values = [] if values is None else values
    if not isinstance(values, list):
        raise RequestError('"preserved_tokens" must be a list of tokens', param="preserved_tokens")
    return frozenset(token for value in values for token in _preserved(value, tokenizer))


def _preserved(value: object, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        tokens = tokenizer.tokenize(value, add_special=False, parse_special=True)
        return tokens if len(tokens) == 1 else []
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < tokenizer.n_tokens:
        raise RequestError('"preserved_tokens" must be texts or token ids', param="preserved_tokens")
    return [value]


TRIGGER_FIELDS = (
    Field("grammar_lazy", FLAG, "let any text come until one of grammar_triggers, and hold to the grammar from there"),
    Field(
        "grammar_triggers",
        listed(record(type=COUNT, value=TEXT, token=TOKEN), maxItems=MAX_TRIGGERS),
        "what begins a lazy grammar; type 0 is a token, 1 a word, 2 a pattern, 3 a pattern of the whole text",
    ),
    Field("preserved_tokens", listed(either(TEXT, TOKEN)), "special tokens whose spelling stays in the text"),
)
