"""Tables for the terminal, drawn with rich: the dump of a file and what differs between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minka.ggufs.diff import Diff, KeyDiff
from minka.ggufs.dump import (
    bits_per_weight,
    human_count,
    human_size,
    metadata_rows,
    shape,
    shorten,
    tensor_rows,
)
from minka.ggufs.read import GgufFile, Tensor, Value
from minka.ggufs.values import Stats

_LONG = 5000
"""Rows from which on columns are not aligned: that would take rich half a minute."""


def _draw(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> None:
    """Print a table as wide as the console, unless it is too long for that."""
    if len(rows) > _LONG:
        console.out("\n".join("  ".join(row) for row in (columns, *rows)), highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_dump(
    console: Console, source: GgufFile, *, tensors: bool = True, data: Mapping[str, Stats | None] | None = None
) -> None:
    """A heading, the metadata and, unless `tensors` is False, the tensors, with statistics where `data` has them."""
    n_bytes = sum(source.n_bytes(tensor) for tensor in source.tensors)
    n_elements = sum(tensor.n_elements for tensor in source.tensors)
    console.print(
        f"{source.path}: GGUF version {source.version}, {source.order}-endian, alignment {source.alignment}, "
        f"{human_size(source.size)}\n"
        f"{len(source.tensors)} tensors, {human_count(n_elements)} elements, "
        f"{bits_per_weight(n_bytes, n_elements):.2f} bits per weight\n",
        markup=False,
        highlight=False,
    )
    _draw(console, ("key", "type", "value"), metadata_rows(source))
    if tensors:
        console.print()
        _draw_tensors(console, source, data)


def _draw_tensors(console: Console, source: GgufFile, data: Mapping[str, Stats | None] | None) -> None:
    numbers = () if data is None else ("min", "max", "mean", "std", "NaN/Inf")
    rows = [
        (*cells, *(() if data is None else _stats_cells(data.get(tensor.name))))
        for tensor, cells in zip(source.tensors, tensor_rows(source), strict=True)
    ]
    _draw(console, ("#", "tensor", "shape", "type", "size", *numbers), rows, right=(0, 4, 5, 6, 7, 8, 9))


def _stats_cells(found: Stats | None) -> tuple[str, ...]:
    if found is None:
        return ("?",) * 5
    numbers = (found.minimum, found.maximum, found.mean, found.std)
    return (*(f"{number:.4g}" for number in numbers), str(found.n_nonfinite))


def print_diff(console: Console, diff: Diff, *, data: bool) -> None:
    """What differs, one table per kind; a single line when nothing does."""
    if diff.same:
        console.print("no difference" + (f", the data of {diff.n_same_data} tensors is equal" if data else ""))
        return
    if diff.keys:
        keys = [
            (key.key, _key_sign(key), _value(key.left, key.left_type), _value(key.right, key.right_type))
            for key in diff.keys
        ]
        _draw(console, ("metadata", "", "left", "right"), keys)
        console.print()
    if diff.tensors:
        tensors = [
            (
                pair.name,
                _sign(left=pair.left is not None, right=pair.right is not None),
                _info(pair.left),
                _info(pair.right),
            )
            for pair in diff.tensors
        ]
        _draw(console, ("tensor", "", "left", "right"), tensors)
        console.print()
    if data:
        _print_data(console, diff)


def _print_data(console: Console, diff: Diff) -> None:
    rows = [
        (item.name, item.note, "")
        if item.max_abs is None or item.rms is None
        else (item.name, f"{item.max_abs:.6g}", f"{item.rms:.6g}")
        for item in diff.data
    ]
    if rows:
        _draw(console, ("data", "max abs", "rms"), rows, right=(1, 2))
        console.print()
    console.print(f"data of {diff.n_same_data} tensors equal, of {len(diff.data)} different", highlight=False)


def _key_sign(key: KeyDiff) -> str:
    return _sign(left=key.left_type is not None, right=key.right_type is not None)


def _sign(*, left: bool, right: bool) -> str:
    return "changed" if left and right else "removed" if left else "added"


def _value(value: Value | None, kind: str | None) -> str:
    if kind is None:
        return ""
    if isinstance(value, list):
        head = ", ".join(shorten(str(item), 20) for item in value[:4])
        return f"[{shorten(head, 40)}{', ...' if len(value) > 4 else ''}] ({len(value)}), {kind}"
    return f"{shorten(str(value))} ({kind})"


def _info(tensor: Tensor | None) -> str:
    return "" if tensor is None else f"{tensor.type.name} {shape(tensor)}"
