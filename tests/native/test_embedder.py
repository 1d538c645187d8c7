"""Embeddings on libllama, against BERT in numpy: alone and together, in parts, pooled in every way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minka.errors import ModelError, NativeError, NotSupportedError, RequestError
from minka.native.context import Context, TextlessError
from minka.native.embedder import Embedder, choose_pooling, rank_frame
from minka.native.embeddings import Part
from minka.native.model import Model
from minka.native.textless import Textless
from minka.params import ContextParams, ModelParams, SamplingParams
from minka.types import Pooling, Vectors
from tests.native.bert import Bert
from tests.native.conftest import ON_CPU
from tests.tiny_fixtures import TinyModels

POOLED = [Pooling.MEAN, Pooling.CLS, Pooling.LAST]
Made = Callable[..., Embedder]


@pytest.fixture
def embedder(load: Callable[[str], Model]) -> Iterator[Made]:
    """Makes embedders of tiny models."""
    with ExitStack() as made:

        def make(name: str = "bert", pooling: Pooling | None = None, **params: object) -> Embedder:
            model = load(name)
            context = ContextParams(**{"n_ctx": 512, "threads": 1, **params})  # type: ignore[arg-type]
            chosen = pooling or choose_pooling(model, None)
            generates = name not in ("bert", "reranker")
            return made.enter_context(closing(Embedder(model, context, chosen, generates=generates)))

        yield make


def text(seed: int, length: int, low: int = 5, high: int = 200) -> list[int]:
    """Tokens of no text."""
    return [int(token) for token in np.random.default_rng(seed).integers(low, high, length)]


def whole(embedder: Embedder, *texts: Sequence[int]) -> list[Vectors]:
    """The vectors of whole texts, computed together."""
    vectors = embedder.compute([Part(seq, tokens, 0, is_last=True) for seq, tokens in enumerate(texts)])
    assert all(own is not None for own in vectors)
    return [own for own in vectors if own is not None]


def pooled(rows: NDArray[np.floating], pooling: Pooling) -> NDArray[np.float64]:
    chosen = {Pooling.MEAN: rows.mean(0), Pooling.CLS: rows[0], Pooling.LAST: rows[-1]}[pooling]
    return np.asarray(chosen, np.float64)


@pytest.mark.parametrize("pooling", POOLED)
def test_a_text_becomes_the_vector_that_the_definition_gives(
    embedder: Made, tiny_models: TinyModels, pooling: Pooling
) -> None:
    made, bert = embedder(pooling=pooling), Bert(tiny_models("bert"))
    texts = [text(seed, length) for seed, length in enumerate((1, 2, 9, 60, 200))]
    for tokens, own in zip(texts, whole(made, *texts), strict=True):
        assert own.shape == (1, made.width)
        np.testing.assert_allclose(own[0], pooled(bert.rows(tokens), pooling), atol=2e-3)


def test_without_pooling_every_token_has_its_vector(embedder: Made, tiny_models: TinyModels) -> None:
    bert, texts = Bert(tiny_models("bert")), [text(1, 7), text(2, 12)]
    for tokens, own in zip(texts, whole(embedder(pooling=Pooling.NONE), *texts), strict=True):
        np.testing.assert_allclose(own, bert.rows(tokens), atol=2e-3)


def test_a_reranker_gives_the_score_of_its_head(embedder: Made, tiny_models: TinyModels) -> None:
    made, bert = embedder("reranker"), Bert(tiny_models("reranker"))
    assert (made.pooling, made.width) == (Pooling.RANK, 1)
    texts = [text(seed, 5 + seed) for seed in range(4)]
    for tokens, own in zip(texts, whole(made, *texts), strict=True):
        assert own.shape == (1, 1)
        assert float(own[0, 0]) == pytest.approx(bert.score(tokens), abs=2e-3)


@pytest.mark.parametrize("name", ["bert", "llama", "swa", "recurrent", "hybrid"])
@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
@pytest.mark.parametrize(("flash_attn", "rounding"), [("off", 1e-5), ("auto", 1e-4)])
def test_together_as_alone(embedder: Made, name: str, pooling: Pooling, flash_attn: str, rounding: float) -> None:
    """Few tokens are computed by another kernel than many, unless flash attention is off."""
    made = embedder(name, pooling, flash_attn=flash_attn)
    texts = [text(seed, length) for seed, length in enumerate((3, 20, 37, 54)[: made.n_seq_max])]
    together = whole(made, *texts)
    for tokens, own in zip(texts, together, strict=True):
        (alone,) = whole(made, tokens)
        np.testing.assert_allclose(own / np.linalg.norm(own), alone / np.linalg.norm(alone), atol=rounding)


def test_a_text_may_have_any_sequence(embedder: Made) -> None:
    """Also one that is computed alone because it is long."""
    made = embedder(n_ubatch=64)
    for length in (3, 62, 300):
        tokens = text(11, length)
        (expected,) = whole(made, tokens)
        (own,) = made.compute([Part(made.n_seq_max - 1, tokens, 0, is_last=True)])
        np.testing.assert_array_equal(own, expected)


def test_as_many_texts_as_sequences(embedder: Made) -> None:
    made = embedder()
    assert made.n_seq_max == 64
    for length in (1, 2, 8):
        assert len(whole(made, *(text(seed, length) for seed in range(60)))) == 60
    assert len(whole(made, *(text(seed, 8) for seed in range(64)))) == 64


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
@pytest.mark.parametrize("pooling", [*POOLED, Pooling.NONE])
def test_a_text_in_parts_beside_others_as_a_whole(embedder: Made, name: str, pooling: Pooling) -> None:
    made, tokens, other = embedder(name, pooling), text(3, 100), text(4, 20)
    (expected,) = whole(made, tokens)
    first, _ = made.compute([Part(2, tokens[:37], 0, is_last=False), Part(0, other, 0, is_last=True)])
    assert first is None
    assert made.compute([Part(2, tokens[37:99], 37, is_last=False)]) == [None]
    _, last = made.compute([Part(1, other, 0, is_last=True), Part(2, tokens[99:], 99, is_last=True)])
    assert last is not None
    np.testing.assert_allclose(last, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", POOLED)
def test_pooling_of_parts_is_that_of_their_rows(embedder: Made, pooling: Pooling) -> None:
    tokens = text(5, 50)
    (rows,) = whole(embedder("llama", Pooling.NONE), tokens)
    (own,) = whole(embedder("llama", pooling), tokens)
    np.testing.assert_allclose(own[0], pooled(rows, pooling), rtol=1e-5, atol=1e-6)


def test_a_dropped_text_leaves_nothing(embedder: Made) -> None:
    made, tokens = embedder("llama", Pooling.LAST), text(6, 30)
    (expected,) = whole(made, tokens)
    made.compute([Part(0, text(7, 20), 0, is_last=False)])
    made.drop(0)
    (own,) = made.compute([Part(0, tokens, 0, is_last=True)])
    assert own is not None
    np.testing.assert_allclose(own, expected, rtol=1e-5)


def test_a_text_over_a_micro_batch_is_embedded(embedder: Made, tiny_models: TinyModels) -> None:
    made, bert = embedder(n_ubatch=64), Bert(tiny_models("bert"))
    assert made.n_batch == 64
    short, long = text(8, 20), text(9, 300)
    (before,), (own,), (after,) = (whole(made, tokens) for tokens in (short, long, short))
    np.testing.assert_allclose(own[0], bert.rows(long).mean(0), atol=2e-3)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["bert", "reranker", "llama", "recurrent"])
@pytest.mark.parametrize("n_ubatch", [1, 3, 32, 96, 300])
def test_a_micro_batch_may_be_small(embedder: Made, name: str, n_ubatch: int) -> None:
    """libllama aborts the process if there are more sequences than tokens, or not a multiple of tokens."""
    made, tokens = embedder(name, n_ubatch=n_ubatch), text(10, 3)
    (expected,) = whole(embedder(name), tokens)
    vectors: list[Vectors | None] = []
    step = min(n_ubatch, 3) if made.splits else 3
    for at in range(0, 3, step):
        vectors = made.compute([Part(0, tokens[at : at + step], at, is_last=at + step >= 3)])
    assert vectors[0] is not None
    np.testing.assert_allclose(vectors[0], expected, rtol=1e-3, atol=1e-4)


def test_a_cache_grows_to_the_longest_text(embedder: Made) -> None:
    made = embedder("llama", Pooling.MEAN, n_ctx=0, n_ubatch=128)
    assert (made.splits, made.n_input_max, made.n_cells) == (True, 2048, 2048)
    small = embedder("llama", Pooling.MEAN, n_ctx=300)
    assert (small.n_cells, small.n_batch) == (300, 128)
    small.grow(300)
    with pytest.raises(NativeError, match="cannot make room for 301"):
        small.grow(301)


def test_what_libllama_would_not_survive_is_an_error(embedder: Made) -> None:
    bert, llama = embedder(n_ubatch=64), embedder("llama")
    for made, parts, message in (
        (bert, [], "0 tokens"),
        (bert, [Part(0, text(1, 40), 0, is_last=True), Part(1, text(1, 40), 0, is_last=True)], "80 tokens"),
        (bert, [Part(0, text(1, 513), 0, is_last=True)], "513 tokens"),
        (bert, [Part(64, [7], 0, is_last=True)], "text 64"),
        (bert, [Part(-1, [7], 0, is_last=True)], "text -1"),
        (bert, [Part(0, [7], 0, is_last=False)], "as a whole"),
        (bert, [Part(0, [7], 3, is_last=True)], "position 3"),
        (bert, [Part(0, [7], 0, is_last=True), Part(0, [8], 1, is_last=True)], "one part"),
        (bert, [Part(0, [7], 0, is_last=True), Part(1, [], 0, is_last=True)], "must have"),
        (llama, [Part(0, text(1, 513), 0, is_last=False)], "513 tokens"),
    ):
        with pytest.raises(NativeError, match=message):
            made.compute(parts)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        bert.compute([Part(0, [10**6], 0, is_last=True)])
    with pytest.raises(NativeError):
        llama.compute([Part(0, text(1, 500), 0, is_last=False)]) and llama.compute(
            [Part(0, text(1, 20), 500, is_last=True)]
        )
    assert len(whole(bert, [7])) == 1


def test_pooling_is_what_is_asked_for_else_the_model_s_else_the_mean(load: Callable[[str], Model]) -> None:
    assert choose_pooling(load("bert"), None) is Pooling.MEAN
    assert choose_pooling(load("bert"), "cls") is Pooling.CLS
    assert choose_pooling(load("reranker"), None) is Pooling.RANK
    assert choose_pooling(load("llama"), None) is Pooling.MEAN


def test_query_and_document_stand_between_the_model_s_marks(load: Callable[[str], Model]) -> None:
    vocab = load("reranker").vocab
    frame = rank_frame(load("reranker"))
    assert frame.template is None
    assert frame.before == (vocab.bos,)
    assert set(frame.between) | set(frame.after) <= {vocab.eos, 3}


def test_warm_up_opens_what_the_first_text_needs(embedder: Made) -> None:
    made, cold = embedder(), embedder()
    made.warm_up()
    np.testing.assert_array_equal(whole(made, text(1, 9))[0], whole(cold, text(1, 9))[0])


def test_a_model_that_only_embeds_is_told_from_others(load: Callable[[str], Model]) -> None:
    with pytest.raises(TextlessError, match="only makes embeddings"):
        Context(load("bert"), ContextParams(n_ctx=128))
    assert issubclass(TextlessError, ModelError)


def test_what_stands_for_its_text_side_is_empty_and_refuses(load: Callable[[str], Model]) -> None:
    empty = Textless(load("bert").vocab, n_seq_max=2, n_ctx=64)
    empty.warm_up()
    empty.discard()
    empty.cut(0, 0)
    assert (empty.length(0), empty.floor(1), empty.sliceable) == (0, 0, False)
    with pytest.raises(NotSupportedError, match="cannot generate text"):
        empty.sampler(SamplingParams(), 0)
    with pytest.raises(NotSupportedError):
        empty.decode()


# -- a real model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_bert() -> Iterator[Model]:
    """A real embedding model."""
    if not (name := os.environ.get("MINKA_BERT")):
        pytest.skip("set MINKA_BERT to the GGUF of a sentence embedding model such as all-MiniLM-L6-v2")
    with closing(Model.load(Path(name), ON_CPU)) as model:
        yield model


def test_meaning_decides_what_is_close(real_bert: Model) -> None:
    texts = ("A cat sits on the mat.", "The kitten rests on a rug.", "Stock markets fell sharply today.")
    tokens = [real_bert.vocab.tokenize(each, add_special=True, parse_special=True) for each in texts]
    pooling = choose_pooling(real_bert, None)
    with closing(Embedder(real_bert, ContextParams(threads=2), pooling, generates=False)) as made:
        cat, kitten, stocks = (own[0] / np.linalg.norm(own) for own in whole(made, *tokens))
    assert cat @ kitten > 0.5
    assert cat @ stocks < 0.2


@pytest.mark.model
def test_the_demo_model_embeds_beside_a_context_that_generates(demo_model: Path) -> None:
    with closing(Model.load(demo_model, ModelParams())) as model:
        texts = ("A cat sits on the mat.", "The kitten rests on a rug.", "def f(x): return x + 1")
        tokens = [model.vocab.tokenize(each, add_special=True, parse_special=True) for each in texts]
        params = ContextParams(n_ctx=512, parallel=1, threads=2)
        with closing(Context(model, params)), closing(Embedder(model, params, Pooling.MEAN, generates=True)) as made:
            cat, kitten, code = (own[0] / np.linalg.norm(own) for own in whole(made, *tokens))
    assert cat @ kitten > cat @ code
