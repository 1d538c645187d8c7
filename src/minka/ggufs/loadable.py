"""What libllama does not refuse in a model file, but ends the process over: found in the header before it is loaded.

Sources: the assertions of load_hparams in src/llama-model.cpp, of the vocabulary in src/llama-vocab.cpp, and of the
norms in ggml/src/ggml-cpu/ops.cpp of llama.cpp. Knows no tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from minka.errors import ModelError
from minka.ggufs.layout import ValueType
from minka.ggufs.read import GgufFile, name_text, open_gguf

MAX_LAYERS = 512
MAX_EXPERTS = 1024
_EPSILONS = ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon")
_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_TYPES = "tokenizer.ggml.token_type"
_BYTE = 6


def faults(source: GgufFile) -> Iterator[tuple[str, str]]:
    """Metadata keys with values that end the process, and what is wrong with each."""
    architecture = source.get_str("general.architecture")
    if architecture is not None:
        yield from _layers(source, f"{architecture}.block_count")
        yield from _experts(source, architecture)
        for name in _EPSILONS:
            key = f"{architecture}.attention.{name}"
            value = source.get(key)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                yield key, f"is {value}, must be a number from 0"
    yield from _vocabulary(source)


def require_loadable(path: Path) -> None:
    """Refuse a model that would end the process. What cannot be read at all is left to libllama, which says why.

    Raises:
        ModelError: naming the first fault.
    """
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(open_gguf(path))
        except ModelError:
            return
        for key, what in faults(source):
            raise ModelError(f"cannot load the model {path}: {key} {what}")


def _layers(source: GgufFile, key: str) -> Iterator[tuple[str, str]]:
    n = source.get_int(key)
    if n is not None and not 0 < n <= MAX_LAYERS:
        yield key, f"is {n}, libllama takes 1 to {MAX_LAYERS}"


def _experts(source: GgufFile, architecture: str) -> Iterator[tuple[str, str]]:
    keys = {
        name: f"{architecture}.expert_{name}" for name in ("count", "used_count", "group_count", "group_used_count")
    }
    count, groups, groups_used = (
        source.get_int(keys[name]) or 0 for name in ("count", "group_count", "group_used_count")
    )
    used = _most(source, keys["used_count"])
    if count > MAX_EXPERTS:
        yield keys["count"], f"is {count}, libllama takes at most {MAX_EXPERTS}"
    if used > count or (count and not used):
        yield keys["used_count"], f"is {used} of {count} experts"
    if groups >= max(count, 1) and groups:
        yield keys["group_count"], f"is {groups}, must be less than the {count} experts"
    elif groups > 1 and (count % groups or not 0 < groups_used < groups):
        yield keys["group_used_count"], f"is {groups_used} of {groups} groups of {count} experts"


def _most(source: GgufFile, key: str) -> int:
    """A number, or the largest one where each layer has its own."""
    value = source.get(key)
    numbers = value if isinstance(value, list) else [value]
    return max((n for n in numbers if isinstance(n, int)), default=0)


def _vocabulary(source: GgufFile) -> Iterator[tuple[str, str]]:
    field = source.field(_TOKENS)
    if field is None or field.element is not ValueType.STRING:
        return
    tokens = [token or b"[EMPTY_%d]" % i for i, token in enumerate(source.strings(field))]
    if len(set(tokens)) < len(tokens):
        first: dict[bytes, int] = {}
        second = next(i for i, token in enumerate(tokens) if first.setdefault(token, i) < i)
        yield _TOKENS, f"has the token {name_text(tokens[second])[:60]!r} twice, the second time at {second}"
        return
    types = source.get(_TOKEN_TYPES) if source.get_str("tokenizer.ggml.model") == "bert" else None
    if isinstance(types, list) and _BYTE in types:
        yield _TOKEN_TYPES, "has byte tokens, which a bert tokenizer does not know"
