"""Edits to the parts of a vocabulary that people change most: special tokens and chat templates.

Turns names, token texts and templates into metadata edits; knows neither Jinja nor how a tokenizer works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gguf import Keys

from minka.errors import ModelError, UsageError
from minka.ggufs.layout import ValueType
from minka.ggufs.read import GgufFile
from minka.ggufs.write import NewValue

CHAT_TEMPLATE = "tokenizer.chat_template"
CHAT_TEMPLATES = "tokenizer.chat_templates"
TOKENS = "tokenizer.ggml.tokens"

Template = str | Sequence[Mapping[str, object]]
"""One chat template, or named ones as `{"name": ..., "template": ...}`."""


def special_token_keys() -> dict[str, str]:
    """Names of special tokens (`bos`, `eos`, `unknown`, ...) and the key that holds the id of each."""
    keys = (value for name, value in vars(Keys.Tokenizer).items() if not name.startswith("_"))
    return {
        key.rpartition(".")[2].removesuffix("_token_id"): key
        for key in keys
        if isinstance(key, str) and key.endswith("_token_id")
    }


def special_token(source: GgufFile, name: str, token: str | int) -> tuple[str, NewValue]:
    """The edit that makes `token` (its text, or its id) the special token `name`.

    Raises:
        UsageError: no such name, no such token, or several tokens with that text.
        ModelError: the file has no vocabulary.
    """
    key = special_token_keys().get(name)
    if key is None:
        raise UsageError(f"unknown special token {name!r}; known are {', '.join(sorted(special_token_keys()))}")
    field = source.field(TOKENS)
    if field is None or field.element is not ValueType.STRING:
        raise ModelError(f"{source.path} has no list of tokens ({TOKENS})")
    if isinstance(token, int):
        if not 0 <= token < field.count:
            raise UsageError(f"token id {token} is not within the {field.count} tokens of {source.path}")
        return key, NewValue(ValueType.UINT32, token)
    ids = [i for i, raw in enumerate(source.strings(field)) if raw == token.encode("utf-8", "surrogateescape")]
    if not ids:
        raise UsageError(f"{source.path} has no token {token!r}")
    if len(ids) > 1:
        raise UsageError(f"token {token!r} has the ids {', '.join(map(str, ids))}; choose one by its id")
    return key, NewValue(ValueType.UINT32, ids[0])


def read_text(path: Path) -> str:
    """The text of a file; raises UsageError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def parse_template(words: str) -> Template:
    """A template as it is, or, when the words are a JSON list, the named templates in it.

    Raises:
        UsageError: the words begin like a list and are none.
    """
    if not words.lstrip().startswith("["):
        return words
    return _named(_json(words, "the list of chat templates"), "the list of chat templates")


def template_of_config(path: Path) -> Template:
    """The chat template (or templates) in a `tokenizer_config.json`; raises UsageError if there is none."""
    config = _json(read_text(path), str(path))
    found = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(found, str):
        return found
    return _named(found, f"chat_template in {path}")


def _named(value: object, what: str) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(f'{what} is neither a text nor a list of entries {{"name": ..., "template": ...}}')
    return value


def _json(words: str, what: str) -> object:
    try:
        value: object = json.loads(words)
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is no JSON: {error}") from None
    return value


def chat_template_edits(source: GgufFile, template: Template) -> dict[str, NewValue | None]:
    """The edits that replace all chat templates of a file by one, or by a list of `{"name", "template"}`.

    The entry named `default` is the one used when none is asked for; others are stored under their own keys.

    Raises:
        UsageError: an entry of the list has no name or no template.
    """
    edits: dict[str, NewValue | None] = {
        field.key: None for field in source.fields if field.key.startswith(CHAT_TEMPLATE)
    }
    if isinstance(template, str):
        return edits | {CHAT_TEMPLATE: NewValue(ValueType.STRING, template)}
    names = []
    for entry in template:
        name, words = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(words, str) or not name:
            raise UsageError('a list of chat templates needs entries {"name": ..., "template": ...}')
        safe = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        key = CHAT_TEMPLATE if safe == "default" else f"{CHAT_TEMPLATE}.{safe}"
        edits[key] = NewValue(ValueType.STRING, words)
        names += [safe] * (safe != "default")
    if names:
        edits[CHAT_TEMPLATES] = NewValue(ValueType.ARRAY, names, ValueType.STRING)
    return edits
