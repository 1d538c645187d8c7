"""Importance matrices on disk: the GGUF form and the legacy .dat form of llama.cpp, read and written.

An entry holds, for one weight, the sums of the squared activations that met it and how many rows were summed. Knows no
model. Sources: common/imatrix-loader.cpp and tools/imatrix/imatrix.cpp of llama.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from minka.errors import MinkaError, ModelError
from minka.ggufs.atomic import replacing
from minka.ggufs.layout import DEFAULT_ALIGNMENT, MAGIC, MAX_NAME, ValueType
from minka.ggufs.progress import Meter, silent
from minka.ggufs.read import GgufFile, Tensor, open_gguf, open_regular
from minka.ggufs.split import canonical_dims
from minka.ggufs.write import NewValue, Placed, encode_field, encode_header, write_tensor

DATASETS = "imatrix.datasets"
CHUNK_COUNT = "imatrix.chunk_count"
CHUNK_SIZE = "imatrix.chunk_size"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_F32 = 0

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Entry:
    """What was collected for one weight: one matrix, or one per expert."""

    sums: Floats
    """Sums of squared activations, all matrices one after the other; the size is a multiple of that of `counts`."""
    counts: NDArray[np.int64]
    """Rows summed, per matrix."""

    @property
    def n_rows(self) -> int:
        """The most rows that a matrix has seen."""
        return int(self.counts.max())

    def spread(self, per_matrix: Floats) -> Floats:
        """A number per matrix as one per value of `sums`."""
        return np.repeat(per_matrix, self.sums.size // self.counts.size)


@dataclass(frozen=True, slots=True)
class Imatrix:
    """An importance matrix. In the legacy form, sums are means times calls, and counts are calls."""

    entries: dict[str, Entry]
    datasets: tuple[str, ...]
    """Files that the text came from, as they were named."""
    chunk_count: int
    chunk_size: int
    """Tokens of a chunk; 0 in the legacy form, which does not say it."""
    legacy: bool = False


# -- reading


def read_imatrix(path: Path) -> Imatrix:
    """Read an importance matrix of either form.

    Raises:
        ModelError: the file is missing, no importance matrix, cut short, or has values that are negative or not finite.
    """
    try:
        with open_regular(path) as stream:
            head = stream.read(len(MAGIC))
            found = None if head == MAGIC else _read_dat(path, stream)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if found is None:
        with open_gguf(path) as source:
            found = _read_gguf(source)
    _check(path, found)
    return found


def _check(path: Path, found: Imatrix) -> None:
    for name, entry in found.entries.items():
        if not entry.counts.size or entry.sums.size % entry.counts.size:
            raise ModelError(
                f"{path}: {entry.sums.size} values of {name} do not divide into {entry.counts.size} counts"
            )
        if not (np.isfinite(entry.sums).all() and (entry.sums >= 0).all() and (entry.counts >= 0).all()):
            raise ModelError(f"{path} is damaged: {name} has values that are negative or not finite")


def _read_gguf(source: GgufFile) -> Imatrix:
    sums = {t.name.removesuffix(_SUMS): t for t in source.tensors if t.name.endswith(_SUMS)}
    counts = {t.name.removesuffix(_COUNTS): t for t in source.tensors if t.name.endswith(_COUNTS)}
    if not sums or any(source.field(key) is None for key in (DATASETS, CHUNK_COUNT, CHUNK_SIZE)):
        kind = source.get_str("general.type") or "other"
        raise ModelError(f"{source.path} is no importance matrix, but a GGUF file of type {kind}")
    if sums.keys() != counts.keys():
        lone = sorted(sums.keys() ^ counts.keys())[0]
        raise ModelError(f"{source.path} is damaged: {lone} has sums without counts, or counts without sums")
    entries = {
        name: Entry(_floats(source, sums[name]), np.rint(_floats(source, counts[name])).astype(np.int64))
        for name in sorted(sums)
    }
    datasets = source.get(DATASETS)
    return Imatrix(
        entries,
        tuple(map(str, datasets)) if isinstance(datasets, list) else (),
        source.get_int(CHUNK_COUNT) or 0,
        source.get_int(CHUNK_SIZE) or 0,
    )


def _floats(source: GgufFile, tensor: Tensor) -> Floats:
    if tensor.type_id != _F32:
        raise ModelError(f"{source.path}: {tensor.name} is {tensor.type.name}; an importance matrix is all F32")
    return np.frombuffer(b"".join(source.chunks(tensor)), source.prefix + "f4").astype(np.float32)


class _Dat:
    """A legacy file read piece by piece, each piece checked against what is left of it."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self.left = path.stat().st_size
        stream.seek(0)

    def fail(self) -> NoReturn:
        raise ModelError(f"{self._path} is no importance matrix, or cut short")

    def take(self, n: int) -> bytes:
        if not 0 <= n <= self.left:
            self.fail()
        self.left -= n
        return self._stream.read(n)

    def number(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])

    def name(self) -> str:
        return self.take(self.number()).decode("utf-8", "surrogateescape")


def _read_dat(path: Path, stream: BinaryIO) -> Imatrix:
    data = _Dat(path, stream)
    entries: dict[str, Entry] = {}
    n_entries = data.number()
    if n_entries < 1:
        data.fail()
    for _ in range(n_entries):
        name, calls, n_values = data.name(), data.number(), data.number()
        if not name or n_values < 1:
            data.fail()
        sums = np.frombuffer(data.take(4 * n_values), "<f4").astype(np.float32)
        entries[name] = Entry(sums, np.array([calls], np.int64))
    # Older files end here.
    chunk_count = data.number() if data.left else 0
    dataset = data.name() if data.left else ""
    return Imatrix(entries, (dataset,) if dataset else (), chunk_count, 0, legacy=True)


# -- what a quantizer takes


def importance(found: Imatrix) -> dict[str, Floats]:
    """Mean squared activations by weight, as llama_model_quantize takes them: 1 for experts that saw nothing."""
    return {name: _legacy_mean(entry) if found.legacy else _mean(entry) for name, entry in found.entries.items()}


def _mean(entry: Entry) -> Floats:
    counts = entry.spread(entry.counts.astype(np.float32))
    return np.where(counts > 0, entry.sums / np.maximum(counts, 1), np.float32(1))


def _legacy_mean(entry: Entry) -> Floats:
    calls = np.float32(entry.counts[0])
    return entry.sums / calls if calls > 0 else entry.sums


# -- writing


def write_gguf(path: Path, found: Imatrix) -> None:
    """Write the GGUF form, in place only once it is whole.

    Raises:
        MinkaError: the file cannot be written.
    """
    fields = [
        encode_field("general.type", NewValue(ValueType.STRING, "imatrix"), "little"),
        encode_field(DATASETS, NewValue(ValueType.ARRAY, list(found.datasets), ValueType.STRING), "little"),
        encode_field(CHUNK_COUNT, NewValue(ValueType.UINT32, found.chunk_count), "little"),
        encode_field(CHUNK_SIZE, NewValue(ValueType.UINT32, found.chunk_size), "little"),
    ]
    tensors = list(_tensors(found.entries))
    header = encode_header(fields, [placed for placed, _ in tensors], DEFAULT_ALIGNMENT, "little")
    meter = Meter(sum(data.nbytes for _, data in tensors), silent)
    with replacing(path, force=True) as out:
        out.write(header)
        for _, data in tensors:
            write_tensor(out, iter((data.tobytes(),)), DEFAULT_ALIGNMENT, meter)


def _tensors(entries: Mapping[str, Entry]) -> Iterator[tuple[Placed, Floats]]:
    for name, entry in sorted(entries.items()):
        n = entry.counts.size
        for suffix, data in ((_SUMS, entry.sums), (_COUNTS, entry.counts.astype(np.float32))):
            raw = (name + suffix).encode("utf-8", "surrogateescape")
            if len(raw) >= MAX_NAME:
                raise MinkaError(f"the name {name} is too long for the GGUF form; give --output-format dat")
            yield Placed(raw, canonical_dims((data.size // n, n)), _F32, data.nbytes), data.astype("<f4")


def write_dat(path: Path, found: Imatrix) -> None:
    """Write the legacy form, in place only once it is whole. Entries without any data are left out.

    Raises:
        MinkaError: the file cannot be written.
    """
    stored = sorted((name, entry) for name, entry in found.entries.items() if entry.n_rows)
    with replacing(path, force=True) as out:
        out.write(struct.pack("<i", len(stored)))
        for name, entry in stored:
            raw = name.encode("utf-8", "surrogateescape")
            calls = -(-entry.n_rows // found.chunk_size)
            values = _mean(entry) * np.float32(calls)
            out.write(struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, values.size))
            out.write(values.astype("<f4").tobytes())
        dataset = found.datasets[-1].encode("utf-8", "surrogateescape") if found.datasets else b""
        out.write(struct.pack("<ii", found.chunk_count, len(dataset)) + dataset)


def partial(entries: Mapping[str, Entry]) -> Sequence[tuple[str, float]]:
    """Weights with experts that no token was routed to, and the share (0..1) of experts that have data."""
    return [
        (name, float((entry.counts > 0).mean())) for name, entry in sorted(entries.items()) if (entry.counts == 0).any()
    ]
