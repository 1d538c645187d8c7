from __future__ import annotations

import pytest

from minka.errors import RequestError, UsageError
from minka.protocols.gcp import MAX_INSTANCES, Instance, Vertex, alias, decode_instances

PATHS = ("/completion", "/v1/completions", "/v1/chat/completions", "/chat/completions", "/apply-template")
CHAT = "@requestFormat"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/completion", "completion"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/lora-adapters/load", "loraAdaptersLoad"),
        ("/slots/{id_slot}", "slots"),
    ],
)
def test_a_path_has_a_name(path: str, name: str) -> None:
    assert alias(path) == name


def test_instances_name_routes_by_alias_or_path() -> None:
    body = {
        "instances": [
            {CHAT: "chatCompletions", "messages": [], "stream": True},
            {CHAT: "/apply-template", "messages": []},
        ]
    }
    assert decode_instances(body, PATHS) == [
        Instance("/v1/chat/completions", {"messages": []}),
        Instance("/apply-template", {"messages": []}),
    ]


@pytest.mark.parametrize(
    ("instance", "param"),
    [
        (7, "instances[0]"),
        ({}, "instances[0].@requestFormat"),
        ({CHAT: 7}, "instances[0].@requestFormat"),
        ({CHAT: "nothing"}, "instances[0].@requestFormat"),
        ({CHAT: "/predict"}, "instances[0].@requestFormat"),
    ],
)
def test_what_is_wrong_with_one_is_its_own_answer(instance: object, param: str) -> None:
    wrong, right = decode_instances({"instances": [instance, {CHAT: "completion", "prompt": "a"}]}, PATHS)
    assert isinstance(wrong, RequestError)
    assert wrong.param == param
    assert right == Instance("/completion", {"prompt": "a"})


@pytest.mark.parametrize("instances", [None, {}, "x", [{}] * (MAX_INSTANCES + 1)])
def test_a_body_without_instances_is_refused(instances: object) -> None:
    with pytest.raises(RequestError) as caught:
        decode_instances({"instances": instances}, PATHS)
    assert caught.value.param == "instances"


def test_the_environment_says_whether_and_where() -> None:
    assert Vertex.from_env({}) is None
    assert Vertex.from_env({"AIP_MODE": "TRAINING", "AIP_HTTP_PORT": "99"}) is None
    assert Vertex.from_env({"AIP_MODE": "PREDICTION"}) == Vertex(8080, "/predict", "")
    said = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "81",
        "AIP_PREDICT_ROUTE": "v/predict",
        "AIP_HEALTH_ROUTE": "/v/ok",
    }
    assert Vertex.from_env(said) == Vertex(81, "/v/predict", "/v/ok")


@pytest.mark.parametrize("name", ["AIP_HTTP_PORT", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"])
def test_a_bad_value_names_its_variable(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Vertex.from_env({"AIP_MODE": "PREDICTION", name: "a{b}"})
