"""A site that many tests only read from, made once for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes import FakeBackend, FakeVocab, eos_after, hashed
from tests.server.site import Site, fake_runtime

ENDS_AT = 90
"""Sequences of the shared site end at this length."""


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    """The backend of `site`."""
    return FakeBackend(eos_after(ENDS_AT, hashed(b"abcdefgh ")), n_ctx=256, vocab=FakeVocab(add_bos=True))


@pytest.fixture(scope="module")
def site(backend: FakeBackend) -> Iterator[Site]:
    """The application on a fake backend, without keys."""
    with Site(runtime=fake_runtime(backend)) as made:
        yield made
    backend.verify()
