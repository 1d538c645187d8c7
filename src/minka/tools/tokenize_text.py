"""A text as tokens, with nothing of the model in memory but its vocabulary.

Knows no command line. Texts are bytes, because a tokenizer is asked about exactly what is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from minka.hub import locate
from minka.native.model import Model
from minka.native.placement import Placement
from minka.native.raw import tokenize as native_tokenize
from minka.params import ModelParams

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
_MEANING = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token and the bytes that it stands for, control tokens by their names."""

    id: int
    piece: bytes


class TextTokenizer:
    """The tokenizer of a model. Close it, or use it as a context manager."""

    def __init__(self, model: str | Path | ModelParams) -> None:
        """Load a vocabulary. Raises ModelError if the file has none."""
        params = model if isinstance(model, ModelParams) else ModelParams(model=str(model))
        self._model = Model.load(locate(params).path, params, placement=Placement(weights="skip"))

    def __enter__(self) -> TextTokenizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the vocabulary. Idempotent."""
        self._model.close()

    def __call__(self, text: bytes | str, *, bos: bool = True, parse_special: bool = True) -> tuple[TextToken, ...]:
        """The tokens of a text. `bos` False leaves out those that the model wants around a text; `parse_special` reads
        the names of control tokens as those tokens. Raises RequestError for a text over 2 GiB.
        """
        vocab = self._model.vocab
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        ids = native_tokenize(vocab, raw, add_special=bos and vocab.add_bos, parse_special=parse_special)
        return tuple(TextToken(int(token), vocab.piece(int(token), special=True)) for token in ids)


def tokenize(
    text: bytes | str, model: str | Path | ModelParams, *, bos: bool = True, parse_special: bool = True
) -> tuple[TextToken, ...]:
    """The tokens of one text, as `TextTokenizer` gives them. Raises ModelError and RequestError."""
    with TextTokenizer(model) as tokenizer:
        return tokenizer(text, bos=bos, parse_special=parse_special)


def unescape(raw: bytes) -> bytes:
    """Bytes with \\n, \\r, \\t, \\', \\", \\\\ and \\xHH (a byte) processed; other backslashes stay."""

    def meaning(match: re.Match[bytes]) -> bytes:
        return _MEANING[match[2]] if match[2] else bytes([int(match[1], 16)])

    return _ESCAPE.sub(meaning, raw)
