from __future__ import annotations

from pathlib import Path

import pytest

from minka.errors import ModelError
from minka.ggufs.read import open_gguf
from minka.ggufs.write import encode_header, records
from minka.native.model import Model
from minka.params import ModelParams
from minka.tools import TextTokenizer, tokenize
from minka.tools.tokenize_text import unescape
from tests.tiny_fixtures import TinyModels


@pytest.fixture
def llama(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


def test_tokens_are_those_of_the_whole_model(llama: Path) -> None:
    model = Model.load(llama, ModelParams(n_gpu_layers=0))
    try:
        expected = model.vocab.tokenize("Once upon <|im_start|> é", add_special=True, parse_special=True)
    finally:
        model.close()
    assert [token.id for token in tokenize("Once upon <|im_start|> é", llama)] == expected


def test_pieces_are_the_text(llama: Path) -> None:
    tokens = tokenize("Once upon", llama, bos=False)
    assert b"".join(token.piece for token in tokens) == b"Once upon"
    assert tokenize("Once", llama)[0].piece == b"<s>"


def test_special_tokens_are_read_by_their_names_or_not(llama: Path) -> None:
    with TextTokenizer(llama) as tokenizer:
        assert len(tokenizer("<|im_start|>", bos=False)) == 1
        assert len(tokenizer("<|im_start|>", bos=False, parse_special=False)) > 1


def test_bytes_need_not_be_utf8(llama: Path) -> None:
    assert b"".join(token.piece for token in tokenize(b"a\xffb", llama, bos=False)) == b"a\xffb"


def test_a_file_with_nothing_but_a_vocabulary_is_enough(tiny_models: TinyModels, tmp_path: Path) -> None:
    bare = tmp_path / "vocab.gguf"
    with open_gguf(tiny_models("llama")) as source:
        bare.write_bytes(encode_header(list(records(source)), [], source.alignment, source.order))
    assert tokenize("Once upon", bare) == tokenize("Once upon", tiny_models("llama"))
    with pytest.raises(ModelError):
        tokenize("Once", tiny_models("not-gguf"))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (rb"a\nb\t\r", b"a\nb\t\r"),
        (rb"\\n", rb"\n"),
        (rb"\x41\xe9\xzz", b"A\xe9\\xzz"),
        (rb"\q\'\"", b"\\q'\""),
        (b"\xff\\", b"\xff\\"),
    ],
)
def test_unescape(raw: bytes, expected: bytes) -> None:
    assert unescape(raw) == expected
