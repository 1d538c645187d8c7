"""Bytes as tokens, and scripts that say which token comes next: what the fake backend stands on."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence

from minka.errors import RequestError

BOS, EOS, CONTROL = 256, 257, 258
SPECIALS = ("<s>", "</s>", "<|control|>")

Script = Callable[[Sequence[int]], int]
"""The most likely next token after a sequence: a pure function of its tokens."""


class FakeVocab:
    """`minka.types.Tokenizer`: one token a byte, three control tokens, and `pieces` of any bytes behind them."""

    def __init__(self, pieces: Sequence[bytes] = (), *, add_bos: bool = False) -> None:
        self._pieces = [bytes([value]) for value in range(256)] + [b""] * len(SPECIALS) + list(pieces)
        self._longest_first = sorted((p for p in pieces if p), key=len, reverse=True)
        self.n_tokens = len(self._pieces)
        self.bos, self.eos = BOS, EOS
        self.add_bos, self.add_eos = add_bos, False
        self.eog = frozenset({EOS})

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw, tokens = text.encode("utf-8", "replace"), [BOS] if add_special and self.add_bos else []
        known = {spelling.encode(): BOS + i for i, spelling in enumerate(SPECIALS)} if parse_special else {}
        known |= {piece: self._pieces.index(piece, 256) for piece in self._longest_first}
        at = 0
        while at < len(raw):
            found = next((piece for piece in known if raw.startswith(piece, at)), raw[at : at + 1])
            tokens.append(known.get(found, found[0]))
            at += len(found)
        return tokens

    def piece(self, token: int, *, special: bool) -> bytes:
        self._check(token)
        return SPECIALS[token - BOS].encode() if special and BOS <= token <= CONTROL else self._pieces[token]

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        return b"".join(self.piece(token, special=special) for token in tokens)

    def text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        return token == EOS

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise RequestError(f"token id {token} is outside the vocabulary (0 to {self.n_tokens - 1})")


def tokens_of(text: str | bytes) -> tuple[int, ...]:
    """The byte tokens of a text."""
    return tuple(text.encode() if isinstance(text, str) else text)


def digest(tokens: Sequence[int], salt: int = 0) -> int:
    """A number that depends on every token and its place."""
    return zlib.crc32(array("i", tokens).tobytes(), salt)


def hashed(alphabet: Sequence[int] = b"abcdefghij klmno\n", *, salt: int = 0) -> Script:
    """Tokens of `alphabet`, each chosen by all tokens before it: one wrong token in a sequence changes all later."""
    return lambda tokens: alphabet[digest(tokens, salt) % len(alphabet)]


def scripted(texts: Mapping[str, str | Sequence[int]], otherwise: Script | None = None) -> Script:
    """After each prompt its continuation (a text or tokens), then EOS. Other sequences follow `otherwise`."""
    rest = otherwise or hashed()
    pairs = [(tokens_of(p), tokens_of(c) if isinstance(c, str) else tuple(c)) for p, c in texts.items()]

    def script(tokens: Sequence[int]) -> int:
        for prompt, continuation in pairs:
            done = len(tokens) - len(prompt)
            if 0 <= done <= len(continuation) and tuple(tokens) == prompt + continuation[:done]:
                return (*continuation, EOS)[done]
        return rest(tokens)

    return script


def eos_after(n: int, script: Script | None = None) -> Script:
    """EOS once the sequence holds `n` tokens, `script` before."""
    before = script or hashed()
    return lambda tokens: EOS if len(tokens) >= n else before(tokens)
