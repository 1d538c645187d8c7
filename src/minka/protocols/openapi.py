"""The OpenAPI 3.1 document, made from the routes of all protocols and the parameter table.

Routes that tell of the server itself are listed here, since the module that serves them is above this layer; a test
compares the document with what the application serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minka.params import ACCEPTED_FIELDS, GenerationParams, SamplingParams, rows
from minka.protocols.batches import (
    BATCH,
    BATCH_FIELDS,
    DELETED,
    FILE,
    FILE_FIELDS,
    PAGE_QUERY,
    page_of,
)
from minka.protocols.cache import CACHE
from minka.protocols.chat_control import CONTROL, CONTROL_FIELDS
from minka.protocols.lora import ADAPTER, LOAD_FIELDS, SCALES, SUCCESS, UNLOAD_FIELDS
from minka.protocols.metrics import MEDIA_TYPE
from minka.protocols.responses import (
    FOLLOW_QUERY,
    FORGOTTEN,
    ITEMS,
    ITEMS_QUERY,
    LOOKUP_FIELDS,
    RESPONSE,
    STREAMS,
)
from minka.protocols.route import Completion, Embedding, Prefill, Route, discover
from minka.protocols.schema import COUNT, FLAG, TEXT, Field, Schema, body_of, listed, record, ref, row_properties, word
from minka.protocols.shapes import SHARED
from minka.protocols.slot_files import FIELDS, RESULT
from minka.protocols.tokenizer_info import TOKENIZER
from minka.version import VERSION

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Object = Mapping[str, object]

JSON, HTML, BYTES, FORM = "application/json", "text/html", "application/octet-stream", "multipart/form-data"
DESCRIPTION = (
    "GGUF models over the APIs of OpenAI, Anthropic and llama-server. In a request, null is the same as leaving a "
    "field out. Fields that no API has are ignored, and named in the server's log; those that one has and Minka does "
    "not support are refused by name."
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

    `fields` are those of its body, which may be left out unless one is required; `body` is a body that is no object.
    `missing`: 404 for what is not there.
    """

    paths: tuple[str, ...]
    summary: str
    result: Schema
    method: str = "get"
    media: str = JSON
    query: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    body: Schema | None = None
    missing: bool = False
    public: bool = False
    optional: bool = False
    form: bool = False
    """Whether its body is a form with a file, and not JSON."""


_FILES, _BATCHES = ("/v1/files",), ("/v1/batches",)
_FILE, _BATCH = ("/v1/files/{id}",), ("/v1/batches/{id}",)

_RESPONSE = ("/v1/responses/{id}", "/responses/{id}")


def _under(paths: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(path + name for path in paths)


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
    Told(("/tokenizer_info",), "The tokenizer, in the words of Hugging Face's tokenizer_config.json", TOKENIZER),
    Told(
        ("/v1/chat/completions/control", "/chat/completions/control"),
        "End the reasoning of an answer that is being written (needs reasoning_control in its request)",
        CONTROL,
        method="post",
        fields=CONTROL_FIELDS,
    ),
    Told(("/lora-adapters",), "The LoRA adapters that are loaded", listed(ADAPTER)),
    Told(
        ("/lora-adapters",),
        "Set the factors of requests that say nothing; adapters that are left out get 0",
        SUCCESS,
        method="post",
        body=SCALES,
    ),
    Told(
        ("/lora-adapters/load",),
        "Load an adapter",
        ADAPTER,
        method="post",
        fields=LOAD_FIELDS,
        optional=True,
    ),
    Told(
        ("/lora-adapters/unload",),
        "Unload an adapter as soon as no running request needs it",
        SUCCESS,
        method="post",
        fields=UNLOAD_FIELDS,
        missing=True,
    ),
    Told(_RESPONSE, "A kept response, or its events while it is made", RESPONSE, query=FOLLOW_QUERY, missing=True),
    Told(_RESPONSE, "Forget a response; one that is made is stopped", FORGOTTEN, method="delete", missing=True),
    Told(_under(_RESPONSE, "/input_items"), "What a response was made from", ITEMS, query=ITEMS_QUERY, missing=True),
    Told(_under(_RESPONSE, "/cancel"), "Stop a background response", RESPONSE, method="post", missing=True),
    Told(
        ("/v1/stream",),
        "A stream that was sent with the header X-Conversation-Id, once more",
        TEXT,
        media="text/event-stream",
        query=(("conv_id", "the header's value"), ("from", "the byte to begin with; 0 if not given")),
        missing=True,
    ),
    Told(
        ("/v1/stream",),
        "Stop such a stream and forget it; the answer is 204 and empty",
        TEXT,
        method="delete",
        query=(("conv_id", "the header's value"),),
    ),
    Told(("/v1/streams/lookup",), "What is known of such streams", STREAMS, method="post", fields=LOOKUP_FIELDS),
    Told(("/cache",), "What the prefix cache holds", CACHE, optional=True),
    Told(("/cache",), "Drop everything that is not pinned", record(n_dropped=COUNT), method="delete", optional=True),
    Told(("/cache/pins/{name}",), "Let go of a pinned prefix", record(success=FLAG), method="delete", optional=True),
    Told(_FILES, "Keep a file of requests", FILE, method="post", fields=FILE_FIELDS, optional=True, form=True),
    Told(
        _FILES,
        "The files",
        page_of(FILE),
        query=(("purpose", "batch or batch_output"), *PAGE_QUERY),
        optional=True,
    ),
    Told(_FILE, "One file", FILE, optional=True),
    Told(_FILE, "Delete a file that no batch needs", DELETED, method="delete", optional=True),
    Told(("/v1/files/{id}/content",), "What is in a file", TEXT, media=BYTES, optional=True),
    Told(_BATCHES, "Work on a file of requests", BATCH, method="post", fields=BATCH_FIELDS, optional=True),
    Told(_BATCHES, "The batches", page_of(BATCH), query=PAGE_QUERY, optional=True),
    Told(_BATCH, "One batch", BATCH, optional=True),
    Told(("/v1/batches/{id}/cancel",), "Cancel a batch; what it has is kept", BATCH, method="post", optional=True),
    Told(("/metrics",), "Counters and histograms for Prometheus", TEXT, media=MEDIA_TYPE, optional=True),
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
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "tags": [{"name": name} for name in ("Generation", "Embeddings", "Text and tokens", "Server")],
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
        if isinstance(route, Completion | Prefill | Embedding):
            problems.insert(3, "429")
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
        case Embedding():
            return "Embeddings"
        case Prefill():
            return "Server"
        case _:
            return "Text and tokens"


def _told() -> Iterator[tuple[str, str, Object]]:
    for route in TOLD:
        first, *_ = route.paths
        problems = (
            (["400"] if route.fields or route.body or route.query or "{id}" in first else [])
            + (["404"] if "{" in first or route.missing else [])
            + (["413"] if route.form else [])
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
            operation["requestBody"] = {
                "content": {FORM if route.form else JSON: {"schema": body_of(route.fields)}},
                "required": any(field.required for field in route.fields),
            }
        if route.body is not None:
            operation["requestBody"] = {"content": {JSON: {"schema": route.body}}, "required": True}
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
