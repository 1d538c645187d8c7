"""Minka: serve, chat with and prepare GGUF models; the llama.cpp tool layer in Python.

Importing the package loads nothing: no model library, no web framework. What it exports comes at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minka.version import VERSION

if TYPE_CHECKING:
    from minka.api import LLM, AsyncLLM, CompletionOutput, EmbeddingOutput, RequestOutput, SamplingParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "EmbeddingOutput", "RequestOutput", "SamplingParams", "__version__"]

__version__ = VERSION


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minka import api

    return getattr(api, name)
