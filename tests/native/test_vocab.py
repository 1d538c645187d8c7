from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minka.errors import RequestError, UnavailableError
from minka.native.model import Model
from minka.native.vocab import Vocab
from minka.params import ModelParams
from tests.tiny_fixtures import TinyModels

Load = Callable[[str], Model]
KINDS = ["llama", "bpe"]


@pytest.fixture(scope="module", params=KINDS)
def vocab(request: pytest.FixtureRequest, load: Load) -> Vocab:
    return load(request.param).vocab


def back(vocab: Vocab, text: str) -> str:
    tokens = vocab.tokenize(text, add_special=False, parse_special=False)
    return vocab.detokenize(tokens, special=False).decode()


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\u2581")))
def test_text_comes_back(vocab: Vocab, text: str) -> None:
    assert back(vocab, text) == text


@pytest.mark.parametrize(
    "text", ["", " ", "🤖 👩‍👩‍👧 🇵🇪", "a\0b", "\n\n\t", "naïve 東京", "x" * 20_000, "<|im_start|>user</s>"]
)
def test_these_texts_come_back(vocab: Vocab, text: str) -> None:
    assert back(vocab, text) == text


def test_lone_surrogates_become_question_marks(vocab: Vocab) -> None:
    assert back(vocab, "a\ud83e b\udd16") == "a? b?"


def test_no_text_is_no_tokens_but_the_special_ones(load: Load) -> None:
    spm, bpe = (load(kind).vocab for kind in KINDS)
    assert bpe.tokenize("", add_special=False, parse_special=True) == []
    assert spm.tokenize("", add_special=False, parse_special=True) == []
    assert spm.tokenize("", add_special=True, parse_special=True) == [spm.bos]
    assert bpe.tokenize("", add_special=True, parse_special=True) == []


def test_special_tokens(load: Load) -> None:
    spm, bpe = (load(kind).vocab for kind in KINDS)
    assert (spm.bos, spm.eos, spm.add_bos, spm.add_eos) == (1, 2, True, False)
    assert bpe.bos == bpe.eos
    assert not bpe.add_bos
    assert spm.tokenize("x", add_special=True, parse_special=True)[0] == spm.bos
    for one in (spm, bpe):
        assert one.eos in one.eog
        assert one.is_eog(one.eos)
        assert len(one.eog) == 2, "the end of text and the end of a turn"
        assert not one.is_eog(300)
        assert one.suppressed == ()


def test_spellings_of_special_tokens_count_only_where_they_may(vocab: Vocab) -> None:
    (marker,) = vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    assert len(vocab.tokenize("<|im_start|>", add_special=False, parse_special=False)) > 1
    assert vocab.text(marker) == "<|im_start|>"
    assert vocab.piece(marker, special=True) == b"<|im_start|>"
    assert vocab.piece(marker, special=False) == b""
    assert vocab.detokenize([marker, marker], special=True) == b"<|im_start|><|im_start|>"


def test_bytes_of_a_character_are_pieces_of_their_own(vocab: Vocab) -> None:
    tokens = vocab.tokenize("🤖", add_special=False, parse_special=False)
    assert [vocab.piece(token, special=False) for token in tokens] == [bytes([byte]) for byte in "🤖".encode()]


def test_every_token_has_a_piece_and_a_spelling(vocab: Vocab) -> None:
    for token in range(vocab.n_tokens):
        assert isinstance(vocab.text(token), str)
        assert vocab.piece(token, special=True) == vocab.piece(token, special=True)


@pytest.mark.parametrize("bad", [-1, -(2**31), 512, 2**31 - 1, 2**31, 2**64])
def test_ids_outside_the_vocabulary_never_reach_c(vocab: Vocab, bad: int) -> None:
    with pytest.raises(RequestError, match=r"outside the vocabulary \(0 to 511\)"):
        vocab.piece(bad, special=False)
    with pytest.raises(RequestError):
        vocab.detokenize([300, bad], special=True)
    with pytest.raises(RequestError):
        vocab.check(bad)
    with pytest.raises(RequestError):
        vocab.is_eog(bad)
    if bad < 0:
        assert vocab.text(bad) == "", "a role that the vocabulary has no token for"
    else:
        with pytest.raises(RequestError):
            vocab.text(bad)


def test_many_threads_may_tokenize(vocab: Vocab) -> None:
    texts = [f"text number {i} 東京 " * 50 for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: back(vocab, text), texts)) == texts


def test_a_closed_model_has_no_vocabulary(tiny_models: TinyModels) -> None:
    model = Model.load(tiny_models("llama"), ModelParams(n_gpu_layers=0))
    vocab = model.vocab
    model.close()
    for use in (
        lambda: vocab.tokenize("a", add_special=True, parse_special=True),
        lambda: vocab.piece(300, special=True),
        lambda: vocab.text(1),
        lambda: vocab.is_eog(1),
        lambda: vocab.eog,
        lambda: vocab.suppressed,
        lambda: vocab.fim,
    ):
        with pytest.raises(UnavailableError, match="the model is closed"):
            use()
