from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from typing import cast

import pytest

from minka.errors import RequestError
from minka.params import GenerationParams, SamplingParams, rows
from minka.protocols.openapi import TOLD, openapi_object
from minka.protocols.route import Completion, Computed, Prefill, discover
from tests.protocols.values import at, served_for

Json = dict[str, object]

DOCUMENT = cast("Json", json.loads(json.dumps(openapi_object(), allow_nan=False)))
SHARED_TABLES = ("Generation", "Sampling")
ROUTES = {route.paths[0]: route for route in discover()}


def operations() -> Iterator[tuple[str, str, Json]]:
    for path, item in cast("dict[str, Json]", DOCUMENT["paths"]).items():
        for method, operation in item.items():
            yield path, method, cast("Json", operation)


def refs(value: object) -> Iterator[str]:
    """All references of a JSON value."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        yield from chain.from_iterable(map(refs, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(refs, value))


def properties(name: str) -> dict[str, Json]:
    return cast("dict[str, Json]", at(DOCUMENT, "components", "schemas", name, "properties"))


def refusal(body: Json, path: str = "/completion") -> RequestError | None:
    """What a route says to a body, None if it takes it."""
    route = ROUTES[path]
    try:
        (route.answer if isinstance(route, Computed) else route.decode)(body, served_for(path))
    except RequestError as error:
        return error
    return None


# -- the document ------------------------------------------------------------------------------------------------------


def test_every_reference_leads_somewhere() -> None:
    found = set(refs(DOCUMENT))
    assert found
    for reference in found:
        at(DOCUMENT, *reference.removeprefix("#/").split("/"))


def test_nothing_is_defined_that_nobody_refers_to() -> None:
    components = cast("dict[str, Json]", DOCUMENT["components"])
    defined = {f"#/components/{part}/{name}" for part, made in components.items() for name in made}
    assert {name for name in defined - set(refs(DOCUMENT)) if "securitySchemes" not in name} == set()


def test_operations_have_names_of_their_own_and_a_summary() -> None:
    ids = [str(operation["operationId"]) for _, _, operation in operations()]
    assert sorted(set(ids)) == sorted(ids)
    assert all(name.isidentifier() for name in ids)
    assert all(operation["summary"] and operation["tags"] for _, _, operation in operations())


def test_a_path_is_described_by_its_parameters() -> None:
    for path, _, operation in operations():
        names = {at(one, "name") for one in cast("list[Json]", operation.get("parameters", [])) if one["in"] == "path"}
        assert names == {part.strip("{}") for part in path.split("/") if part.startswith("{")}


def test_every_error_has_the_one_shape() -> None:
    for status, response in cast("dict[str, Json]", at(DOCUMENT, "components", "responses")).items():
        assert status.startswith(("4", "5"))
        schema = at(response, "content", "application/json", "schema")
        assert schema == {"$ref": "#/components/schemas/Error"}
    assert set(properties("Error")) == {"error"}


def test_keys_can_be_sent_in_two_ways_and_some_paths_need_none() -> None:
    schemes = cast("dict[str, Json]", at(DOCUMENT, "components", "securitySchemes"))
    assert {(scheme["type"], scheme.get("scheme"), scheme.get("name")) for scheme in schemes.values()} == {
        ("http", "bearer", None),
        ("apiKey", None, "X-Api-Key"),
    }
    open_paths = {path for path, _, operation in operations() if operation.get("security") == [{}]}
    assert open_paths == {"/health", "/v1/health", "/openapi.json", "/docs", "/"}


def test_a_prefix_is_the_servers_address() -> None:
    assert at(openapi_object("/llm"), "servers", 0, "url") == "/llm"
    assert at(DOCUMENT, "servers", 0, "url") == "/"


def test_an_alias_says_whose_it_is() -> None:
    aliases = {path: operation["x-alias-of"] for path, _, operation in operations() if "x-alias-of" in operation}
    expected = {path: one.paths[0] for one in (*discover(), *TOLD) for path in one.paths[1:]}
    assert aliases == expected
    assert aliases["/chat/completions"] == "/v1/chat/completions"


def test_a_completion_is_described_whole_and_streamed() -> None:
    for route in discover():
        content = at(DOCUMENT, "paths", route.paths[0], "post", "responses", "200", "content")
        assert ("text/event-stream" in cast("Json", content)) == isinstance(route, Completion)
        assert all(at(media, "schema") for media in cast("Json", content).values())


# -- fields ------------------------------------------------------------------------------------------------------------


def test_every_field_of_the_table_is_described() -> None:
    for name, cls in zip(SHARED_TABLES, (GenerationParams, SamplingParams), strict=True):
        fields = {field for row in rows(cls) for field in row.param.http}
        assert properties(name).keys() == fields
        assert all(one["description"] for one in properties(name).values())


@pytest.mark.parametrize("table", SHARED_TABLES)
def test_a_default_is_a_value_that_the_field_takes(table: str) -> None:
    for name, schema in properties(table).items():
        if "default" in schema:
            assert refusal({"prompt": "a", name: schema["default"]}) is None, name
        assert refusal({"prompt": "a", name: None}) is None, name


@pytest.mark.parametrize("table", SHARED_TABLES)
def test_a_bound_is_where_values_are_refused(table: str) -> None:
    tried = 0
    for name, schema in properties(table).items():
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                error = refusal({"prompt": "a", name: cast("float", schema[bound]) + step})
                assert error is not None, name
                assert error.param == name
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("table", SHARED_TABLES)
def test_what_is_said_to_be_limited_is_not_refused(table: str) -> None:
    for name, schema in properties(table).items():
        if str(schema.get("x-range", "")).endswith("limited"):
            assert refusal({"prompt": "a", name: -(10**8)}) is None, name
            assert refusal({"prompt": "a", name: 10**8}) is None, name


@pytest.mark.parametrize("table", SHARED_TABLES)
def test_a_value_of_another_type_is_refused(table: str) -> None:
    for name in properties(table):
        error = refusal({"prompt": "a", name: {"no": "such"} if name != "logit_bias" else 7})
        assert error is not None, name
        assert error.param == name


@pytest.mark.parametrize(
    ("path", "name"), [(path, field.name) for path, route in ROUTES.items() for field in route.fields]
)
def test_a_routes_own_field_is_one_that_it_reads(path: str, name: str) -> None:
    error = refusal({**ROUTES[path].example, name: 3.25}, path)
    assert error is not None
    assert error.param == name


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_called_required_is_and_the_rest_is_not(path: str) -> None:
    example = dict(ROUTES[path].example)
    take = partial(refusal, path=path)
    one_of = ("prompt", "messages") if isinstance(ROUTES[path], Prefill) else ("documents", "texts")
    for field in ROUTES[path].fields:
        if field.name in one_of:
            continue
        without = take({name: value for name, value in example.items() if name != field.name})
        assert (without is not None) == field.required
        if not field.required:
            assert take({**example, field.name: None}) is None


def test_accepted_fields_have_no_effect() -> None:
    for name, schema in properties("Accepted").items():
        assert refusal({"prompt": "a", name: cast("list[object]", schema.get("enum", ["any"]))[0]}) is None


def test_defaults_are_the_servers_own() -> None:
    sampling = replace(SamplingParams(), temperature=0.25, logit_bias=((3, 1.0),))
    document = openapi_object("", sampling, replace(GenerationParams(), n_predict=99))
    assert at(document, "components", "schemas", "Sampling", "properties", "temperature", "default") == 0.25
    assert at(document, "components", "schemas", "Generation", "properties", "n_predict", "default") == 99


def test_a_forbidden_token_among_the_defaults_is_told_as_a_request_says_it() -> None:
    document = openapi_object("", replace(SamplingParams(), logit_bias=((3, -inf), (4, 1.5))))
    default = at(document, "components", "schemas", "Sampling", "properties", "logit_bias", "default")
    assert default == [[3, False], [4, 1.5]]
    assert refusal({"prompt": "a", "logit_bias": default}) is None
