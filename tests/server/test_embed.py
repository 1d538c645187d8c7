"""The path of embeddings through the server: answers, errors, clients that go away, a model that cannot write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest

from minka.engine.engine import Engine, EngineConfig
from minka.native.model import Model
from minka.native.textless import Textless
from minka.params import ServerParams
from minka.protocols.served import EmbeddingFacts
from minka.runtime import Runtime
from minka.types import Pooling, RankFrame
from tests.fake_embedder import WIDTH, FakeEmbedder
from tests.fakes import WAIT, FakeBackend, FakeVocab
from tests.protocols.values import at, made_served
from tests.server.site import CHAT, MESSAGES, Live, Site, error_of
from tests.server.test_disconnect import wait_until


class _NoModel:
    def close(self) -> None:
        """There is nothing to free."""


def runtime(
    embedder: FakeEmbedder, pooling: Pooling = Pooling.MEAN, *, only: bool = False, queue_size: int = 64
) -> Runtime:
    """A runtime that embeds; with `only` it has no backend that generates."""
    vocab = FakeVocab()
    backend = Textless(vocab, n_seq_max=4, n_ctx=256) if only else FakeBackend(vocab=vocab)
    facts = EmbeddingFacts(pooling, WIDTH, frame=RankFrame(between=(1,)), only=only)
    served = replace(made_served(vocab, n_ctx=256, n_slots=4), embeddings=facts)
    engine = Engine(backend, EngineConfig(queue_size=queue_size, check=True), embedder=embedder)
    return Runtime(cast("Model", _NoModel()), engine, served)


@contextmanager
def embedding_site(
    embedder: FakeEmbedder | None = None, pooling: Pooling = Pooling.MEAN, **more: bool
) -> Iterator[Site]:
    embedder = embedder or FakeEmbedder()
    with Site(ServerParams(metrics=True), runtime(embedder, pooling, **more)) as site:
        yield site
    embedder.verify()
    assert embedder.closed


def test_vectors_come_back_and_are_counted() -> None:
    with embedding_site() as site:
        body = {"input": ["ab", "c"], "embd_normalize": -1}
        answer = site.post("/v1/embeddings", body)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        data = answer.json()["data"]
        assert [entry["embedding"] for entry in data] == [[2, 97 + 98, 97, 98], [1, 99, 99, 99]]
        assert site.post("/embedding", body).json()[1] == {"index": 1, "embedding": [[1, 99, 99, 99]]}
        assert "llamacpp:prompt_tokens_total 6" in site.get("/metrics").text
        assert site.view().counters.predicted_tokens == 0


def test_chat_and_embeddings_come_from_one_server() -> None:
    with embedding_site() as site:
        assert site.post("/v1/embeddings", {"input": "a"}).status_code == 200
        assert site.post(CHAT, {"messages": MESSAGES, "max_tokens": 3}).status_code == 200
        assert at(site.get("/v1/models").json(), "models", 0, "capabilities") == ["completion"]


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.RANK])
def test_a_model_that_only_embeds_says_that_it_cannot_write(pooling: Pooling) -> None:
    with embedding_site(pooling=pooling, only=True) as site:
        for path, body in (
            (CHAT, {"messages": MESSAGES}),
            ("/v1/completions", {"prompt": "a"}),
            ("/completion", {"prompt": "a", "stream": True}),
        ):
            assert "cannot generate text" in str(error_of(site.post(path, body), 501)["message"])
        assert site.get("/slots?fail_on_no_slot=1").status_code == 200
        assert site.post("/tokenize", {"content": "ab"}).json() == {"tokens": [97, 98]}
        expected = "rerank" if pooling is Pooling.RANK else "embedding"
        assert at(site.get("/models").json(), "models", 0, "capabilities") == [expected]


def test_documents_are_ranked() -> None:
    with embedding_site(pooling=Pooling.RANK) as site:
        for path in ("/v1/rerank", "/rerank", "/reranking", "/v1/reranking"):
            answer = site.post(path, {"query": "q", "documents": ["a", "abc", "ab"]}).json()
            assert [entry["index"] for entry in answer["results"]] == [1, 2, 0]
        assert error_of(site.post("/v1/embeddings", {"input": "a"}), 400)["type"] == "invalid_request_error"
    with embedding_site() as site:
        assert error_of(site.post("/rerank", {"query": "q", "documents": ["a"]}), 501)["type"] == "not_supported_error"


def test_a_text_that_is_too_long_is_the_client_s_fault() -> None:
    with embedding_site(FakeEmbedder(n_input_max=20)) as site:
        error = error_of(site.post("/v1/embeddings", {"input": ["a", "b" * 21]}), 400)
        assert error["param"] == "input"
        assert "text 1 is too large to process: it has 21 tokens" in str(error["message"])


def test_a_server_without_embeddings_says_so() -> None:
    vocab = FakeVocab()
    engine = Engine(FakeBackend(vocab=vocab), EngineConfig(check=True))
    with Site(runtime=Runtime(cast("Model", _NoModel()), engine, made_served(vocab))) as site:
        error_of(site.post("/v1/embeddings", {"input": "a"}), 501)


def test_a_deadline_in_a_header_ends_a_request_that_waits() -> None:
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert released.wait(WAIT)

    with Live(runtime(FakeEmbedder(n_batch=2, hook=hold))) as live, live.connect() as first, live.connect() as late:
        first.send("/v1/embeddings", input=["ab", "cd"])
        assert held.wait(WAIT)
        late.send("/v1/embeddings", input="ef", timeout_ms=0)
        wait_until(lambda: live.runtime.engine.n_open == 2)
        released.set()
        assert first.answer().status == 200
        assert late.answer().status == 504


def test_a_client_that_goes_away_takes_its_texts_back() -> None:
    held, passes = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        held.set()
        assert passes.acquire(timeout=WAIT)

    embedder = FakeEmbedder(n_batch=2, hook=hold)
    with Live(runtime(embedder)) as live:
        with live.connect() as client:
            client.send("/v1/embeddings", input=["ab"] * 500)
            assert held.wait(WAIT)
        wait_until(lambda: live.runtime.engine.n_open == 0)
        passes.release(2)
        with live.connect() as other:
            passes.release(10)
            assert other.post("/v1/embeddings", input="cd").status == 200
    assert len(embedder.batches) < 5


def test_the_queue_is_bounded() -> None:
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert released.wait(WAIT)

    with Live(runtime(FakeEmbedder(hook=hold), queue_size=0)) as live:
        clients = [live.connect() for _ in range(4)]
        for client in clients:
            client.send("/v1/embeddings", input="ab")
        wait_until(lambda: live.runtime.engine.n_open == 4)
        with live.connect() as turned_away:
            answer = turned_away.post("/v1/embeddings", input="ab")
            assert answer.status == 429
            assert answer.headers["retry-after"]
        released.set()
        assert [client.answer().status for client in clients] == [200] * 4
        for client in clients:
            client.leave()
