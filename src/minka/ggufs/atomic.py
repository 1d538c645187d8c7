"""Output files that appear whole or not at all: written beside their place, synced, then renamed into it.

Knows nothing of GGUF. Several files of one job (the shards of a split) are put in place together, after the last one is
complete; an error or an interrupt before that leaves every place as it was.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from minka.errors import MinkaError, UsageError


def _refuse_overwrite(path: Path, inputs: Sequence[Path]) -> None:
    if not path.exists():
        return
    if any(source.exists() and path.samefile(source) for source in inputs):
        raise UsageError(f"output {path} is the input; give another name, or --force to replace it")
    raise UsageError(f"{path} exists; give another name, or --force to overwrite it")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class Staging:
    """The outputs of one job. Leaving the `with` block puts them in place; leaving it by an error removes them."""

    def __init__(self, *, force: bool = False, inputs: Sequence[Path] = ()) -> None:
        self._force = force
        self._inputs = inputs
        self._written: list[tuple[Path, Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._place()
        finally:
            for part, _ in self._written:
                part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[BinaryIO]:
        """A new file for writing that will become `path`. It is on the disk when the block is left.

        Raises:
            UsageError: `path` is taken and may not be overwritten, or its folder does not exist.
            MinkaError: the operating system refused, for example because the disk is full.
        """
        if not self._force:
            _refuse_overwrite(path, self._inputs)
        if path.is_dir():
            raise UsageError(f"{path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise UsageError(f"folder {path.parent} does not exist; create it first")
        part = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        self._written.append((part, path))
        try:
            with part.open("xb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise MinkaError(f"cannot write {path}: {_reason(error)}") from error

    def _place(self) -> None:
        for part, path in self._written:
            if not self._force:
                _refuse_overwrite(path, self._inputs)
            try:
                if path.exists():
                    shutil.copymode(path, part)
                part.replace(path)
            except OSError as error:
                raise MinkaError(f"cannot put {path} in place: {_reason(error)}") from error
        for folder in {path.parent for _, path in self._written}:
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    # A rename is durable only once its folder is; some file systems cannot sync a folder, and then nothing is lost.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def replacing(path: Path, *, force: bool = False, inputs: Sequence[Path] = ()) -> Iterator[BinaryIO]:
    """One output file, put in place when the block is left without an error. Raises what `Staging.open` raises."""
    with Staging(force=force, inputs=inputs) as staging, staging.open(path) as out:
        yield out
