"""Real vocabularies and whole engines: at a high temperature everything that is written still matches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from minka.engine.engine import Engine, EngineConfig
from minka.errors import RequestError
from minka.grammar.bodies import json_schema, regex, source
from minka.grammar.compiler import Grammars
from minka.grammar.marks import mark, until
from minka.grammar.vocabulary import Vocabulary
from minka.native.context import Context
from minka.native.model import Model
from minka.params import ContextParams, ModelParams, SamplingParams
from minka.types import Constraint, Failed, Finished, FinishReason, Job, Matcher, Token
from tests.engine.test_engine import Ends
from tests.tiny_fixtures import TinyModels

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "mood": {"enum": ["fine", "tired"]},
        "height": {"type": "number", "minimum": 0.5, "maximum": 2.5},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 99}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "mood", "height", "scores"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Iterator[Model]:
    model = Model.load(demo_model, ModelParams(n_gpu_layers=0))
    yield model
    model.close()


def write_any(matcher: Matcher, model: Model, dice: np.random.Generator, limit: int = 300) -> str | None:
    """Text of random tokens, of which all that are allowed are equally likely; None if it did not end."""
    tokens: list[int] = []
    while len(tokens) < limit:
        if matcher.finished:
            return model.vocab.detokenize(tokens, special=True).decode()
        logits = dice.normal(size=model.vocab.n_tokens).astype(np.float32)
        forced = matcher.forced()
        some = [*range(20), *model.vocab.eog, *map(int, dice.integers(model.vocab.n_tokens, size=200)), *forced[:1]]
        told = [matcher.allows(token) for token in some]
        matcher.apply(logits)
        assert told == [bool(np.isfinite(logits[token])) for token in some]
        token = int(logits.argmax())
        assert matcher.allows(token)
        if forced:
            assert np.isfinite(logits[forced[0]])
            token = forced[0]
        if model.vocab.is_eog(token):
            return model.vocab.detokenize(tokens, special=True).decode()
        matcher.accept(token)
        tokens.append(token)
    return None


@pytest.mark.model
def test_any_tokens_that_the_grammar_allows_make_a_valid_text(demo: Model) -> None:
    grammars = Grammars(demo.vocab)
    constraint = Constraint(source(json_schema(PERSON)))
    grammars.compile(constraint)
    written = [write_any(grammars.start(constraint), demo, np.random.default_rng(seed)) for seed in range(20)]
    texts = [text for text in written if text is not None]
    assert texts
    for text in texts:
        Draft202012Validator(PERSON).validate(json.loads(text))


@pytest.mark.model
def test_forced_tokens_are_those_that_the_model_would_make_of_the_text(demo: Model) -> None:
    grammars = Grammars(demo.vocab)
    constraint = Constraint(source('"The answer is 42, I think." /[0-9]/'))
    grammars.compile(constraint)
    forced = list(grammars.start(constraint).forced())
    text = "The answer is 42, I think."
    assert demo.vocab.detokenize(forced, special=False).decode() == text
    whole = demo.vocab.tokenize(text, add_special=False, parse_special=False)
    assert forced[: len(whole) - 1] == whole[:-1]


@pytest.mark.model
def test_special_tokens_are_no_text_and_texts_no_special_tokens(demo: Model) -> None:
    grammars = Grammars(demo.vocab)
    (end,) = demo.vocab.tokenize("<|im_end|>", add_special=False, parse_special=True)
    (start,) = demo.vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    logits = np.zeros(demo.vocab.n_tokens, np.float32)
    string = Constraint(source(json_schema({"type": "string"})))
    grammars.compile(string)
    matcher = grammars.start(string)
    matcher.accept(demo.vocab.tokenize('"', add_special=False, parse_special=False)[0])
    matcher.apply(logits)
    assert not np.isfinite(logits[[end, start]]).any()
    tagged = Constraint(source(f"{until('<|im_start|>')} {mark('<|im_start|>')}"))
    grammars.compile(tagged)
    matcher = grammars.start(tagged)
    matcher.accept(start)
    assert list(matcher.forced()) == [start]


@pytest.mark.parametrize("name", ["llama", "bpe", "swa"])
def test_every_kind_of_vocabulary_spells_a_text_exactly(tiny_models: TinyModels, name: str) -> None:
    model = Model.load(tiny_models(name), ModelParams(n_gpu_layers=0))
    try:
        vocabulary = Vocabulary(model.vocab)
        for text in ["the", " the", "\n", "é€😀", "a  b", '{"a": 1}']:
            tokens = vocabulary.tokens(text, parse_special=False)
            assert model.vocab.detokenize(tokens, special=True).decode() == text
        grammars = Grammars(model.vocab)
        constraint = Constraint(source(regex("the [a-z]{1,9} é")))
        grammars.compile(constraint)
        written = write_any(grammars.start(constraint), model, np.random.default_rng(3))
        assert written is not None
        assert written.startswith("the ")
    finally:
        model.close()


@pytest.mark.model
@pytest.mark.parametrize(
    "change", [{"temperature": 0.0}, {}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"mirostat": 2}]
)
def test_biases_that_leave_nothing_are_the_requests_fault(demo: Model, change: dict[str, object]) -> None:
    grammars = Grammars(demo.vocab)
    constraint = Constraint(source(regex("yes|no")))
    grammars.compile(constraint)
    piece = partial(demo.vocab.piece, special=False)
    wanted = [token for token in range(demo.vocab.n_tokens) if piece(token)[:1] in (b"y", b"n")]
    bias = tuple((token, float("-inf")) for token in wanted)
    sampling = replace(SamplingParams(logit_bias=bias), **change)  # type: ignore[arg-type]
    ends = Ends()
    context = Context(demo, ContextParams(n_ctx=64, parallel=1, threads=1))
    with closing(Engine(context, EngineConfig(), constraints=grammars)) as engine:
        engine.submit(Job("j", (1, 2, 3), sampling=sampling, n_predict=8, constraint=constraint), ends)
        (end,) = ends.wait()
    assert isinstance(end, Failed)
    assert isinstance(end.error, RequestError)
    assert "leave no token" in end.error.message


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.5, 3.0])
def test_an_engine_writes_valid_texts_at_any_temperature(demo: Model, temperature: float) -> None:
    grammars = Grammars(demo.vocab)
    constraint = Constraint(source(json_schema(PERSON)))
    grammars.compile(constraint)
    sampling = SamplingParams(temperature=temperature, seed=5, top_k=0, top_p=1.0, min_p=0.0)
    prompt = tuple(demo.vocab.tokenize("A person as JSON:\n", add_special=True, parse_special=True))
    jobs = [
        Job(f"j{n}", prompt, sampling=replace(sampling, seed=n), n_predict=80, constraint=constraint) for n in range(4)
    ]
    config = ContextParams(n_ctx=1024, parallel=3, kv_unified=True, threads=1)
    ends = Ends()
    with closing(Engine(Context(demo, config), EngineConfig(), constraints=grammars)) as engine:
        for job in jobs:
            engine.submit(job, ends)
        ends.wait(len(jobs))
    texts = [
        "".join(event.text for event in ends.events[job.id] if isinstance(event, Token | Finished)) for job in jobs
    ]
    for job, text in zip(jobs, texts, strict=True):
        if ends.finished(job.id).reason is not FinishReason.LIMIT:
            Draft202012Validator(PERSON, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
        assert text.startswith('{"name": "')
