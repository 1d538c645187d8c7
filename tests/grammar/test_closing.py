"""The end that a constrained text is brought to before the room for it is over."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from minka.errors import RequestError
from minka.grammar.bodies import json_schema, regex, source
from minka.grammar.closing import MARGIN
from minka.grammar.compiler import Grammars
from minka.grammar.marks import until
from minka.native.model import Model
from minka.params import ModelParams
from minka.types import Constraint, Matcher, Thinking
from tests.fake_vocab import EOS
from tests.grammar.matching import GRAMMARS, allowed
from tests.grammar.random_schemas import random_schema

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 18},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "home"],
}


def begin(grammar: str, room: int, thinking: Thinking | None = None) -> Matcher:
    constraint = Constraint(grammar, thinking)
    GRAMMARS.compile(constraint)
    return GRAMMARS.start(constraint, room)


def write(matcher: Matcher, text: str) -> None:
    for byte in text.encode():
        matcher.accept(byte)


def rambled(matcher: Matcher, room: int, dice: random.Random) -> str:
    """A text of at most `room` bytes that never ends by itself if it can help it: it goes on with letters."""
    text = bytearray()
    for _ in range(room):
        if matcher.finished:
            break
        choices = allowed(matcher)
        letters = [token for token in choices if chr(token).isalpha() and token < 128] or choices
        token = dice.choice(letters if dice.random() < 0.9 else [token for token in choices if token < 128] or choices)
        if token == EOS:
            break
        matcher.accept(token)
        text.append(token)
    return text.decode("utf-8", "replace")


def test_an_open_string_and_all_that_is_required_behind_it() -> None:
    matcher = begin(source(json_schema(PERSON)), 120)
    write(matcher, '{"name": "abc')
    assert not matcher.closed
    while not matcher.closed:
        write(matcher, "x")
    end = bytes(matcher.forced()).decode()
    assert end == '", "age": 100, "tags": ["green", "green"], "home": {"city": ""}}'
    assert allowed(matcher) == [ord('"')]
    write(matcher, end)
    assert matcher.finished
    assert matcher.closed


@pytest.mark.parametrize("room", [90, 120, 200, 500])
def test_a_text_that_would_never_end_is_whole_in_any_room(room: int) -> None:
    for seed in range(5):
        matcher = begin(source(json_schema(PERSON)), room)
        text = rambled(matcher, room, random.Random(seed))
        assert len(text) <= room
        jsonschema.validate(json.loads(text), PERSON)
        assert matcher.closed


@pytest.mark.parametrize(
    "leaf", [{"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 5}, {"const": 7}]
)
@pytest.mark.parametrize("inner", [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}])
def test_what_holds_itself_is_closed_with_a_leaf(leaf: dict[str, object], inner: dict[str, object]) -> None:
    schema = {"type": "object", "properties": {"v": {"anyOf": [inner, leaf]}}, "required": ["v"]}
    deep = '{"v": ' if inner == {"$ref": "#"} else '{"v": ['
    matcher = begin(source(json_schema({**schema, "additionalProperties": False})), 150)
    text = ""
    for char in (deep * 150)[:150]:
        if matcher.closed:
            break
        write(matcher, char)
        text += char
    text += bytes(matcher.forced()).decode()
    jsonschema.validate(json.loads(text), schema)
    assert len(text) <= 150


def test_a_room_that_no_end_fits_into_changes_nothing() -> None:
    matcher = begin(source(json_schema(PERSON)), 20)
    text = rambled(matcher, 20, random.Random(1))
    assert len(text.encode()) == 20
    assert not matcher.closed


def test_a_text_that_ends_in_time_is_left_alone() -> None:
    text = '{"name": "a", "age": 20, "tags": ["red", "green"], "home": {"city": "b"}}'
    matcher = begin(source(json_schema(PERSON)), len(text) + MARGIN + 20)
    write(matcher, text)
    assert matcher.finished
    assert not matcher.closed


def test_a_text_that_may_end_anywhere_is_cut_as_ever() -> None:
    matcher = begin(source(regex("[a-z]*")), 30)
    assert len(rambled(matcher, 30, random.Random(1))) == 30
    assert not matcher.closed


def test_reasoning_gives_way_to_the_answer() -> None:
    thinking = Thinking("<think>", ("</think>",), is_open=True)
    grammar = source(until("</think>") + " " + json_schema(PERSON))
    matcher = begin(grammar, 150, thinking)
    text = rambled(matcher, 150, random.Random(3))
    thought, _, answer = text.partition("</think>")
    assert len(thought) > 40
    jsonschema.validate(json.loads(answer), PERSON)


@pytest.mark.parametrize("seed", range(60))
def test_random_schemas(seed: int) -> None:
    """What it closes is valid, and nearly everything that fits is closed."""
    dice = random.Random(seed)
    schema = random_schema(dice)
    try:
        grammar = source(json_schema(schema))
        matcher = begin(grammar, 200)
    except RequestError:
        return  # contradictory, or nothing that a grammar can hold
    text = rambled(matcher, 200, dice)
    if matcher.closed or len(text) < 200:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.model
@pytest.mark.parametrize("room", [60, 64, 71, 80, 100])
def test_a_real_vocabulary(demo_model: Path, room: int) -> None:
    """Tokens of many characters, 49,152 of them, all as likely as each other."""
    with closing(Model.load(demo_model, ModelParams(n_gpu_layers=0))) as model:
        grammars = Grammars(model.vocab)
        constraint = Constraint(source(json_schema(PERSON)))
        grammars.compile(constraint)
        for seed in range(4):
            matcher = grammars.start(constraint, room)
            dice = np.random.default_rng(seed)
            tokens: list[int] = []
            while len(tokens) < room and not matcher.finished:
                logits = dice.normal(size=model.vocab.n_tokens).astype(np.float32)
                matcher.apply(logits)
                tokens.append(int(logits.argmax()))
                matcher.accept(tokens[-1])
            text = model.vocab.detokenize(tokens, special=True).decode()
            jsonschema.validate(json.loads(text), PERSON)
            assert matcher.closed
