"""Vectors of a tiny model that embeds, and of one that generates as well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minka import LLM, AsyncLLM
from minka.errors import NotSupportedError, RequestError
from tests.tiny_fixtures import TinyModels

TEXTS = [f"text number {n}" for n in range(150)]
OPTIONS: dict[str, Any] = {"n_ctx": 256, "threads": 1, "warmup": False}


@pytest.fixture(scope="module")
def llm(tiny_models: TinyModels) -> Iterator[LLM]:
    with LLM(tiny_models("bert"), **OPTIONS) as made:
        yield made


def test_texts_become_vectors_in_order(llm: LLM) -> None:
    outputs = llm.embed(TEXTS)
    assert [output.prompt for output in outputs] == TEXTS
    vectors = np.stack([output.embedding for output in outputs])
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for n in (0, 64, 149):
        (alone,) = llm.embed(TEXTS[n])
        assert alone.prompt_token_ids == outputs[n].prompt_token_ids
        assert np.allclose(alone.embedding, vectors[n], atol=1e-4)


def test_ids_and_fewer_numbers(llm: LLM) -> None:
    ids = llm.tokenize("some text")
    (whole,), (cut,) = llm.embed("some text"), llm.embed(ids, dimensions=4)
    assert cut.prompt is None
    assert cut.embedding.shape == (4,)
    first = whole.embedding[:4]
    assert np.allclose(cut.embedding, first / np.linalg.norm(first), atol=1e-5)
    with pytest.raises(RequestError, match="dimensions"):
        llm.embed("a", dimensions=10**6)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.embed([10**6])
    assert llm.embed([]) == []


def test_a_vector_for_each_token(tiny_models: TinyModels) -> None:
    with LLM(tiny_models("bert"), pooling="none", **OPTIONS) as llm:
        (output,) = llm.embed("some text")
    assert output.embedding.shape[0] == len(output.prompt_token_ids)


def test_a_model_generates_and_embeds(tiny_models: TinyModels) -> None:
    with LLM(tiny_models("llama"), temperature=0, n_predict=4, **OPTIONS) as llm:
        assert len(llm.generate("once")[0].outputs[0].token_ids) == 4
        assert np.isclose(np.linalg.norm(llm.embed("once")[0].embedding), 1, atol=1e-5)


def test_a_model_that_ranks_makes_none(tiny_models: TinyModels) -> None:
    with LLM(tiny_models("reranker"), **OPTIONS) as llm, pytest.raises(RequestError, match="ranks documents"):
        llm.embed("once")


def test_the_asynchronous_twin(tiny_models: TinyModels, llm: LLM) -> None:
    async def main() -> None:
        async with AsyncLLM(tiny_models("bert"), **OPTIONS) as twin:
            many, (one,) = await asyncio.gather(twin.embed(TEXTS), twin.embed("alone"))
        assert [output.prompt for output in many] == TEXTS
        assert np.allclose(one.embedding, llm.embed("alone")[0].embedding, atol=1e-4)

    asyncio.run(main())


def test_a_model_without_embeddings_says_so(loads: None) -> None:
    with LLM("fake.gguf") as llm, pytest.raises(NotSupportedError):
        llm.embed("a")
