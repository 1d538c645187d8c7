"""Tables for the terminal, drawn with rich: the dump of a file and what differs between two."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minka.ggufs.diff import Diff
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


def _table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    return table


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
    table = _table("key", "type", "value")
    for cells in metadata_rows(source):
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    if tensors:
        console.print()
        console.print(_tensor_table(source, data))


def _tensor_table(source: GgufFile, data: Mapping[str, Stats | None] | None) -> Table:
    numbers = () if data is None else ("min", "max", "mean", "std", "NaN/Inf")
    table = _table("#", "tensor", "shape", "type", "size", *numbers, right=(0, 4, 5, 6, 7, 8, 9))
    for tensor, cells in zip(source.tensors, tensor_rows(source), strict=True):
        more = () if data is None else _stats_cells(data.get(tensor.name))
        table.add_row(*(Text(cell) for cell in (*cells, *more)))
    return table


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
        table = _table("metadata", "", "left", "right")
        for key in diff.keys:
            sign = _sign(left=key.left_type is not None, right=key.right_type is not None)
            left, right = _value(key.left, key.left_type), _value(key.right, key.right_type)
            table.add_row(Text(key.key), sign, Text(left), Text(right))
        console.print(table, "")
    if diff.tensors:
        table = _table("tensor", "", "left", "right")
        for pair in diff.tensors:
            sign = _sign(left=pair.left is not None, right=pair.right is not None)
            table.add_row(Text(pair.name), sign, _info(pair.left), _info(pair.right))
        console.print(table, "")
    if data:
        _print_data(console, diff)


def _print_data(console: Console, diff: Diff) -> None:
    table = _table("data", "max abs", "rms", right=(1, 2))
    for item in diff.data:
        if item.max_abs is None or item.rms is None:
            table.add_row(Text(item.name), Text(item.note), "")
        else:
            table.add_row(Text(item.name), f"{item.max_abs:.6g}", f"{item.rms:.6g}")
    if diff.data:
        console.print(table, "")
    console.print(f"data of {diff.n_same_data} tensors equal, of {len(diff.data)} different", highlight=False)


def _sign(*, left: bool, right: bool) -> str:
    return "changed" if left and right else "removed" if left else "added"


def _value(value: Value | None, kind: str | None) -> str:
    if kind is None:
        return ""
    if isinstance(value, list):
        head = ", ".join(shorten(str(item), 20) for item in value[:4])
        return f"[{shorten(head, 40)}{', ...' if len(value) > 4 else ''}] ({len(value)}), {kind}"
    return f"{shorten(str(value))} ({kind})"


def _info(tensor: Tensor | None) -> Text:
    return Text("" if tensor is None else f"{tensor.type.name} {shape(tensor)}")
