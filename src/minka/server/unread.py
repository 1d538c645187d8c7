"""Fields of a request that nothing reads: said in the log, since most of them are misspelt.

They are not refused: clients send fields of other servers along. Knows of a field only its name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import TypeVar

from minka.params import ACCEPTED_FIELDS, UNSUPPORTED_FIELDS, GenerationParams, SamplingParams, rows
from minka.protocols.body import READ_BY_ALL, JsonObject
from minka.protocols.route import Completion, Embedding, Prefill, Route
from minka.protocols.served import Served

T = TypeVar("T")
log = logging.getLogger("minka.server")

_MAX_TOLD = 256
"""Fields that are told of, of all routes together: what clients invent must not fill the log."""
_MAX_NAME = 64


def known_fields(route: Route) -> frozenset[str]:
    """The names of all fields that a route reads, refuses by name, or accepts without effect."""
    own = {field.name for field in route.fields}
    if isinstance(route, Completion):
        own |= {
            name for params in (SamplingParams, GenerationParams) for row in rows(params) for name in row.param.http
        }
        own |= UNSUPPORTED_FIELDS.keys() | READ_BY_ALL | route.aside
    return frozenset(own | ACCEPTED_FIELDS.keys())


class Unread:
    """Tells of each unknown field of a route once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def watched(self, route: Route) -> Route:
        """The route, which also tells of the fields of its requests that it did not read. It may run in any thread."""
        match route:
            case Embedding():
                return replace(route, decode=self._telling(route, route.decode))
            case Completion() | Prefill():
                return replace(route, decode=self._telling(route, route.decode))
            case _:
                return route

    def _telling(self, route: Route, read: Callable[[JsonObject, Served], T]) -> Callable[[JsonObject, Served], T]:
        path, known = route.paths[0], known_fields(route)

        def call(body: JsonObject, served: Served) -> T:
            found = read(body, served)
            if unread := body.keys() - known:
                self._tell(path, unread, known)
            return found

        return call

    def _tell(self, path: str, names: Iterable[str], known: frozenset[str]) -> None:
        for name in sorted(names):
            if (path, name) in self._told or len(self._told) >= _MAX_TOLD:
                continue
            self._told.add((path, name))
            near = get_close_matches(name[:_MAX_NAME], known, 1, 0.75)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            log.warning("%s has no field %s, so it had no effect%s", path, json.dumps(name[:_MAX_NAME]), hint)
