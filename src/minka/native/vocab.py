"""The vocabulary of a loaded model: text to token ids and back.

Thread-safe: libllama only reads here, and ids are checked before C sees them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property

from minka.errors import NativeError, RequestError, UnavailableError
from minka.native.library import Library
from minka.types import FimTokens

_INT32_MAX = 2**31 - 1


class Vocab:
    """Implements `minka.types.Tokenizer` over a llama_vocab."""

    def __init__(self, library: Library, pointer: int) -> None:
        self._fast, self._slow = library.fast, library.slow
        self._vocab: int | None = pointer
        self.n_tokens = int(self._slow.llama_vocab_n_tokens(pointer))
        self.bos = int(self._slow.llama_vocab_bos(pointer))
        self.eos = int(self._slow.llama_vocab_eos(pointer))
        self.add_bos = bool(self._slow.llama_vocab_get_add_bos(pointer))
        self.add_eos = bool(self._slow.llama_vocab_get_add_eos(pointer))
        self.type = int(self._slow.llama_vocab_type(pointer))
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})

    @property
    def pointer(self) -> int:
        """The llama_vocab. Raises UnavailableError when its model was closed: C would read freed memory."""
        if self._vocab is None:
            raise UnavailableError("the model is closed; load it again")
        return self._vocab

    @cached_property
    def eog(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return frozenset(filter(self.is_eog, range(self.n_tokens)))

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Tokens that the model's metadata forbids to generate."""
        count = ctypes.c_int32(0)
        ids = self._slow.llama_vocab_get_suppress_tokens(self.pointer, ctypes.byref(count))
        return tuple(int(ids[i]) for i in range(count.value)) if count.value > 0 else ()

    @cached_property
    def fim(self) -> FimTokens | None:
        """The tokens of fill-in-the-middle prompts; None if one of the three that are needed is missing."""
        names = ("pre", "suf", "mid", "rep", "sep")
        prefix, suffix, middle, repo, separator = (
            int(getattr(self._slow, f"llama_vocab_fim_{name}")(self.pointer)) for name in names
        )
        return FimTokens(prefix, suffix, middle, repo, separator) if min(prefix, suffix, middle) >= 0 else None

    def check(self, token: int) -> int:
        """The token, if it is one. Raises RequestError if it is outside the vocabulary."""
        if not 0 <= token < self.n_tokens:
            raise RequestError(f"token id {token} is outside the vocabulary (0 to {self.n_tokens - 1})")
        return token

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return bool(self._fast.llama_vocab_is_eog(self.pointer, self.check(token)))

    def require_tokenizer(self) -> None:
        """Raises RequestError for a model that has none: libllama would end the process."""
        if not self.type:
            raise RequestError("this model has no tokenizer, so it cannot read or write text")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text. Raises RequestError if the text is too long for libllama (2 GiB)."""
        # A lone surrogate (valid in JSON) has no UTF-8 form; it becomes a question mark rather than an error.
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 2
        if size > _INT32_MAX:
            raise RequestError("the text is longer than 2 GiB")
        self.require_tokenizer()
        buffer = (ctypes.c_int32 * size)()
        n = self._slow.llama_tokenize(self.pointer, raw, len(raw), buffer, size, add_special, parse_special)
        if n < 0:  # more tokens than bytes: rare, and C says how many
            buffer = (ctypes.c_int32 * -n)()
            n = self._slow.llama_tokenize(self.pointer, raw, len(raw), buffer, -n, add_special, parse_special)
        if n < 0:
            raise NativeError(f"libllama could not tokenize a text of {len(raw)} bytes")
        return list(buffer[:n])

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes that a token stands for; empty for a control token unless `special`."""
        known = self._pieces[special]
        piece = known.get(token)
        if piece is None:
            piece = known[token] = self._piece(self.check(token), special)
        return piece

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = self._fast.llama_token_to_piece(self.pointer, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._fast.llama_token_to_piece(self.pointer, token, buffer, len(buffer), 0, special)
        return buffer.raw[: max(n, 0)]

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """The bytes of all pieces, joined."""
        return b"".join([self.piece(token, special=special) for token in tokens])

    def text(self, token: int) -> str:
        """The token's spelling in the vocabulary (`<s>`), not what it stands for; empty for -1."""
        if token < 0:
            return ""
        return bytes(self._slow.llama_vocab_get_text(self.pointer, self.check(token))).decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the model, which is about to be freed."""
        self._vocab = None
