"""The page docs/clients.md: which packages it names, its examples, and the model that they talk to."""

from __future__ import annotations

import re
from pathlib import Path

from tests.clients.scripted import Part

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
CITY = '{"name": "Paris", "sunny": true}'
WEATHER = Part("get_weather", {"city": "Paris"}, "sunny", title=CITY)
"""It calls the examples' tool, and says what they ask for where there is none."""


def requirements(title: str) -> list[str]:
    """What the page's table says of a client."""
    (row,) = re.findall(rf"^\| {re.escape(title)} \| (.+?) \|", PAGE, re.MULTILINE)
    return re.findall(r"`(.+?)`", row)


def example(title: str, language: str) -> str:
    """The page's example of a client."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(block)
