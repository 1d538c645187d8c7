"""Models of the Python API on fake backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import minka.api.model
from minka import LLM
from tests.fakes import FakeBackend, FakeVocab, eos_after, hashed
from tests.server.site import fake_runtime


@pytest.fixture
def backend(fake_backend: Callable[..., FakeBackend]) -> FakeBackend:
    """Its texts end at 60 tokens."""
    return fake_backend(script=eos_after(60, hashed(b"abcdefgh ")), n_ctx=512, vocab=FakeVocab(add_bos=True))


@pytest.fixture
def loads(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded is the fake backend, with room for as many waiting jobs as the API's own settings have."""
    monkeypatch.setattr(minka.api.model, "load", lambda _settings: fake_runtime(backend, queue_size=2**20))


@pytest.fixture
def llm(loads: None) -> Iterator[LLM]:
    with LLM("fake.gguf") as made:
        yield made
