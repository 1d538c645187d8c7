"""LoRA adapters on the wire: which are loaded, their factors, and which files may be loaded while the server runs.

`GET` and `POST /lora-adapters` are llama-server's; `/lora-adapters/load` and `/lora-adapters/unload` are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from minka.errors import NotSupportedError, RequestError
from minka.params import HUGE, json_type
from minka.protocols.body import JsonObject, decode_lora, decode_value
from minka.protocols.schema import COUNT, FLAG, NUMBER, TEXT, TOKEN, Field, listed, record
from minka.protocols.served import Served
from minka.types import Adapter


@dataclass(frozen=True, slots=True)
class LoraFiles:
    """What may be loaded over HTTP: the very files of the command line, and whatever lies in one directory.

    Nothing else: a client must not be able to make the server open a file of its choice.
    """

    files: tuple[Path, ...] = ()
    directory: Path | None = None

    def find(self, name: str) -> Path:
        """The file that a client names: by its path as on the command line, or by its name in the directory.

        Raises NotSupportedError if nothing may be loaded, RequestError for a name that is none of these.
        """
        if not self.files and self.directory is None:
            raise NotSupportedError("This server loads no adapters. Start it with `--lora-dir`")
        for file in self.files:
            if name == str(file):
                return file
        if self.directory is not None and (found := _inside(self.directory, name)) is not None:
            return found
        raise RequestError(
            f'"path": {name[:200]!r} may not be loaded: it is neither a file in --lora-dir nor one given with --lora',
            param="path",
        )


def _inside(directory: Path, name: str) -> Path | None:
    """A regular file right in the directory, None for anything else, links that lead out of it too."""
    found = next((entry for entry in directory.iterdir() if entry.name == name), None)
    if found is None or not found.is_file():
        return None
    file = found.resolve()
    return file if file.parent == directory.resolve() else None


def adapters_object(served: Served) -> list[dict[str, object]]:
    """llama-server's list of adapters; `scale` is what requests have that say nothing."""
    return [adapter_object(adapter) for adapter in served.adapters]


def adapter_object(adapter: Adapter) -> dict[str, object]:
    """One adapter."""
    return asdict(adapter)


def decode_scales(raw: bytes, known: Sequence[Adapter]) -> tuple[Adapter, ...]:
    """The adapters with the factors of a body `[{"id", "scale"}, ...]`; those that are left out get 0."""
    value = decode_value(raw)
    if not isinstance(value, list):
        raise RequestError(f"Request body must be an array, but is {json_type(value)}")
    scales = dict(decode_lora(value, known))
    return tuple(replace(adapter, scale=scales.get(adapter.id, 0.0)) for adapter in known)


def decode_load(body: JsonObject) -> tuple[str, float]:
    """The file's name and the factor of `/lora-adapters/load`."""
    path, scale = body.get("path"), body.get("scale")
    if not isinstance(path, str):
        raise RequestError(f'"path" must be a string, but is {json_type(path)}', param="path")
    if scale is None:
        return path, 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= HUGE:
        raise RequestError(f'"scale" must be a number between {-HUGE:g} and {HUGE:g}', param="scale")
    return path, float(scale)


def decode_unload(body: JsonObject) -> int:
    """The adapter's number of `/lora-adapters/unload`."""
    id = body.get("id")
    if isinstance(id, bool) or not isinstance(id, int):
        raise RequestError(f'"id" must be the number of an adapter, but is {json_type(id)}', param="id")
    return id


ADAPTER = record(id=COUNT, path=TEXT, scale=NUMBER, task_name=TEXT, prompt_prefix=TEXT)
SCALE = {"type": "number", "minimum": -HUGE, "maximum": HUGE}
SCALES = listed({**record(id=TOKEN, scale=SCALE), "required": ["id"]})
LOAD_FIELDS = (
    Field("path", TEXT, "a file's name in --lora-dir, or a path that was given with --lora", required=True),
    Field("scale", SCALE, "its factor where a request says nothing; 1 if not given"),
)
UNLOAD_FIELDS = (Field("id", TOKEN, "the adapter's id", required=True),)
SUCCESS = record(success=FLAG)
