"""Hashes of tensor data, and manifests of them, as llama.cpp's gguf-hash prints and checks them.

Metadata does not enter a hash, so a file whose metadata changed keeps its hashes. sha1, sha256 and the UUID come from
the standard library; xxh64 needs the PyPI package `xxhash`, which Minka does not require. Source of the line format and
of the UUID: examples/gguf-hash of llama.cpp.
"""

from __future__ import annotations

import hashlib
import importlib.util
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from minka.errors import ModelError, UsageError
from minka.ggufs.progress import Meter, Progress, silent
from minka.ggufs.read import GgufFile

Algorithm = Literal["xxh64", "sha1", "sha256", "uuid"]

ALGORITHMS: tuple[Algorithm, ...] = ("xxh64", "sha1", "sha256", "uuid")
STRONGEST_FIRST: tuple[Algorithm, ...] = ("sha256", "sha1", "xxh64", "uuid")
UUID_NAMESPACE = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")
"""UUIDv5 of the URL `en.wikipedia.org/wiki/Llama.cpp`."""


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _UuidHasher:
    """UUIDv5 of the data: SHA-1 over the namespace and the data, cut to 16 bytes."""

    def __init__(self) -> None:
        self._sha1 = hashlib.sha1(UUID_NAMESPACE.bytes, usedforsecurity=False)

    def update(self, data: bytes, /) -> None:
        self._sha1.update(data)

    def hexdigest(self) -> str:
        return str(uuid.UUID(bytes=self._sha1.digest()[:16], version=5))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a manifest: a hash of one tensor, or of all tensors when `tensor` is None."""

    algorithm: str
    digest: str
    file: str
    tensor: str | None = None

    def __str__(self) -> str:
        return f"{self.algorithm:<8}  {self.digest}  {self.label}"

    @property
    def label(self) -> str:
        """What the hash is of: `file` or `file:tensor`."""
        return self.file if self.tensor is None else f"{self.file}:{self.tensor}"


def has_xxhash() -> bool:
    """Whether xxh64 can be computed here."""
    return importlib.util.find_spec("xxhash") is not None


def _hasher(algorithm: Algorithm) -> _Hasher:
    if algorithm == "uuid":
        return _UuidHasher()
    if algorithm == "sha1":
        return hashlib.sha1(usedforsecurity=False)
    if algorithm == "sha256":
        return hashlib.sha256()
    if not has_xxhash():
        raise UsageError("xxh64 needs the package xxhash (pip install xxhash); sha1 and sha256 need none")
    hasher: _Hasher = importlib.import_module("xxhash").xxh64()
    return hasher


def hash_file(
    source: GgufFile,
    algorithms: Sequence[Algorithm],
    *,
    label: str | None = None,
    layers: bool = True,
    progress: Progress = silent,
) -> Iterator[Entry]:
    """The hashes of a file: those of each tensor (unless `layers` is False; a UUID has none), then those of all.

    Args:
        label: name of the file in the entries; its path by default.

    Raises:
        ModelError: the file is truncated, or a tensor's type is unknown, so that its size is.
        UsageError: xxh64 is asked for and the package `xxhash` is not installed.
    """
    file = str(source.path) if label is None else label
    unknown = next((tensor for tensor in source.tensors if not tensor.type.known), None)
    if unknown:
        raise ModelError(f"tensor {unknown.name} is of the unknown type {unknown.type_id}, so its size is not known")
    whole = {str(algorithm): _hasher(algorithm) for algorithm in algorithms}
    meter = Meter(sum(source.n_bytes(tensor) for tensor in source.tensors), progress)
    for tensor in source.tensors:
        single = {str(name): _hasher(name) for name in algorithms if layers and name != "uuid"}
        for chunk in source.chunks(tensor):
            for hasher in (*whole.values(), *single.values()):
                hasher.update(chunk)
            meter.add(len(chunk))
        for algorithm, hasher in single.items():
            yield Entry(algorithm, hasher.hexdigest(), file, tensor.name)
    for algorithm, hasher in whole.items():
        yield Entry(algorithm, hasher.hexdigest(), file)


Manifest = Mapping[tuple[str, str], str]
"""Digest by algorithm and label."""


def read_manifest(path: Path) -> Manifest:
    """The entries of a manifest; other lines are skipped.

    Raises:
        UsageError: the file cannot be read, or holds no hash that is known.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the manifest {path}: {error.strerror or error}") from error
    entries: dict[tuple[str, str], str] = {}
    for line in lines:
        parts = line.split(None, 2)
        if len(parts) == 3 and parts[0] in ALGORITHMS:
            entries.setdefault((parts[0], parts[2]), parts[1])
    if not entries:
        raise UsageError(f"{path} is no manifest: it has no line 'sha256  HASH  FILE:TENSOR' or alike")
    return entries


def algorithms_of(manifest: Manifest) -> tuple[Algorithm, ...]:
    """The algorithms a manifest has entries of, the strongest first."""
    found = {algorithm for algorithm, _ in manifest}
    return tuple(algorithm for algorithm in STRONGEST_FIRST if algorithm in found)


Verdict = Literal["Ok", "Mismatch", "Not Found"]


def verify(entries: Iterable[Entry], manifest: Manifest) -> Iterator[tuple[Entry, Verdict]]:
    """Compare hashes with a manifest. A file that was moved is found by its name without the folder."""
    by_name = {(algorithm, _without_folder(label)): digest for (algorithm, label), digest in manifest.items()}
    for entry in entries:
        expected = manifest.get((entry.algorithm, entry.label))
        if expected is None:
            expected = by_name.get((entry.algorithm, _without_folder(entry.label)))
        if expected is None:
            yield entry, "Not Found"
        else:
            yield entry, "Ok" if expected.lower() == entry.digest else "Mismatch"


def _without_folder(label: str) -> str:
    # A tensor's name may hold a slash; the folder is before the last one that stands before `.gguf`.
    file, suffix, tensor = label.partition(".gguf")
    return file.rpartition("/")[2] + suffix + tensor
