"""Tags of a model's format inside a grammar: `<tool_call>` is one special token for one vocabulary, text for another.

A grammar is written before a vocabulary is known, so it holds a placeholder, and `spell` puts the real thing in.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from minka.types import Tokenizer

_PLACEHOLDER = re.compile(r"<(mark|until):([0-9a-f,]+)>")


def mark(text: str) -> str:
    """A rule body that matches a tag: its special tokens where the vocabulary has them, text for the rest of it."""
    return f"<mark:{text.encode().hex()}>"


def until(*tags: str) -> str:
    """A rule body that matches any text up to the first of the tags, with the tag."""
    return f"<until:{','.join(tag.encode().hex() for tag in tags)}>"


def literal(text: str) -> str:
    """A rule body that matches exactly this text; never a special token."""
    if not text:
        return '""'
    # < is written as an escape, so that no text can be taken for a placeholder.
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c").replace("\x7f", "\\u007f")


def spell(source: str, tokenizer: Tokenizer) -> str:
    """The grammar with the placeholders replaced by what they are in this vocabulary."""

    def replace(found: re.Match[str]) -> str:
        texts = [bytes.fromhex(part).decode("utf-8", "replace") for part in found[2].split(",")]
        if found[1] == "mark":
            return "(" + " | ".join(_spelled(_parts(text, tokenizer)) for text in texts) + ")"
        return _until(texts, tokenizer)

    return _PLACEHOLDER.sub(replace, source)


class _Part(NamedTuple):
    """A piece of a tag: a special token, or text (`token` is -1)."""

    token: int
    text: str


def _parts(text: str, tokenizer: Tokenizer) -> list[_Part]:
    parts: list[_Part] = []
    plain = b""
    for token in tokenizer.tokenize(text, add_special=False, parse_special=True):
        if not is_special(token, tokenizer):
            plain += tokenizer.piece(token, special=False)
            continue
        if plain:
            parts.append(_Part(-1, plain.decode("utf-8", "replace")))
        parts.append(_Part(token, ""))
        plain = b""
    if len(parts) == 0:
        return [_Part(-1, text)]
    return [*parts, _Part(-1, plain.decode("utf-8", "replace"))] if plain else parts


def _spelled(parts: list[_Part]) -> str:
    return " ".join(f"<[{part.token}]>" if part.token >= 0 else literal(part.text) for part in parts)


def _until(texts: list[str], tokenizer: Tokenizer) -> str:
    """A grammar of its own. Where a tag is a special token, its letters end the text as well as the token does."""
    lines = ["TEXT: /(?s:.*)/"]
    options: list[str] = []
    for index, text in enumerate(texts):
        lines.append(f"spelled{index}[lazy]: /(?s:.*){regex_of(text)}/")
        options.append(f"spelled{index}")
        parts = _parts(text, tokenizer)
        first = next((i for i, part in enumerate(parts) if part.token >= 0), None)
        if first is not None:
            options.append(f"TEXT {_spelled(parts[first:])}")
            options.append(_spelled(parts[first:]))
    return "%lark {\nstart: " + " | ".join(options) + "\n" + "\n".join(lines) + "\n}"


def regex_of(text: str) -> str:
    """A regular expression for exactly this text, which may stand between the slashes of a Lark terminal."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def is_special(token: int, tokenizer: Tokenizer) -> bool:
    """Whether a token is no part of a text: it ends it, or its spelling is hidden."""
    return tokenizer.is_eog(token) or (
        not tokenizer.piece(token, special=False) and bool(tokenizer.piece(token, special=True))
    )
