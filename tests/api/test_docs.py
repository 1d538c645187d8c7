"""The examples of docs/python.md, run as they stand with the demo model."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SAYS = (
    "Paris",
    "0 ",
    r"\{'name': .*, 'age': ",
    "assistant",
    "",
    r"\(576,\) 0\.9\d 0\.[78]",
    r"\[19556, 905\] Hello world",
)
"""What each example prints, among other things."""


@pytest.mark.model
@pytest.mark.usefixtures("demo_model")
@pytest.mark.parametrize(("code", "says"), list(zip(BLOCKS, SAYS, strict=True)), ids=range(len(SAYS)))
def test_an_example(code: str, says: str) -> None:
    printed = io.StringIO()
    names: dict[str, object] = {"__name__": "docs"}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "python.md", "exec"), names)
    close = getattr(names.get("llm"), "close", None)
    if close is not None:
        close()
    assert printed.getvalue().strip()
    assert re.search(says, printed.getvalue())
