"""What the documentation promises: the architecture page names functions that exist, and the README's examples run."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEP = re.compile(r"\b([a-z_]+(?:/[a-z_]+)*)\.py:([A-Za-z_.]+)")


def steps() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return STEP.findall(page[page.index("## One request") :])


@pytest.mark.parametrize(("file", "name"), steps())
def test_the_request_path_names_what_exists(file: str, name: str) -> None:
    assert (ROOT / "src" / "minka" / f"{file}.py").is_file()
    attrgetter(name)(import_module("minka." + file.replace("/", ".")))


def test_the_page_shows_a_path() -> None:
    assert len(steps()) > 12


def test_all_files_of_the_house_are_in_the_layout() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = page[page.index("src/minka/\n") : page.index("## One request")]
    for path in (ROOT / "src" / "minka").iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert f"  {path.name}/" in layout, f"{path.name}/ is not in docs/architecture.md"
    for path in (ROOT / "src" / "minka" / "engine").glob("*.py"):
        assert path.stem == "__init__" or re.search(rf"\b{path.stem}\b", layout), f"engine/{path.name} is not there"


PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as they are made on GitHub."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in re.findall(r"\]\(((?!https?:)[^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not fragment or fragment in anchors(path), f"{page.name} links to {target}#{fragment}"


def test_every_page_is_one_link_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(((?!https?:)[^)#]+)", readme)}
    linked.discard(ROOT / "docs")  # the folder itself is no list of what is in it
    lost = [page.name for page in PAGES[1:] if page not in linked and page.parent not in linked]
    assert lost == []
