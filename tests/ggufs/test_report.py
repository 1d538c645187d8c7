from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from minka.errors import ModelError, UsageError
from minka.ggufs.read import open_gguf
from minka.ggufs.report import build_report, write_report
from minka.ggufs.split import SplitRule, split
from tests.ggufs.files import Raw, text, u32, write_model, write_raw

VOID = {"meta", "rect", "br"}


class _Page(HTMLParser):
    """Checks that tags are balanced; collects text, bars and everything that would load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.bars: list[list[float]] = []
        self.loaded: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loaded += [tag] * (tag in ("script", "link", "img", "iframe") or "src" in values or "href" in values)
        if tag == "svg" and values.get("role") == "img":
            self.bars.append([])
        if tag == "rect" and values.get("class") != "gap" and self.bars and "aria-hidden" not in values:
            width = values.get("width") or ""
            if width.endswith("%"):
                self.bars[-1].append(float(width[:-1]))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def _page(path: Path) -> tuple[str, _Page]:
    with open_gguf(path) as source:
        page = build_report([source])
    return page, _Page(page.replace('<meta charset="utf-8">', "").replace("<!doctype html>", "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', ""))  # fmt: skip


def test_the_page_stands_alone_and_shows_everything(model: Path) -> None:
    page, parsed = _page(model)
    assert parsed.loaded == []
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    with open_gguf(model) as source:
        for field in source.fields:
            assert field.key in parsed.text
        for tensor in source.tensors:
            assert tensor.name in parsed.text


def test_bars_stand_for_shares(tmp_path: Path) -> None:
    tensors = [
        Raw("token_embd.weight", (64,), 0, b"\0" * 256),
        Raw("blk.0.a.weight", (32,), 0, b"\0" * 128),
        Raw("blk.0.b.weight", (128,), 1, b"\0" * 256),
    ]
    _, parsed = _page(write_raw(tmp_path / "m.gguf", tensors, [text("general.architecture", "x")]))
    whole, embedding, layer, *roles = parsed.bars
    assert whole == pytest.approx([60, 40])
    assert embedding == pytest.approx([100 * 256 / 384], abs=0.001)
    assert layer == pytest.approx([100 * 128 / 384, 100 * 256 / 384], abs=0.001)
    assert sorted(roles) == [pytest.approx([50]), pytest.approx([100]), pytest.approx([100])]


def test_what_a_file_says_cannot_become_markup(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    path = write_raw(
        tmp_path / "m.gguf",
        [Raw(evil, (1,), 0, b"\0" * 4)],
        [text("general.name", evil), text(evil, evil + "\n" * 9), text("general.architecture", evil)],
    )
    page, parsed = _page(path)
    assert "<script" not in page
    assert evil in parsed.text


def test_layers_come_by_number_between_embedding_and_output(tmp_path: Path) -> None:
    names = ("output.weight", "blk.10.a", "blk.2.a", "token_embd.weight", "blk.0.a")
    path = write_raw(tmp_path / "m.gguf", [Raw(name, (1,), 0, b"\0" * 4) for name in names])
    page, _ = _page(path)
    layers = re.findall(r'scope="row">([^<]+)<', page)[:5]
    assert layers == ["token_embd", "blk.0", "blk.2", "blk.10", "output"]


def test_names_that_are_nearly_those_of_layers(tmp_path: Path) -> None:
    names = ("blk.²", "blk.²x.a", "blk." + "9" * 5000 + ".a", "blk.3.a")
    page, _ = _page(write_raw(tmp_path / "m.gguf", [Raw(name, (1,), 0, b"\0" * 4) for name in names]))
    assert re.findall(r'scope="row">([^<]+)<', page)[:2] == ["blk", "blk.3"]


def test_more_types_than_colours_and_none_at_all(tmp_path: Path) -> None:
    tensors = [Raw(f"t{n}", (256,), n, b"\0" * 2048) for n in (0, 1, 24, 25, 26, 27, 28, 30, 77, 78)]
    page, parsed = _page(write_raw(tmp_path / "m.gguf", tensors, [u32("x", 1)]))
    assert "type_78" in parsed.text
    assert 'class="c8"' in page
    _page(write_raw(tmp_path / "empty.gguf"))


def test_a_split_is_one_model_when_seen_from_its_first_shard(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with open_gguf(path) as source:
        shards = split(source, tmp_path / "s", SplitRule(max_tensors=5))
    write_report(shards[0], tmp_path / "all.html")
    write_report(shards[1], tmp_path / "one.html")
    page = (tmp_path / "all.html").read_text()
    assert "12 tensors" in page
    assert "and 2 more shards" in page
    assert "5 tensors" in (tmp_path / "one.html").read_text()
    shards[2].unlink()
    with pytest.raises(ModelError, match="missing"):
        write_report(shards[0], tmp_path / "more.html")
    assert not (tmp_path / "more.html").exists()


def test_an_existing_page_needs_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.html"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        write_report(model, out)
    write_report(model, out, force=True)
    assert out.read_text().startswith("<!doctype html>")
