"""The lines of a batch: a request each on the way in, an answer each on the way out, in OpenAI's form."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minka.errors import RequestError
from minka.protocols.batches import Problem
from minka.protocols.body import JsonObject, decode_json
from minka.protocols.exchange import encode

MAX_LINES = 50_000
"""Requests in one batch, as OpenAI allows."""

MAX_PROBLEMS = 100
"""Problems of one file that are told."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request. `number` is its line, counted from 1."""

    number: int
    custom_id: str
    url: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a line: a line of the output file, or, if not `ok`, of the error file; without its line end."""

    number: int
    ok: bool
    data: bytes


class BadLineError(RequestError):
    """A line that is no request; `code` is a word for programs."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, with their numbers."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield number, raw


def parse_line(number: int, raw: bytes, urls: Collection[str]) -> Line:
    """The request of a line, which must be for one of `urls`. Raises BadLineError."""
    try:
        entry = decode_json(raw)
    except RequestError as error:
        raise BadLineError("invalid_json_line", f"this line is no request: {error}") from None
    custom_id, url, body = entry.get("custom_id"), entry.get("url"), entry.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLineError("missing_required_parameter", '"custom_id" must be a text', "custom_id")
    if entry.get("method", "POST") != "POST":
        raise BadLineError("invalid_method", '"method" must be "POST"', "method")
    if not isinstance(url, str) or url not in urls:
        raise BadLineError("invalid_url", f'"url" must be {" or ".join(sorted(urls))}', "url")
    if not isinstance(body, dict):
        raise BadLineError("missing_required_parameter", '"body" must be an object', "body")
    return Line(number, custom_id, url, body)


def check_file(path: Path, urls: Collection[str]) -> tuple[int, list[Problem]]:
    """How many requests a file has, and what is wrong with it."""
    n_lines, seen, problems = 0, dict[str, int](), list[Problem]()
    for number, raw in read_lines(path):
        n_lines += 1
        try:
            line = parse_line(number, raw, urls)
            if line.custom_id in seen:
                known = seen[line.custom_id]
                raise BadLineError("duplicate_custom_id", f'line {known} has the same "custom_id"', "custom_id")
        except BadLineError as error:
            problems.append(Problem(error.code, error.message, number, error.param))
            if len(problems) == MAX_PROBLEMS:
                break
        else:
            seen[line.custom_id] = number
    if n_lines > MAX_LINES:
        problems.append(Problem("too_many_tasks", f"the file has {n_lines} requests, at most {MAX_LINES} are allowed"))
    if not n_lines:
        problems.append(Problem("empty_file", "the file has no requests"))
    return n_lines, problems


def answered(line: Line, status: int, request_id: str, body: object) -> Result:
    """The result of a line that has an answer, good or bad."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return Result(line.number, status == 200, _encode(line.custom_id, response, None))


def unanswered(number: int, raw: bytes, code: str, message: str) -> Result:
    """The result of a line that nobody worked on."""
    return Result(number, ok=False, data=_encode(_custom_id(raw), None, {"code": code, "message": message}))


def _custom_id(raw: bytes) -> str | None:
    entry = msgspec.json.decode(raw)
    return entry.get("custom_id") if isinstance(entry, dict) else None


def _encode(custom_id: str | None, response: Mapping[str, object] | None, error: Mapping[str, str] | None) -> bytes:
    id = f"batch_req_{secrets.token_hex(12)}"
    return encode({"id": id, "custom_id": custom_id, "response": response, "error": error})
