from __future__ import annotations

from pathlib import Path

import pytest

import minka.tools


@pytest.mark.parametrize("name", minka.tools.__all__)
def test_every_public_name_is_there_and_no_module_has_it(name: str) -> None:
    assert getattr(minka.tools, name).__name__ == name
    assert not (Path(minka.tools.__file__).parent / f"{name}.py").exists()


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = minka.tools.nothing_like_it
