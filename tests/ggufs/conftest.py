"""A small sound model file for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ggufs.files import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf")
