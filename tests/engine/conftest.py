from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from minka.engine.memory import MemoryConfig
from minka.types import Constraints
from tests.engine.rig import Rig
from tests.fakes import FakeBackend


@pytest.fixture(params=["unified", "split"])
def unified(request: pytest.FixtureRequest) -> bool:
    """Both layouts of the KV cache."""
    return bool(request.param == "unified")


@pytest.fixture
def rig(unified: bool) -> Iterator[Callable[..., Rig]]:
    """Makes rigs over a `FakeBackend` of the layout; at the end of the test the backends are verified."""
    with ExitStack() as rigs:

        def make(
            *,
            max_gap: float = 0.2,
            kept: MemoryConfig | None = None,
            shifts: bool = False,
            deterministic: bool = False,
            constraints: Constraints | None = None,
            **options: object,
        ) -> Rig:
            options = {"unified": unified, **options}
            backend = FakeBackend(**options)  # type: ignore[arg-type]
            return rigs.enter_context(
                Rig(
                    backend,
                    max_gap=max_gap,
                    kept=kept,
                    shifts=shifts,
                    deterministic=deterministic,
                    constraints=constraints,
                )
            )

        yield make
