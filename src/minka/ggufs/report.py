"""One self-contained HTML page about a GGUF file: metadata, where its bytes are by type, layer and role, all tensors.

Bars are inline SVG, there is no script and nothing is loaded; light and dark follow the reader's system. All shards of
a split are shown as one model when the page is made from the first. Reads headers only, never tensor data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path

from minka.ggufs.atomic import replacing
from minka.ggufs.dump import (
    bits_per_weight,
    group_of,
    human_count,
    human_size,
    layer_number,
    shape,
    shown_value,
)
from minka.ggufs.merge import open_shards
from minka.ggufs.read import Field, GgufFile, Tensor, open_gguf
from minka.ggufs.report_style import N_COLOURS, STYLE

_THINNEST = 0.2
"""Percent of the width that a segment gets at least, so that it can be seen."""
_LONG_VALUE = 100
"""Characters of a value that are shown without unfolding it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor with the size that its file gives it."""

    tensor: Tensor
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A bar: its label and the bytes of each type in it."""

    label: str
    by_type: dict[str, int]
    n_elements: int

    @property
    def n_bytes(self) -> int:
        return sum(self.by_type.values())


def write_report(path: Path, output: Path, *, force: bool = False) -> None:
    """Write the page about `path` (or about the split whose first shard it is).

    Raises:
        ModelError: the file or one of its shards cannot be read as GGUF.
        UsageError: `output` exists and `force` is not set.
        MinkaError: the page cannot be written.
    """
    with ExitStack() as stack:
        page = build_report(open_shards(stack, path) if _is_first(path) else (stack.enter_context(open_gguf(path)),))
    with replacing(output, force=force, inputs=(path,)) as out:
        out.write(page.encode())


def build_report(shards: Sequence[GgufFile]) -> str:
    """The page about one file, or about the shards of one model, as HTML."""
    head = shards[0]
    parts = [_Part(tensor, shard.n_bytes(tensor)) for shard in shards for tensor in shard.tensors]
    types = _rows(parts, lambda tensor: tensor.type.name)
    types.sort(key=lambda row: -row.n_bytes)
    colours = {row.label: i if i < N_COLOURS else N_COLOURS for i, row in enumerate(types)}
    roles = sorted(_rows(parts, _role), key=lambda row: -row.n_bytes)
    title = escape(head.get_str("general.name") or head.path.name)
    body = "\n".join(
        (
            f"<header><h1>{title}</h1><p>{_subtitle(shards)}</p></header>",
            _tiles(head, parts),
            _section("Types", _type_bar(types, colours) + _type_table(types, colours)),
            _section("Layers", _bars(_layers(parts), colours)),
            _section("Roles", _bars(roles, colours)),
            _section("Metadata", _metadata(head)),
            _section("Tensors", _tensors(parts, colours)),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _is_first(path: Path) -> bool:
    return re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", path.name) is None


def _role(tensor: Tensor) -> str:
    """What a tensor is for, whatever its layer: `attn_q.weight`."""
    return re.sub(r"(^|\.)blk\.[0-9]+\.", r"\1", tensor.name)


def _rows(parts: Sequence[_Part], key: Callable[[Tensor], str]) -> list[_Row]:
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(key(part.tensor), []).append(part)
    rows = []
    for label, members in found.items():
        by_type: dict[str, int] = {}
        for part in members:
            by_type[part.tensor.type.name] = by_type.get(part.tensor.type.name, 0) + part.n_bytes
        rows.append(_Row(label, by_type, sum(part.tensor.n_elements for part in members)))
    return rows


def _layers(parts: Sequence[_Part]) -> list[_Row]:
    """A row per layer by its number, between the parts that come before all layers and the output."""

    def place(row: _Row) -> tuple[int, int]:
        number = layer_number(row.label.rpartition(".")[2])
        return (1, number) if number is not None else (2 if row.label.startswith("output") else 0, 0)

    return sorted(_rows(parts, lambda tensor: group_of(tensor.name)), key=place)


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>"


def _subtitle(shards: Sequence[GgufFile]) -> str:
    head = shards[0]
    files = f"<code>{escape(head.path.name)}</code>"
    if len(shards) > 1:
        files += f" and {len(shards) - 1} more shard{'s' * (len(shards) > 2)}"
    size = human_size(sum(shard.size for shard in shards))
    return f"{files} &middot; {size} &middot; GGUF version {head.version}, {head.order}-endian"


def _tiles(head: GgufFile, parts: Sequence[_Part]) -> str:
    n_bytes, n_elements = sum(part.n_bytes for part in parts), sum(part.tensor.n_elements for part in parts)
    architecture = head.get_str("general.architecture") or ""
    tokens = head.field("tokenizer.ggml.tokens")
    tiles: list[tuple[str, str | int | None]] = [
        ("architecture", architecture or None),
        ("parameters", human_count(n_elements)),
        ("tensor data", human_size(n_bytes)),
        ("bits / weight", f"{bits_per_weight(n_bytes, n_elements):.2f}"),
        ("tensors", len(parts)),
        ("layers", head.get_int(f"{architecture}.block_count")),
        ("context", head.get_int(f"{architecture}.context_length")),
        ("embedding", head.get_int(f"{architecture}.embedding_length")),
        ("vocabulary", tokens.count if tokens else None),
    ]
    cells = (f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in tiles if value is not None)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _bar(row: _Row, scale: int, colours: dict[str, int], height: int) -> str:
    """One bar, a segment per type; its full width stands for `scale` bytes."""
    at, rects = 0.0, []
    for name in sorted(row.by_type, key=lambda name: colours[name]):
        n_bytes = row.by_type[name]
        width = max(100 * n_bytes / scale, _THINNEST) if scale else 0.0
        rects.append(
            f'<rect class="c{colours[name]}" x="{at:.3f}%" width="{width:.3f}%" height="{height}">'
            f"<title>{escape(row.label)}: {human_size(n_bytes)} {escape(name)}</title></rect>"
        )
        if at:
            rects.append(f'<rect class="gap" x="{at:.3f}%" width="1" height="{height}"/>')
        at += width
    label = f"{escape(row.label)}, {human_size(row.n_bytes)}"
    return f'<svg role="img" aria-label="{label}" width="100%" height="{height}">{"".join(rects)}</svg>'


def _type_bar(types: Sequence[_Row], colours: dict[str, int]) -> str:
    by_type = {row.label: row.n_bytes for row in types}
    whole = _Row("all tensors", by_type, sum(row.n_elements for row in types))
    return f'<div class="whole">{_bar(whole, whole.n_bytes, colours, 28)}</div>'


def _type_table(types: Sequence[_Row], colours: dict[str, int]) -> str:
    total = sum(row.n_bytes for row in types)
    rows = (
        f"<tr><td>{_key(colours[row.label])}{escape(row.label)}</td><td>{human_size(row.n_bytes)}</td>"
        f"<td>{100 * row.n_bytes / total if total else 0:.1f} %</td><td>{human_count(row.n_elements)}</td>"
        f"<td>{bits_per_weight(row.n_bytes, row.n_elements):.2f}</td></tr>"
        for row in types
    )
    head = "<tr><th>type</th><th>size</th><th>share</th><th>elements</th><th>bits per weight</th></tr>"
    return f'<table class="numbers">{head}{"".join(rows)}</table>'


def _key(colour: int) -> str:
    square = f'<rect class="c{colour}" width="12" height="12"/>'
    return f'<svg class="key" width="12" height="12" aria-hidden="true">{square}</svg>'


def _bars(rows: Sequence[_Row], colours: dict[str, int]) -> str:
    scale = max((row.n_bytes for row in rows), default=0)
    lines = (
        f'<tr><th scope="row">{escape(row.label)}</th><td class="bar">{_bar(row, scale, colours, 14)}</td>'
        f"<td>{human_size(row.n_bytes)}</td><td>{human_count(row.n_elements)}</td></tr>"
        for row in rows
    )
    head = '<tr><th></th><td class="bar"></td><td>size</td><td>elements</td></tr>'
    return f'<table class="bars">{head}{"".join(lines)}</table>'


def _metadata(head: GgufFile) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field.key)}</code></td><td>{escape(field.type_name)}</td>"
        f"<td>{_value(head, field)}</td></tr>"
        for field in head.fields
    )
    return f'<table class="list"><tr><th>key</th><th>type</th><th>value</th></tr>{rows}</table>'


def _value(head: GgufFile, field: Field) -> str:
    short = shown_value(head, field, _LONG_VALUE)
    value = head.value(field) if field.element is None else None
    if isinstance(value, str) and (len(value) > _LONG_VALUE or "\n" in value):
        return f"<details><summary><code>{escape(short)}</code></summary><pre>{escape(value)}</pre></details>"
    return f"<code>{escape(short)}</code>"


def _tensors(parts: Sequence[_Part], colours: dict[str, int]) -> str:
    def rows() -> Iterator[str]:
        for part in parts:
            name = part.tensor.type.name
            yield (
                f"<tr><td><code>{escape(part.tensor.name)}</code></td><td>{shape(part.tensor)}</td>"
                f"<td>{_key(colours[name])}{escape(name)}</td><td>{human_size(part.n_bytes)}</td></tr>"
            )

    head = "<tr><th>tensor</th><th>shape</th><th>type</th><th>size</th></tr>"
    return (
        f"<details><summary>{len(parts)} tensors</summary>"
        f'<table class="list tensors">{head}{"".join(rows())}</table></details>'
    )
