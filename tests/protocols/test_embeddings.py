"""Embeddings on the wire: inputs in every form, vectors in every shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from minka.errors import NotSupportedError, RequestError, UnsupportedError
from minka.protocols.embeddings import MAX_INPUTS, decode_native, decode_openai
from minka.protocols.served import EmbeddingFacts, Served
from minka.protocols.vectors import INT16, Texts, normalized
from minka.types import Pooling, Priority
from tests.fakes import BOS, FakeVocab
from tests.protocols.values import at, made_served

PARTS = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]}


def served(pooling: Pooling = Pooling.MEAN, *, normalize: int = 2, add_bos: bool = False) -> Served:
    facts = EmbeddingFacts(pooling, width=4, normalize=normalize)
    return replace(made_served(FakeVocab(add_bos=add_bos)), embeddings=facts)


def answer(texts: Texts, *vectors: list[float]) -> object:
    """The answer if each text has this vector, or this list of them, as JSON."""
    arrays = [np.atleast_2d(np.array(vector, np.float32)) for vector in vectors]
    return json.loads(json.dumps(texts.answer(arrays), allow_nan=False))


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("abc", [(97, 98, 99)]),
        ([1, 2], [(1, 2)]),
        ([1, "ab", 2], [(1, 97, 98, 2)]),
        (["a", "b"], [(97,), (98,)]),
        (["a", [1, 2]], [(97,), (1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ([[1, "a"], ["b"]], [(1, 97), (98,)]),
        ({"prompt_string": "a"}, [(97,)]),
        (PARTS, [(97, 98, 99)]),
        (["a", {"prompt_string": "b"}, PARTS], [(97,), (98,), (97, 98, 99)]),
    ],
)
@pytest.mark.parametrize("name", ["input", "content"])
def test_texts_come_in_all_forms(value: object, inputs: list[tuple[int, ...]], name: str) -> None:
    assert list(decode_native({name: value}, served()).job.inputs) == inputs
    assert list(decode_openai({name: value}, served()).job.inputs) == inputs


def test_texts_get_the_tokens_that_the_model_wants_around_them() -> None:
    inputs = decode_openai({"input": ["", "a", PARTS, ["a", 5], [5, "a"]]}, served(add_bos=True)).job.inputs
    assert inputs == ((BOS,), (BOS, 97), (BOS, 97, 98, 99), (BOS, 97, 5), (5, 97))


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "must be provided"),
        ({"input": None}, "input", "must be provided"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ""}, "input", "cannot be empty"),
        ({"input": ["a", ""]}, "input", "cannot be empty"),
        ({"input": [[]]}, "input", "cannot be empty"),
        ({"input": 5}, "input", "must be a text"),
        ({"input": [True]}, "input[0]", "must be a text"),
        ({"input": [1.5]}, "input[0]", "must be a text"),
        ({"input": [["a", None]]}, "input[0][1]", "token id"),
        ({"input": [1, 10**9]}, "input[1]", "outside the vocabulary"),
        ({"input": [-1, 1]}, "input[0]", "outside the vocabulary"),
        ({"input": {"prompt_string": 1}}, "input", "must be a text"),
        ({"input": {"content": "text"}}, "input.content", "list of parts"),
        ({"input": {"content": [{"type": "unknown"}]}}, "input.content[0]", 'type "text"'),
        ({"input": {"content": ["text"]}}, "input.content[0]", 'type "text"'),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", '"float" or "base64"'),
        ({"input": "a", "dimensions": 5}, "dimensions", "1 to 4"),
        ({"input": "a", "dimensions": 0}, "dimensions", "1 to 4"),
        ({"input": "a", "dimensions": True}, "dimensions", "1 to 4"),
        ({"input": "a", "dimensions": 2.0}, "dimensions", "1 to 4"),
        ({"input": "a", "embd_normalize": -2}, "embd_normalize", "between -1"),
        ({"input": "a", "priority": 7}, "priority", "between -1"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", f"at most {MAX_INPUTS}"),
    ],
)
def test_what_cannot_be_names_its_field(body: Mapping[str, object], param: str, message: str) -> None:
    for decode in (decode_openai, decode_native):
        with pytest.raises(RequestError, match=message) as caught:
            decode(body, served())
        assert caught.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "input_video"])
def test_pictures_and_sound_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="multimodal"):
        decode_openai({"input": {"content": [{"type": kind, kind: {}}]}}, served())
    with pytest.raises(UnsupportedError, match="multimodal"):
        decode_openai({"input": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, served())


def test_openai_s_answer() -> None:
    texts = decode_openai({"input": ["abc", "d"], "model": "mine"}, served())
    assert answer(texts, [3, 4, 0, 0], [0, 0, 0, 2]) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": pytest.approx([0.6, 0.8, 0, 0])},
            {"object": "embedding", "index": 1, "embedding": [0, 0, 0, 1]},
        ],
        "model": "mine",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert at(answer(decode_openai({"input": "a"}, served()), [1, 0, 0, 0]), "model") == "fake.gguf"


def test_base64_is_the_same_numbers() -> None:
    vector = [0.1, -0.2, 0.3, 0.4]
    plain = at(answer(decode_openai({"input": "a"}, served()), vector), "data", 0, "embedding")
    coded = at(answer(decode_openai({"input": "a", "encoding_format": "base64"}, served()), vector), "data", 0)
    assert isinstance(coded, dict)
    assert coded["encoding_format"] == "base64"
    assert np.frombuffer(base64.b64decode(coded["embedding"]), "<f4").tolist() == plain


def test_dimensions_cut_and_normalise_again() -> None:
    texts = decode_openai({"input": "a", "dimensions": 2}, served())
    assert at(answer(texts, [3, 4, 100, 7]), "data", 0, "embedding") == pytest.approx([0.6, 0.8])
    raw = decode_openai({"input": "a", "dimensions": 2, "embd_normalize": -1}, served())
    assert at(answer(raw, [3, 4, 100, 7]), "data", 0, "embedding") == [3, 4]


def test_the_server_s_norm_holds_unless_the_request_says_another() -> None:
    assert at(answer(decode_openai({"input": "a"}, served(normalize=1)), [1, 3, 0, 0]), "data", 0, "embedding") == [
        0.25, 0.75, 0, 0,
    ]  # fmt: skip
    other = decode_openai({"input": "a", "embd_normalize": -1}, served(normalize=1))
    assert at(answer(other, [1, 3, 0, 0]), "data", 0, "embedding") == [1, 3, 0, 0]


@pytest.mark.parametrize("norm", [1, 2, 3, 7, 10**6])
def test_a_norm_is_one(norm: int) -> None:
    rows = normalized(np.array([[0.001, -0.002, 0.0005], [3e4, 1e4, -2e4]], np.float32), norm)
    lengths = (np.abs(rows.astype(np.float64)) ** norm).sum(-1) if norm < 100 else np.abs(rows).max(-1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


def test_norm_zero_uses_the_range_of_16_bits_and_negative_changes_nothing() -> None:
    rows = np.array([[0.5, -1.0, 0.25]], np.float32)
    np.testing.assert_allclose(normalized(rows, 0), rows * INT16)
    assert normalized(rows, -1) is rows
    for norm in (0, 1, 2, 5):
        assert not normalized(np.zeros((1, 3), np.float32), norm).any()


def test_the_native_answer_has_a_list_of_vectors_a_text() -> None:
    texts = decode_native({"input": ["ab", "c"]}, served())
    assert answer(texts, [0, 5, 0, 0], [1, 0, 0, 0]) == [
        {"index": 0, "embedding": [[0, 1, 0, 0]]},
        {"index": 1, "embedding": [[1, 0, 0, 0]]},
    ]
    coded = at(answer(decode_native({"content": "a", "encoding_format": "base64"}, served()), [1, 0, 0, 0]), 0)
    assert isinstance(coded, dict)
    assert np.frombuffer(base64.b64decode(coded["embedding"][0]), "<f4").tolist() == [1, 0, 0, 0]


def test_without_pooling_vectors_are_as_the_model_made_them() -> None:
    none = served(Pooling.NONE)
    arrays = [np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)]
    assert decode_native({"input": "ab", "embd_normalize": 2}, none).answer(arrays) == [
        {"index": 0, "embedding": [[1, 2, 3, 4], [5, 6, 7, 8]]}
    ]
    with pytest.raises(RequestError, match="not OAI compatible"):
        decode_openai({"input": "ab"}, none)


def test_content_asks_for_the_native_answer_on_openai_s_path_too() -> None:
    assert answer(decode_openai({"content": "a"}, served()), [1, 0, 0, 0]) == [
        {"index": 0, "embedding": [[1, 0, 0, 0]]}
    ]


def test_turn_and_time_come_from_the_request() -> None:
    job = decode_openai({"input": "a", "priority": -1, "timeout_ms": 500}, served()).job
    assert (job.priority, job.timeout_ms) == (Priority.LOW, 500)
    assert decode_openai({"input": "a"}, served()).job.priority is Priority.NORMAL


def test_a_server_that_ranks_or_embeds_nothing_says_so() -> None:
    with pytest.raises(RequestError, match="/v1/rerank"):
        decode_openai({"input": "a"}, served(Pooling.RANK))
    with pytest.raises(NotSupportedError, match="no embeddings"):
        decode_openai({"input": "a"}, made_served())
