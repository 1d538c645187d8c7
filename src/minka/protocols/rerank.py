"""Documents by relevance to a query: Jina's and Cohere's shape, and with `texts` in place of `documents` that of TEI
(Hugging Face's Text Embeddings Inference)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.errors import NotSupportedError, RequestError
from minka.params import json_type
from minka.protocols.body import JsonObject
from minka.protocols.embeddings import MAX_INPUTS, embed_job, model_name
from minka.protocols.route import Embedding
from minka.protocols.schema import COUNT, FLAG, NUMBER, TEXT, Field, either, listed, record
from minka.protocols.served import Served
from minka.protocols.vectors import facts
from minka.types import EmbedJob, Pooling, RankFrame, Tokenizer, Vectors

_PLACE = re.compile(r"\{(query|document)\}")


def decode_rerank(body: JsonObject, served: Served) -> Ranking:
    """A query and documents. Raises NotSupportedError unless the server ranks."""
    embedding = facts(served)
    if embedding.pooling is not Pooling.RANK:
        raise NotSupportedError("This server does not support reranking. Start it with `--reranking`")
    is_tei = body.get("texts") is not None
    query, documents = _query(body), _documents(body, "texts" if is_tei else "documents")
    inputs = [_pair(query, document, embedding.frame, served.tokenizer) for document in documents]
    repeats, repeats_tei = _flag(body, "return_documents"), _flag(body, "return_text")
    shape = Shape(
        is_tei=is_tei,
        top_n=_top_n(body, len(documents)),
        with_text=repeats_tei if is_tei else repeats,
        model=model_name(body, served),
    )
    return Ranking(embed_job(body, inputs, served), documents, shape)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the answer looks like."""

    is_tei: bool
    top_n: int
    with_text: bool
    model: str


class Ranking:
    """Implements `vectors.Texts`: a text is the query with one document, its vector begins with the score."""

    def __init__(self, job: EmbedJob, documents: Sequence[str], shape: Shape) -> None:
        self.job = job
        self._documents = documents
        self._shape = shape

    def answer(self, vectors: Sequence[Vectors]) -> object:
        """See Texts. The most relevant document comes first, equal ones in the order of the request."""
        scores = [float(own[0, 0]) for own in vectors]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._shape.top_n]
        results = [self._entry(index, scores[index]) for index in order]
        if self._shape.is_tei:
            return results
        n_tokens = sum(map(len, self.job.inputs))
        return {
            "model": self._shape.model,
            "object": "list",
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "results": results,
        }

    def _entry(self, index: int, score: float) -> dict[str, object]:
        text = self._documents[index]
        entry: dict[str, object] = {"index": index, "score" if self._shape.is_tei else "relevance_score": score}
        if not self._shape.with_text:
            return entry
        return entry | ({"text": text} if self._shape.is_tei else {"document": {"text": text}})


# -- request -----------------------------------------------------------------------------------------------------------


def _query(body: JsonObject) -> str:
    query = body.get("query")
    if query is None:
        raise RequestError('"query" must be provided', param="query")
    if not isinstance(query, str):
        raise RequestError(f'"query" must be a string, but is {json_type(query)}', param="query")
    return query


def _documents(body: JsonObject, name: str) -> list[str]:
    value = body.get(name)
    texts = [_document(item) for item in value] if isinstance(value, list) else []
    if not texts or None in texts:
        raise RequestError(f'"{name}" must be a non-empty string array', param=name)
    if len(texts) > MAX_INPUTS:
        raise RequestError(f'"{name}" has {len(texts)} texts, at most {MAX_INPUTS} are allowed', param=name)
    return [text for text in texts if text is not None]


def _document(item: object) -> str | None:
    if isinstance(item, Mapping):
        item = item.get("text")
    return item if isinstance(item, str) else None


def _top_n(body: JsonObject, n_documents: int) -> int:
    value = body.get("top_n")
    if value is None:
        return n_documents
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError('"top_n" must be an integer from 1 on', param="top_n")
    return value


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f'"{name}" must be true or false, but is {json_type(value)}', param=name)
    return bool(value)


def _pair(query: str, document: str, frame: RankFrame, tokenizer: Tokenizer) -> list[int]:
    """One text of both."""
    if frame.template is not None:
        values = {"query": query, "document": document}
        text = _PLACE.sub(lambda place: values[place[1]], frame.template)
        return tokenizer.tokenize(text, add_special=False, parse_special=True)
    asked, told = (tokenizer.tokenize(text, add_special=False, parse_special=False) for text in (query, document))
    return [*frame.before, *asked, *frame.between, *told, *frame.after]


_DOCUMENTS = listed(either(TEXT, record(text=TEXT)), minItems=1, maxItems=MAX_INPUTS)

ROUTES = (
    Embedding(
        ("/v1/rerank", "/rerank", "/reranking", "/v1/reranking"),
        decode_rerank,
        "Documents by their relevance to a query",
        fields=(
            Field("query", TEXT, "what the documents are compared with", required=True),
            Field("documents", _DOCUMENTS, "strings, or objects with text"),
            Field("texts", _DOCUMENTS, "documents as TEI calls them, which gets TEI's answer"),
            Field("top_n", {"type": "integer", "minimum": 1}, "only so many, the best ones"),
            Field("return_documents", FLAG, "repeat the documents in the answer; false if not given"),
            Field("return_text", FLAG, "the same for TEI's answer"),
            Field("model", TEXT, "repeated in the answer"),
            Field("priority", {"type": "integer", "minimum": -1, "maximum": 1}, "order in the queue"),
            Field("timeout_ms", COUNT, "fail if it takes longer; -1 for never"),
        ),
        example={"query": "what is a panda?", "documents": ["hi", "It is a bear."]},
        result=either(
            record(
                model=TEXT,
                results=listed(record(index=COUNT, relevance_score=NUMBER, document=record(text=TEXT))),
                usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
            ),
            listed(record(index=COUNT, score=NUMBER, text=TEXT)),
        ),
    ),
)
