"""Files and batch jobs on the wire, in OpenAI's form: `/v1/files`, `/v1/batches`. Knows not where they are kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from minka.errors import RequestError, UnsupportedError
from minka.params import json_type
from minka.protocols.body import JsonObject
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, Field, Schema, either, listed, record, word

PURPOSES = ("batch", "batch_output")
"""What a file is for: a client's file of requests, or what came of one."""

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
CLOSED = ("completed", "failed", "expired", "cancelled")
"""States of a batch: something is to be done for it, or nothing ever will be."""

MAX_LIMIT = 10_000
"""Entries in one answer of a list."""

_WINDOW = re.compile(r"([1-9][0-9]{0,2})(h|d)")
_MAX_METADATA = 16


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file. `created_at` is Unix time, `n_bytes` its size, `tenant` whose it is."""

    id: str
    filename: str
    purpose: str
    n_bytes: int
    created_at: int
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file cannot be a batch: what is wrong in which line (counted from 1)."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch. Times are Unix time, None for what has not happened; `tenant` is whose it is."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    status: str = "validating"
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    problems: tuple[Problem, ...] = ()
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asks for when it creates a batch; `seconds` is the completion window."""

    endpoint: str
    input_file_id: str
    completion_window: str
    seconds: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted: at most `limit` entries that follow the one with the id `after`."""

    limit: int
    after: str | None = None
    descending: bool = True


def decode_batch(body: JsonObject, endpoints: Collection[str]) -> Wanted:
    """The body of `POST /v1/batches`. `endpoints` are the routes that a batch may use."""
    endpoint = _text(body, "endpoint")
    if endpoint not in endpoints:
        raise RequestError(f'"endpoint" must be one of {", ".join(sorted(endpoints))}', param="endpoint")
    window = _text(body, "completion_window")
    match = _WINDOW.fullmatch(window)
    if match is None:
        raise RequestError('"completion_window" must be hours or days, as in "24h"', param="completion_window")
    seconds = int(match[1]) * (3600 if match[2] == "h" else 86400)
    if body.get("output_expires_after") is not None:
        raise UnsupportedError('field "output_expires_after" is not supported yet', param="output_expires_after")
    return Wanted(endpoint, _text(body, "input_file_id"), window, seconds, _metadata(body.get("metadata")))


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RequestError(f'"{name}" must be a string, but is {json_type(value)}', param=name)
    return value


def _metadata(value: object) -> Mapping[str, str]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise RequestError('"metadata" must be an object with strings', param="metadata")
    if len(value) > _MAX_METADATA or any(len(key) > 64 or len(text) > 512 for key, text in value.items()):
        raise RequestError(
            f'"metadata" may have {_MAX_METADATA} keys of up to 64 characters, with values of up to 512',
            param="metadata",
        )
    return value


def decode_page(query: Mapping[str, str], default: int) -> Page:
    """The query of a list: `limit`, `after`, `order` (desc or asc)."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= MAX_LIMIT):
        raise RequestError(f'"limit" must be a number from 1 to {MAX_LIMIT}', param="limit")
    if order not in ("asc", "desc"):
        raise RequestError('"order" must be asc or desc', param="order")
    return Page(int(limit), query.get("after"), order == "desc")


def decode_purpose(value: object) -> str:
    """The purpose of a file that is uploaded."""
    if value != "batch":
        raise RequestError('"purpose" must be "batch": files are for batches here', param="purpose")
    return "batch"


def file_object(facts: FileFacts) -> dict[str, object]:
    """OpenAI's file object."""
    return {
        "id": facts.id,
        "object": "file",
        "bytes": facts.n_bytes,
        "created_at": facts.created_at,
        "expires_at": None,
        "filename": facts.filename,
        "purpose": facts.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(facts: BatchFacts) -> dict[str, object]:
    """OpenAI's batch object."""
    problems = [
        {"code": problem.code, "line": problem.line, "message": problem.message, "param": problem.param}
        for problem in facts.problems
    ]
    return {
        "id": facts.id,
        "object": "batch",
        "endpoint": facts.endpoint,
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": facts.input_file_id,
        "completion_window": facts.completion_window,
        "status": facts.status,
        "output_file_id": facts.output_file_id,
        "error_file_id": facts.error_file_id,
        "created_at": facts.created_at,
        "in_progress_at": facts.in_progress_at,
        "expires_at": facts.expires_at,
        "finalizing_at": facts.finalizing_at,
        "completed_at": facts.completed_at,
        "failed_at": facts.failed_at,
        "expired_at": facts.expired_at,
        "cancelling_at": facts.cancelling_at,
        "cancelled_at": facts.cancelled_at,
        "request_counts": {"total": facts.total, "completed": facts.completed, "failed": facts.failed},
        "metadata": dict(facts.metadata) or None,
    }


def list_object(entries: list[dict[str, object]], *, has_more: bool) -> dict[str, object]:
    """OpenAI's page of a list."""
    return {
        "object": "list",
        "data": entries,
        "first_id": entries[0]["id"] if entries else None,
        "last_id": entries[-1]["id"] if entries else None,
        "has_more": has_more,
    }


def deleted_object(id: str) -> dict[str, object]:
    """What a deletion is answered with."""
    return {"id": id, "object": "file", "deleted": True}


# -- the API's description ---------------------------------------------------------------------------------------------

_TIME = either(COUNT, NULL)
FILE: Schema = record(
    id=TEXT, object=word("file"), bytes=COUNT, created_at=COUNT, filename=TEXT, purpose=word(*PURPOSES)
)
BATCH: Schema = record(
    id=TEXT,
    object=word("batch"),
    endpoint=TEXT,
    errors=either(record(object=word("list"), data=listed(record(code=TEXT, line=_TIME, message=TEXT))), NULL),
    input_file_id=TEXT,
    completion_window=TEXT,
    status=word(*OPEN, *CLOSED),
    output_file_id=either(TEXT, NULL),
    error_file_id=either(TEXT, NULL),
    created_at=COUNT,
    expires_at=COUNT,
    request_counts=record(total=COUNT, completed=COUNT, failed=COUNT),
    metadata=either({"type": "object"}, NULL),
)
DELETED: Schema = record(id=TEXT, object=word("file"), deleted=FLAG)
FILE_FIELDS = (
    Field("purpose", word("batch"), "what the file is for", required=True),
    Field("file", {"type": "string", "format": "binary"}, "the file: a request a line, as JSON", required=True),
)
BATCH_FIELDS = (
    Field("input_file_id", TEXT, "an uploaded file with a request a line", required=True),
    Field("endpoint", TEXT, "the route that all its requests are for", required=True),
    Field("completion_window", {**TEXT, "pattern": f"^{_WINDOW.pattern}$"}, "as in 24h", required=True),
    Field("metadata", {"type": "object", "additionalProperties": TEXT}, "up to 16 texts to find it by"),
)
PAGE_QUERY = (
    ("limit", "the most entries"),
    ("after", "only entries behind the one with this id"),
    ("order", "desc (the newest first) or asc"),
)


def page_of(entry: Schema) -> Schema:
    """The schema of a page of a list."""
    ids = either(TEXT, NULL)
    return record(object=word("list"), data=listed(entry), first_id=ids, last_id=ids, has_more=FLAG)
