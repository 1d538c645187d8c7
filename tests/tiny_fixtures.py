"""Tiny models by name, each written once for a test session: `tiny_models("llama")` is the path of a GGUF file.

A conftest makes the fixture visible with `from tests.tiny_fixtures import tiny_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from tests import tiny

WRITERS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "llama": tiny.write_llama,
        "llama-f16": partial(tiny.write_llama, dtype="f16"),
        "bpe": partial(tiny.write_llama, vocab="bpe"),
        "fim": partial(tiny.write_llama, fim=True),
        "swa": tiny.write_swa,
        "recurrent": tiny.write_recurrent,
        "hybrid": tiny.write_hybrid,
        "bert": tiny.write_bert,
        "reranker": tiny.write_reranker,
        "truncated": tiny.write_truncated,
        "not-gguf": tiny.write_not_gguf,
        "future-version": tiny.write_future_version,
        "nan": tiny.write_nan,
    }
)


class TinyModels:
    """The models of WRITERS and "lora" (an adapter for "llama") in `directory`, written at first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, name: str) -> Path:
        """Return the path of model `name`; KeyError when there is no such model."""
        path = self.directory / f"{name}.gguf"
        if path.exists():
            return path
        if name == "lora":
            return tiny.write_lora(path, base=self("llama"))
        return WRITERS[name](path)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """All tiny models of one test session."""
    return TinyModels(tmp_path_factory.mktemp("tiny"))
