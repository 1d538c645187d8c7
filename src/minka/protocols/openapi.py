"""The OpenAPI 3.1 document, made from the routes of all protocols and the parameter table.

Routes that tell of the server itself are listed here, since the module that serves them is above this layer; a test
compares the document with what the application serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minka import __version__
from minka.params import ACCEPTED_FIELDS, GenerationParams, SamplingParams, rows
from minka.protocols.cache import CACHE
from minka.protocols.metrics import MEDIA_TYPE
from minka.protocols.route import Completion, Prefill, Route, discover
from minka.protocols.schema import COUNT, FLAG, TEXT, Field, Schema, body_of, listed, record, ref, row_properties, word
from minka.protocols.shapes import SHARED
from minka.protocols.slot_files import FIELDS, RESULT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Object = Mapping[str, object]

JSON, HTML = "application/json", "text/html"
DESCRIPTION = (
    "GGUF models over the APIs of OpenAI and llama-server. In a request, null is the same as leaving a field out. "
    "Fields that neither API has are ignored; those that one has and Minka does not support are refused by name."
)
PROBLEMS = {
    "400": "the request is wrong; `param` names the field",
    "401": "the API key is missing or wrong",
    "404": "there is no such model, or nothing of that name",
    "413": "the body is over the limit",
    "429": "the queue is full; try again after the seconds of the Retry-After header",
    "501": "the server was started without this",
    "503": "the model is loading, or the server is stopping",
}
"""What an error's status means."""


@dataclass(frozen=True, slots=True)
class Told:
    """A route that tells of the server or acts on it. `public`: needs no key. `optional`: 501 unless a flag allows it.

    `fields` are those of its body, which may be left out.
    """

    paths: tuple[str, ...]
    summary: str
    result: Schema
    method: str = "get"
    media: str = JSON
    query: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    public: bool = False
    optional: bool = False


TOLD = (
    Told(("/health", "/v1/health"), "Whether requests are served", record(status=word("ok")), public=True),
    Told(("/v1/models", "/models"), "The list of models", record(object=word("list"), data=listed(ref("Model")))),
    Told(("/v1/models/{name}",), "One model", ref("Model")),
    Told(("/props",), "Properties of the server and its model", ref("Props")),
    Told(("/props",), "Change properties (changes none)", record(success=FLAG), method="post", optional=True),
    Told(
        ("/slots",),
        "What every slot does",
        listed(ref("Slot")),
        query=(("fail_on_no_slot", "any value: 503 if no slot is free"),),
        optional=True,
    ),
    Told(
        ("/slots/{id_slot}",),
        "Save what a slot holds to a file, restore it, or empty the slot",
        RESULT,
        method="post",
        query=(("action", "save, restore or erase"),),
        fields=FIELDS,
        optional=True,
    ),
    Told(("/cache",), "What the prefix cache holds", CACHE, optional=True),
    Told(("/cache",), "Drop everything that is not pinned", record(n_dropped=COUNT), method="delete", optional=True),
    Told(("/cache/pins/{name}",), "Let go of a pinned prefix", record(success=FLAG), method="delete", optional=True),
    Told(("/metrics",), "Counters for Prometheus", TEXT, media=MEDIA_TYPE, optional=True),
    Told(("/openapi.json",), "This document", {"type": "object"}, public=True),
    Told(("/docs",), "This document, for people", TEXT, media=HTML, public=True),
    Told(("/",), "A page to try the model", TEXT, media=HTML, public=True),
)


def openapi_object(
    prefix: str = "", sampling: SamplingParams | None = None, generation: GenerationParams | None = None
) -> dict[str, object]:
    """The document. The defaults of request fields are the server's, if given."""
    routes = discover()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Minka",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "tags": [{"name": name} for name in ("Generation", "Text and tokens", "Server")],
        "paths": _paths(routes),
        "components": {
            "schemas": {
                **SHARED,
                "Sampling": _table(sampling or SamplingParams()),
                "Generation": _table(generation or GenerationParams()),
                "Accepted": _accepted(),
            },
            "requestBodies": {_name(route.paths[0]): _body(route) for route in routes},
            "responses": {status: _problem(text) for status, text in PROBLEMS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _name(path: str) -> str:
    """A path as a name for programs: `v1_models_name`."""
    return re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_") or "root"


# -- paths -------------------------------------------------------------------------------------------------------------


def _paths(routes: tuple[Route, ...]) -> Object:
    paths: dict[str, dict[str, object]] = {}
    for path, method, operation in (*_posts(routes), *_told()):
        paths.setdefault(path, {})[method] = {"operationId": f"{method}_{_name(path)}", **operation}
    return paths


def _posts(routes: tuple[Route, ...]) -> Iterator[tuple[str, str, Object]]:
    for route in routes:
        first, *_ = route.paths
        content: dict[str, Object] = {JSON: {"schema": route.result}}
        problems = ["400", "401", "413", "503"]
        if isinstance(route, Completion):
            content["text/event-stream"] = {"schema": route.chunk}
        if isinstance(route, Completion | Prefill):
            problems.insert(3, "429")
        if isinstance(route, Prefill):
            problems.insert(4, "501")
        operation: dict[str, object] = {
            "tags": [_tag(route)],
            "summary": route.summary,
            "requestBody": {"$ref": f"#/components/requestBodies/{_name(first)}"},
            "responses": _responses(content, problems),
        }
        for path in route.paths:
            yield path, "post", operation | _alias(path, first)


def _tag(route: Route) -> str:
    match route:
        case Completion():
            return "Generation"
        case Prefill():
            return "Server"
        case _:
            return "Text and tokens"


def _told() -> Iterator[tuple[str, str, Object]]:
    for route in TOLD:
        first, *_ = route.paths
        problems = (
            (["400"] if route.fields else [])
            + (["404"] if "{name}" in first else [])
            + (["501"] if route.optional else [])
            + ["503"]
        )
        operation: dict[str, object] = {
            "tags": ["Server"],
            "summary": route.summary,
            "parameters": _parameters(route),
            "responses": _responses({route.media: {"schema": route.result}}, problems),
        }
        if route.fields:
            operation["requestBody"] = {"content": {JSON: {"schema": body_of(route.fields)}}}
        if route.public:
            operation["security"] = [{}]
        for path in route.paths:
            yield path, route.method, operation | _alias(path, first)


def _alias(path: str, first: str) -> dict[str, str]:
    return {} if path == first else {"x-alias-of": first}


def _parameters(route: Told) -> list[Object]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": TEXT}
        for name in re.findall(r"{(\w+)}", route.paths[0])
    ]
    in_query = [{"name": name, "in": "query", "description": text, "schema": TEXT} for name, text in route.query]
    return [*in_path, *in_query]


def _responses(content: Object, problems: list[str]) -> Object:
    return {
        "200": {"description": "the answer", "content": content},
        **{status: {"$ref": f"#/components/responses/{status}"} for status in problems},
    }


# -- components --------------------------------------------------------------------------------------------------------


def _problem(text: str) -> Object:
    return {"description": text, "content": {JSON: {"schema": ref("Error")}}}


def _body(route: Route) -> Object:
    own = body_of(route.fields)
    schema: Schema = own
    if isinstance(route, Completion):
        schema = {"allOf": [own, ref("Generation"), ref("Sampling"), ref("Accepted")]}
    return {"required": True, "content": {JSON: {"schema": schema, "example": route.example}}}


def _table(defaults: DataclassInstance) -> Schema:
    """The request fields of one group of the parameter table."""
    properties: dict[str, Schema] = {}
    for row in rows(type(defaults)):
        properties |= row_properties(row, getattr(defaults, row.name))
    return {"type": "object", "properties": properties}


def _accepted() -> Schema:
    """Fields that clients send and that have no effect."""
    told = "accepted without effect"
    return {
        "type": "object",
        "properties": {
            name: {"description": told} if values is None else {"enum": [*values, None], "description": told}
            for name, values in ACCEPTED_FIELDS.items()
        },
    }
