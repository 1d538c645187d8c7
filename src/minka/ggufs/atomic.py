"""Output files that appear whole or not at all: written beside their place, synced, then renamed into it.

Knows nothing of GGUF. Several files of one job (the shards of a split) are put in place together, after the last one is
complete; an error, an interrupt or a SIGTERM before that leaves every place as it was. A symbolic link is followed, as
by any other write; what is no file (a device, a pipe) is refused, because a rename would take its place.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO, NoReturn, Self

from minka.errors import MinkaError, UsageError


def _refuse_overwrite(path: Path, inputs: Sequence[Path]) -> None:
    if not path.exists():
        return
    if any(source.exists() and path.samefile(source) for source in inputs):
        raise UsageError(f"output {path} is the input; give another name, or --force to replace it")
    raise UsageError(f"{path} exists; give another name, or --force to overwrite it")


def destination(path: Path, inputs: Iterable[Path] = ()) -> Path:
    """Where a write to `path` ends up: behind symbolic links.

    Raises:
        UsageError: one of `inputs` is there, or a folder, a device, a pipe or a file that is read-only; or the folder
            does not exist.
        MinkaError: the operating system cannot say, for example because the name is too long.
    """
    try:
        place = Path(os.path.realpath(path)) if path.is_symlink() else path
        if not place.parent.is_dir():
            raise UsageError(f"folder {place.parent} does not exist; create it first")
        if not os.access(place.parent, os.W_OK):
            raise UsageError(f"cannot write {path}: its folder is read-only")
        mode = place.stat().st_mode
    except FileNotFoundError:
        return place
    except OSError as error:
        raise MinkaError(f"cannot write {path}: {_reason(error)}") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is a device or a pipe; give the name of a file")
    if not os.access(place, os.W_OK):
        raise UsageError(f"{path} is read-only; give another name, or make it writable")
    if any(source.exists() and source.samefile(place) for source in inputs):
        raise UsageError(f"output {path} is the input; give another name")
    return place


def part_of(place: Path) -> Path:
    """A new hidden name beside a file, for what will become it."""
    return place.with_name(f".{place.name[:50]}.{secrets.token_hex(4)}.part")


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit inside, where they would end the process at once and leave parts behind.

    A signal that somebody handles or ignores stays as it is; other threads than the main one cannot change any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    plain = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in plain:
        signal.signal(number, _end)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # a generator may be closed by another one
            for number in plain:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class Staging:
    """The outputs of one job. Leaving the `with` block puts them in place; leaving it by an error removes them."""

    def __init__(self, *, force: bool = False, inputs: Sequence[Path] = ()) -> None:
        self._force = force
        self._inputs = inputs
        self._written: list[tuple[Path, Path]] = []
        self._signals = ended_by_signals()

    def __enter__(self) -> Self:
        self._signals.__enter__()
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
            self._signals.__exit__(None, None, None)

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[BinaryIO]:
        """A new file for writing that will become `path`. It is on the disk when the block is left.

        Raises:
            UsageError: `path` is taken and may not be overwritten, is no file, or its folder does not exist.
            MinkaError: the operating system refused, for example because the disk is full.
        """
        place = destination(path)
        if not self._force:
            _refuse_overwrite(path, self._inputs)
        part = part_of(place)
        self._written.append((part, place))
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
