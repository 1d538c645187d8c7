"""The official `openai` client on embeddings: of a model that does nothing else, and beside chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from openai.types import CreateEmbeddingResponse

from minka.engine.engine import EngineConfig
from minka.errors import ModelError
from minka.params import (
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    ModelParams,
    SamplingParams,
    ServerParams,
)
from minka.runtime import Settings, load
from tests.native.bert import Bert
from tests.server.site import Live
from tests.tiny_fixtures import TinyModels

TEXTS = ["the old house near the sea", "an old house by the sea", "What number is seven plus three?"]


def settings(model: Path, embedding: EmbeddingParams | None) -> Settings:
    return Settings(
        model=ModelParams(model=str(model), alias=("test-model",)),
        context=ContextParams(n_ctx=512, parallel=2, kv_unified=True, threads=1),
        sampling=SamplingParams(temperature=0.0),
        generation=GenerationParams(n_predict=16),
        chat=ChatParams(),
        engine=EngineConfig(queue_size=64, check=True),
        embedding=embedding,
    )


@pytest.fixture(scope="module")
def serve(tiny_models: TinyModels) -> Iterator[Callable[..., Live]]:
    """Starts a server of a tiny model, once for each."""
    servers: dict[str, Live] = {}
    with ExitStack() as stack:

        def start(name: str, **parameters: object) -> Live:
            if name not in servers:
                wanted = settings(tiny_models(name), EmbeddingParams(**parameters))  # type: ignore[arg-type]
                servers[name] = stack.enter_context(Live(load(wanted), ServerParams()))
            return servers[name]

        yield start


def client(live: Live) -> OpenAI:
    return OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def vectors(answer: CreateEmbeddingResponse) -> np.ndarray:
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data])


def test_the_client_reads_what_the_definition_gives(serve: Callable[..., Live], tiny_models: TinyModels) -> None:
    live = serve("bert")
    with client(live) as api:
        answer = api.embeddings.create(model="test-model", input=TEXTS)  # it asks for base64
        plain = api.embeddings.create(model="test-model", input=TEXTS, encoding_format="float")
    bert, tokenizer = Bert(tiny_models("bert")), live.runtime.served.tokenizer
    tokens = [tokenizer.tokenize(text, add_special=True, parse_special=True) for text in TEXTS]
    expected = np.array([bert.rows(ids).mean(0) for ids in tokens])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-3)
    np.testing.assert_allclose(vectors(plain), vectors(answer), atol=1e-7)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
    assert answer.model == "test-model"


def test_token_ids_and_dimensions(serve: Callable[..., Live]) -> None:
    live = serve("bert")
    tokenizer = live.runtime.served.tokenizer
    ids = [tokenizer.tokenize(text, add_special=True, parse_special=True) for text in TEXTS]
    with client(live) as api:
        whole = vectors(api.embeddings.create(model="m", input=TEXTS))
        np.testing.assert_allclose(vectors(api.embeddings.create(model="m", input=ids)), whole, atol=1e-6)
        short = vectors(api.embeddings.create(model="m", input=ids[0], dimensions=8))
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            api.embeddings.create(model="m", input="a", dimensions=65)
    cut = whole[0, :8] / np.linalg.norm(whole[0, :8])
    np.testing.assert_allclose(short[0], cut, atol=1e-6)


def test_many_clients_at_once_get_their_own(serve: Callable[..., Live]) -> None:
    with client(serve("bert")) as api, ThreadPoolExecutor(16) as pool:
        texts = [f"{text} {n}" for n in range(16) for text in TEXTS]
        alone = [vectors(api.embeddings.create(model="m", input=text))[0] for text in texts]
        together = list(pool.map(lambda text: vectors(api.embeddings.create(model="m", input=text))[0], texts))
    np.testing.assert_allclose(together, alone, atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "recurrent"])
def test_a_chat_model_embeds_beside_its_chat(serve: Callable[..., Live], name: str) -> None:
    live = serve(name)
    with client(live) as api, ThreadPoolExecutor(4) as pool:
        alone = vectors(api.embeddings.create(model="m", input=TEXTS))
        said = api.completions.create(model="m", prompt="Once", max_tokens=12).choices[0].text
        chats = [pool.submit(api.completions.create, model="m", prompt="Once", max_tokens=12) for _ in range(4)]
        beside = [vectors(api.embeddings.create(model="m", input=TEXTS)) for _ in range(4)]
        assert {chat.result().choices[0].text for chat in chats} == {said}
    for each in beside:
        np.testing.assert_allclose(each, alone, atol=1e-4)
    live.runtime.engine.view().result()


def test_a_reranker_sorts(serve: Callable[..., Live], tiny_models: TinyModels) -> None:
    live = serve("reranker")
    answer = httpx.post(f"{live.url}/v1/rerank", json={"query": "what is a panda?", "documents": TEXTS}).json()
    scores = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    bert, tokenizer = Bert(tiny_models("reranker")), live.runtime.served.tokenizer
    assert live.runtime.served.embeddings is not None
    frame = live.runtime.served.embeddings.frame
    for index, text in enumerate(TEXTS):
        query, document = (
            tokenizer.tokenize(part, add_special=False, parse_special=False) for part in ("what is a panda?", text)
        )
        whole = [*frame.before, *query, *frame.between, *document, *frame.after]
        assert scores[index] == pytest.approx(bert.score(whole), abs=5e-3)


def test_only_what_was_asked_for_is_loaded(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelError, match="only makes embeddings"):
        load(settings(tiny_models("bert"), None))
