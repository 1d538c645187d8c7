"""What a GGUF file says of itself, as JSON in the shape of gguf-py's dump, as Markdown, and as rows for a table.

Knows no terminal. Arrays are shortened for people, and left out of the JSON unless asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minka.ggufs.layout import ValueType
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import Field, GgufFile, Tensor, printable
from minka.ggufs.values import Stats, can_dequantize, stats

Json = str | int | float | bool | None | list["Json"] | Mapping[str, "Json"]

_LAYER_NUMBER = re.compile("[0-9]{1,9}")
SHOWN_ELEMENTS = 6
SHOWN_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that belong together: one layer (`blk.0`), or one that is in no layer (`token_embd`)."""

    name: str
    tensors: tuple[Tensor, ...]

    @property
    def n_elements(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)


def shorten(words: str, width: int = SHOWN_WIDTH) -> str:
    """Words on one line of at most `width` characters, with line ends and the like shown as escapes."""
    line = printable(words[: width + 1].replace("\\", "\\\\"))
    return line if len(line) <= width else line[: width - 3] + "..."


def shown_value(source: GgufFile, field: Field, width: int = SHOWN_WIDTH) -> str:
    """A value for people: an array by its first elements and its count."""
    if field.element is None:
        value = source.value(field)
        if isinstance(value, float) and field.type is ValueType.FLOAT32:
            return f"{value:.7g}"
        return shorten(str(value), width)
    first = source.value(field, SHOWN_ELEMENTS)
    inner = ", ".join(_shown_element(item) for item in first) if isinstance(first, list) else ""
    dots = ", ..." if field.count > SHOWN_ELEMENTS else ""
    return f"[{shorten(inner, width)}{dots}] ({field.count})"


def _shown_element(item: object) -> str:
    if isinstance(item, str):
        return repr(shorten(item, 20))
    return f"{item:.7g}" if isinstance(item, float) else str(item)


def human_size(n: int) -> str:
    """Bytes in binary units with three digits."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return (
                f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
            )
        size /= 1024
    return f"{size:.3g} TiB"


def human_count(n: int) -> str:
    """A number of elements with three digits: 262144 is 262 K."""
    size = float(n)
    for unit in ("", " K", " M", " B"):
        if size < 1000:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g} T"


def bits_per_weight(n_bytes: int, n_elements: int) -> float:
    """Bits of storage an element takes on average; 0 without elements."""
    return n_bytes * 8 / n_elements if n_elements else 0.0


def group_of(name: str) -> str:
    """The layer a tensor belongs to, or the part of its name that is no `.weight` or `.bias`."""
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if part == "blk" and layer_number(parts[i + 1]) is not None:
            return ".".join(parts[: i + 2])
    return parts[0]


def layer_number(word: str) -> int | None:
    """The number of a layer, None for words that are none."""
    return int(word) if _LAYER_NUMBER.fullmatch(word) else None


def groups(tensors: Sequence[Tensor]) -> tuple[Group, ...]:
    """Tensors by layer, in the order in which the layers first appear."""
    found: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(group_of(tensor.name), []).append(tensor)
    return tuple(Group(name, tuple(members)) for name, members in found.items())


def all_stats(source: GgufFile, progress: Progress = silent) -> dict[str, Stats | None]:
    """Statistics of every tensor by its name, None for a type that has no dequantiser.

    Raises:
        ModelError: the file is truncated.
    """
    able = [t for t in source.tensors if can_dequantize(t.type) and (source.order == "little" or t.type.words)]
    meter = Meter(sum(source.n_bytes(tensor) for tensor in able), progress)
    wanted = {tensor.name for tensor in able}
    return {t.name: stats(source, t, meter) if t.name in wanted else None for t in source.tensors}


def to_json(
    source: GgufFile,
    *,
    tensors: bool = True,
    arrays: bool = False,
    data: Mapping[str, Stats | None] | None = None,
) -> dict[str, Json]:
    """The file as gguf-py's `gguf-dump --json` has it; with `data`, statistics in each tensor's entry.

    The three counts of the header come first, under the names gguf-py gives them (`GGUF.version`, ...).
    """
    metadata = _header_json(source)
    for field in source.fields:
        metadata[field.key] = _field_json(source, field, len(metadata), arrays=arrays)
    listed: dict[str, Json] = {}
    for index, tensor in enumerate(source.tensors if tensors else ()):
        entry: dict[str, Json] = {
            "index": index,
            "shape": list(tensor.dims),
            "type": tensor.type.name,
            "offset": tensor.start,
        }
        if data is not None:
            entry["data"] = _stats_json(data.get(tensor.name))
        listed[tensor.name] = entry
    endian = source.order.upper()
    return {"filename": str(source.path), "endian": endian, "metadata": metadata, "tensors": listed}


def _header_json(source: GgufFile) -> dict[str, Json]:
    rows = (
        ("GGUF.version", ValueType.UINT32, 4, source.version),
        ("GGUF.tensor_count", ValueType.UINT64, 8, len(source.tensors)),
        ("GGUF.kv_count", ValueType.UINT64, 16, len(source.fields)),
    )
    return {
        name: {"index": i, "type": kind.name, "offset": offset, "value": value}
        for i, (name, kind, offset, value) in enumerate(rows)
    }


def _field_json(source: GgufFile, field: Field, index: int, *, arrays: bool) -> dict[str, Json]:
    entry: dict[str, Json] = {"index": index, "type": field.type.name, "offset": field.start}
    if field.element is not None:
        # gguf-py learns an element's type from the first element, so an empty array has none.
        entry["array_types"] = [field.element.name] if field.count else []
        if not arrays:
            return entry
    value = source.value(field)
    entry["value"] = [*value] if isinstance(value, list) else value
    return entry


def _stats_json(found: Stats | None) -> Json:
    if found is None:
        return None
    return {
        "min": found.minimum,
        "max": found.maximum,
        "mean": found.mean,
        "std": found.std,
        "n_nonfinite": found.n_nonfinite,
    }


def metadata_rows(source: GgufFile, width: int = SHOWN_WIDTH) -> list[tuple[str, str, str]]:
    """Key, type and shortened value of every metadata entry."""
    return [(field.key, field.type_name, shown_value(source, field, width)) for field in source.fields]


def tensor_rows(source: GgufFile) -> list[tuple[str, str, str, str, str]]:
    """Index, name, shape, type and size of every tensor."""
    return [
        (str(i), tensor.name, shape(tensor), tensor.type.name, human_size(source.n_bytes(tensor)))
        for i, tensor in enumerate(source.tensors)
    ]


def shape(tensor: Tensor) -> str:
    """Dimensions for people, the contiguous one first: `64 x 512`."""
    return " x ".join(map(str, tensor.dims)) or "scalar"


def to_markdown(source: GgufFile, *, tensors: bool = True) -> str:
    """The file as Markdown: a table of the metadata and one of the tensors of each layer."""
    n_bytes = sum(source.n_bytes(tensor) for tensor in source.tensors)
    n_elements = sum(tensor.n_elements for tensor in source.tensors)
    heading = (
        f"GGUF version {source.version}, {source.order}-endian, alignment {source.alignment}, "
        f"{len(source.fields)} metadata entries, {len(source.tensors)} tensors with {human_count(n_elements)} elements "
        f"in {human_size(n_bytes)} ({bits_per_weight(n_bytes, n_elements):.2f} bits per weight)."
    )
    lines = [
        f"# {source.path.name}",
        "",
        heading,
        "",
        "## Metadata",
        "",
        *_markdown_table(("Key", "Type", "Value"), metadata_rows(source)),
    ]
    rows = dict(zip(source.tensors, tensor_rows(source), strict=True))
    for group in groups(source.tensors) if tensors else ():
        lines += ["", f"## {group.name}", ""]
        lines += _markdown_table(("#", "Tensor", "Shape", "Type", "Size"), [rows[tensor] for tensor in group.tensors])
    return "\n".join(lines) + "\n"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]
