"""A model's vocabulary as llguidance wants it: a trie of all pieces, and the model's own way to tokenize a text."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer

from minka.grammar.closing import closers
from minka.grammar.marks import is_special
from minka.types import Tokenizer

_SPECIAL = b"\xff"
"""llguidance's mark of a token that no text matches, only its number does."""

_MAX_PIECE = 1_000
"""Bytes of a piece that a grammar may use: llguidance's trie is at most 1,024 deep."""


class Vocabulary:
    """The tokens of a model. Making one takes about 3 ms per 1,000 tokens, so it is made once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        wrapper = _Wrapper(tokenizer, self)
        self.native = LLTokenizer(wrapper, eos_token=sorted(tokenizer.eog) or None)  # type: ignore[arg-type]
        self.closers = closers(wrapper.tokens)
        """Tokens that close JSON."""
        self._longest: dict[bytes, int] | None = None

    def tokens(self, text: str, *, parse_special: bool) -> list[int]:
        """The tokens that stand for exactly this text in the middle of another one."""
        want = text.encode("utf-8", "replace")
        tokens = self._tokenizer.tokenize(text, add_special=False, parse_special=parse_special)
        if self._spells(tokens, want):
            return tokens
        # A SentencePiece vocabulary puts a space in front of a text: here behind a line end, which is cut off again.
        front = self._tokenizer.tokenize("\n", add_special=False, parse_special=False)
        tokens = self._tokenizer.tokenize("\n" + text, add_special=False, parse_special=parse_special)
        if tokens[: len(front)] == front and self._spells(tokens[len(front) :], want):
            return tokens[len(front) :]
        return self._longest_first(want)

    def _spells(self, tokens: Sequence[int], want: bytes) -> bool:
        short = all(len(self._tokenizer.piece(token, special=True)) <= _MAX_PIECE for token in tokens)
        return short and self._tokenizer.detokenize(tokens, special=True) == want

    def _longest_first(self, want: bytes) -> list[int]:
        """The longest piece at each place; bytes that no token has are left out."""
        if self._longest is None:
            pieces = ((self._tokenizer.piece(token, special=False), token) for token in range(self._tokenizer.n_tokens))
            self._longest = {piece: token for piece, token in pieces if 0 < len(piece) <= _MAX_PIECE}
        most = max(map(len, self._longest), default=1)
        tokens: list[int] = []
        at = 0
        while at < len(want):
            ends = range(min(len(want), at + most), at, -1)
            end = next((end for end in ends if want[at:end] in self._longest), at + 1)
            token = self._longest.get(want[at:end])
            tokens += [] if token is None else [token]
            at = end
        return tokens


class _Wrapper:
    """What LLTokenizer asks for: see llguidance's TokenizerWrapper."""

    is_tokenizer_wrapper = True
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.tokens = [_piece(token, tokenizer) for token in range(tokenizer.n_tokens)]
        self.eos_token_id = min(tokenizer.eog, default=None)
        self.bos_token_id = tokenizer.bos if tokenizer.bos >= 0 else None
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.tokens(text, parse_special=False)


def _piece(token: int, tokenizer: Tokenizer) -> bytes:
    piece = tokenizer.piece(token, special=True)
    if len(piece) > _MAX_PIECE:
        return b""  # which no text can contain
    return _SPECIAL + piece if is_special(token, tokenizer) else piece
