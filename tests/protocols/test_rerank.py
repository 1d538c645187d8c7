"""Reranking on the wire: queries and documents, and both shapes of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from minka.errors import NotSupportedError, RequestError
from minka.protocols.rerank import decode_rerank
from minka.protocols.served import EmbeddingFacts, Served
from minka.protocols.vectors import Texts
from minka.types import Pooling, RankFrame
from tests.fakes import FakeVocab, tokens_of
from tests.protocols.values import at, made_served

FRAME = RankFrame(before=(1,), between=(2, 3), after=(2,))
DOCUMENTS = ["bad", "best", "good"]
SCORES = [-1.0, 5.0, 2.5]


def served(frame: RankFrame = FRAME, pooling: Pooling = Pooling.RANK) -> Served:
    return replace(made_served(FakeVocab(add_bos=True)), embeddings=EmbeddingFacts(pooling, 1, frame=frame))


def answer(texts: Texts, scores: Sequence[float] = SCORES) -> object:
    vectors = [np.array([[score]], np.float32) for score in scores]
    return json.loads(json.dumps(texts.answer(vectors), allow_nan=False))


def test_query_and_document_become_one_text() -> None:
    inputs = decode_rerank({"query": "q", "documents": ["a", "bc"]}, served()).job.inputs
    assert inputs == ((1, 113, 2, 3, 97, 2), (1, 113, 2, 3, 98, 99, 2))


def test_a_template_is_filled_once() -> None:
    """Text that looks like a place of the template is text."""
    frame = RankFrame("<{query}|{document}>")
    inputs = decode_rerank({"query": "{document}", "documents": ["{query}"]}, served(frame)).job.inputs
    assert inputs == (tokens_of("<{document}|{query}>"),)


def test_jina_s_answer_is_sorted() -> None:
    texts = decode_rerank({"query": "q", "documents": DOCUMENTS, "model": "mine"}, served())
    assert answer(texts) == {
        "model": "mine",
        "object": "list",
        "usage": {"prompt_tokens": 26, "total_tokens": 26},
        "results": [
            {"index": 1, "relevance_score": 5.0},
            {"index": 2, "relevance_score": 2.5},
            {"index": 0, "relevance_score": -1.0},
        ],
    }


def test_documents_may_be_objects_and_are_repeated_on_demand() -> None:
    documents = [{"text": "bad"}, "best", {"text": "good", "id": 7}]
    texts = decode_rerank({"query": "q", "documents": documents, "return_documents": True, "top_n": 2}, served())
    assert at(answer(texts), "results") == [
        {"index": 1, "relevance_score": 5.0, "document": {"text": "best"}},
        {"index": 2, "relevance_score": 2.5, "document": {"text": "good"}},
    ]


def test_tei_s_answer() -> None:
    body: dict[str, object] = {"query": "q", "texts": DOCUMENTS}
    assert answer(decode_rerank(body, served())) == [
        {"index": 1, "score": 5.0},
        {"index": 2, "score": 2.5},
        {"index": 0, "score": -1.0},
    ]
    short = decode_rerank({**body, "return_text": True, "top_n": 1}, served())
    assert answer(short) == [{"index": 1, "score": 5.0, "text": "best"}]


def test_equal_scores_keep_the_order_and_top_n_may_be_more_than_there_are() -> None:
    texts = decode_rerank({"query": "q", "documents": DOCUMENTS, "top_n": 99}, served())
    results = at(answer(texts, [1.0, 1.0, 1.0]), "results")
    assert isinstance(results, list)
    assert [entry["index"] for entry in results] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": 5, "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": 123}, "documents"),
        ({"query": "q", "documents": [1, 2]}, "documents"),
        ({"query": "q", "documents": ["a", {"id": 1}]}, "documents"),
        ({"query": "q", "texts": "abc"}, "texts"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "top_n": True}, "top_n"),
        ({"query": "q", "documents": ["a"], "return_documents": 1}, "return_documents"),
    ],
)
def test_what_cannot_be_names_its_field(body: Mapping[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_rerank(body, served())
    assert caught.value.param == param


def test_a_server_that_does_not_rank_says_so() -> None:
    with pytest.raises(NotSupportedError, match="--reranking"):
        decode_rerank({"query": "q", "documents": ["a"]}, served(pooling=Pooling.MEAN))
