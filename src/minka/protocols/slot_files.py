"""llama-server's `POST /slots/{id}?action=save|restore|erase` on the wire: names of files, answers."""

from __future__ import annotations

from minka.errors import RequestError
from minka.params import GenerationParams, parse_fields
from minka.protocols.body import JsonObject
from minka.protocols.schema import COUNT, NUMBER, TEXT, Field, either, record

ACTIONS = ("save", "restore", "erase")
_MAX_NAME = 255
"""Bytes; the most that common file systems have."""
_FORBIDDEN = frozenset('/\\:*?"<>|\x7f\uff0e\u2215\u2216\ufffd\ufeff')
"""Path separators and what some system reads as one, what some system cannot store, and what nobody can see."""

FIELDS = (
    Field("filename", TEXT, "the file's name in the directory of --slot-save-path; not for erase"),
    Field("cache_salt", TEXT, "restore: the text serves requests with this salt only"),
)
RESULT = either(
    record(id_slot=COUNT, filename=TEXT, n_saved=COUNT, n_written=COUNT, timings=record(save_ms=NUMBER)),
    record(id_slot=COUNT, filename=TEXT, n_restored=COUNT, n_read=COUNT, timings=record(restore_ms=NUMBER)),
    record(id_slot=COUNT, n_erased=COUNT),
)


def decode_slot(text: str) -> int:
    """A slot's number in a path; whether there is such a slot is the engine's to say."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RequestError("Invalid slot ID", param="id_slot")
    return int(text)


def decode_action(text: str | None) -> str:
    """What is to be done."""
    if text not in ACTIONS:
        raise RequestError("Invalid action", param="action")
    return text


def decode_filename(body: JsonObject) -> str:
    """The name of a file in a directory: it can lead nowhere else, and every file system takes it."""
    name = body.get("filename")
    if not isinstance(name, str):
        raise RequestError('"filename" is required and must be a string', param="filename")
    if not _is_valid(name):
        raise RequestError("Invalid filename", param="filename")
    return name


def _is_valid(name: str) -> bool:
    """llama-server's rules (fs_validate_filename of common/common.cpp)."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    control = any(ord(char) < 0x20 or 0x80 <= ord(char) < 0xA0 for char in name)
    edges = name[:1] == " " or name[-1:] in (" ", ".")
    return 0 < size <= _MAX_NAME and not control and not edges and ".." not in name and _FORBIDDEN.isdisjoint(name)


def decode_salt(body: JsonObject) -> str:
    """Whom restored text may serve."""
    return parse_fields(GenerationParams, {"cache_salt": body.get("cache_salt")}, GenerationParams()).cache_salt


def saved_object(slot: int, name: str, n_tokens: int, n_bytes: int, ms: float) -> dict[str, object]:
    """The answer to `save`."""
    return {
        "id_slot": slot,
        "filename": name,
        "n_saved": n_tokens,
        "n_written": n_bytes,
        "timings": {"save_ms": ms},
    }


def restored_object(slot: int, name: str, n_tokens: int, n_bytes: int, ms: float) -> dict[str, object]:
    """The answer to `restore`."""
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": n_tokens,
        "n_read": n_bytes,
        "timings": {"restore_ms": ms},
    }


def erased_object(slot: int, n_tokens: int) -> dict[str, object]:
    """The answer to `erase`."""
    return {"id_slot": slot, "n_erased": n_tokens}
