"""What LLM and AsyncLLM have in common: a loaded model, tokens and text, the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minka.api.settings import Adapter, keyword_settings
from minka.protocols.body import check_token
from minka.protocols.served import Served
from minka.runtime import load


class LoadedModel:
    """A model in this process, with an engine of its own."""

    def __init__(self, model: str | Path | None = None, *, lora: Sequence[Adapter] = (), **parameters: object) -> None:
        """Load a model: a GGUF file, or what `hf_repo="user/repo"` names, or the demo model if it is installed. Blocks.

        `parameters` are those of docs/parameters.md by the names in its first column: how the model is loaded
        (`n_gpu_layers`, ...), its context (`n_ctx`, `parallel`, `threads`, ...), the prefix cache (`cache_ram`, ...),
        the chat template, embeddings, and defaults of sampling and generation. `lora` are adapters: files, or pairs of
        a file and a factor.

        Raises UsageError for a parameter that does not exist or is out of range, and ModelError for a model that cannot
        be used.
        """
        self._runtime = load(keyword_settings(model, parameters, lora))
        self._process = os.getpid()

    @property
    def n_ctx(self) -> int:
        """The most tokens of a prompt and its completion together."""
        return self._served.n_ctx

    @property
    def _served(self) -> Served:
        return self._runtime.served

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text, with BOS and EOS where the vocabulary wants them unless `add_special` is false.

        `parse_special`: spellings of special tokens become those tokens.
        """
        return self._served.tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of some tokens; `special`: control tokens are written as text. Raises RequestError for a bad id."""
        checked = [check_token(token, self._served.tokenizer, "tokens") for token in tokens]
        return self._served.tokenizer.detokenize(checked, special=special).decode("utf-8", "replace")

    def close(self) -> None:
        """End all that runs and free the model. Idempotent. In a fork of the process that made it, it does nothing."""
        if self._process == os.getpid():
            self._runtime.close()
