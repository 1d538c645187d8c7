from __future__ import annotations

from collections.abc import Iterator

import pytest

from minka.errors import UsageError
from minka.params import ServerParams
from minka.protocols.gcp import Vertex
from minka.server.app import build_app
from tests.fakes import FakeBackend
from tests.server.site import MESSAGES, Site, error_of, fake_runtime

FORMAT = "@requestFormat"
CHAT = {FORMAT: "chatCompletions", "messages": MESSAGES, "max_tokens": 4}


def site_of(backend: FakeBackend, vertex: Vertex | None, **params: object) -> Site:
    site = Site(vertex=vertex, params=ServerParams(**params))  # type: ignore[arg-type]
    site.app.state.minka.runtime = fake_runtime(backend)
    return site


@pytest.fixture
def site() -> Iterator[Site]:
    with FakeBackend() as backend, site_of(backend, Vertex(health="/alive")) as made:
        yield made


def test_instances_are_answered_in_order_each_by_its_route(site: Site) -> None:
    instances = [
        CHAT,
        {FORMAT: "completion", "prompt": "a", "n_predict": 3, "stream": True},
        {FORMAT: "/tokenize", "content": "ab"},
    ]
    response = site.post("/predict", {"instances": instances})
    assert response.status_code == 200
    chat, native, tokens = response.json()["predictions"]
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert (native["tokens_predicted"], native["stop"]) == (3, True)
    assert tokens == {"tokens": [97, 98]}


def test_an_instance_that_fails_has_its_error_in_its_place(site: Site) -> None:
    wrong = [{**CHAT, "messages": 7}, {FORMAT: "no such"}, 3, {**CHAT, "max_tokens": -5}]
    predictions = site.post("/predict", {"instances": [*wrong, CHAT]}).json()["predictions"]
    assert [prediction["error"]["code"] for prediction in predictions[:4]] == [400] * 4
    assert predictions[4]["usage"]["completion_tokens"] == 4
    assert site.post("/predict", {"instances": []}).json() == {"predictions": []}


def test_a_body_without_instances_is_refused(site: Site) -> None:
    assert error_of(site.post("/predict", {"instances": {}}), 400)["param"] == "instances"
    error_of(site.post("/predict", b"["), 400)
    error_of(site.get("/predict"), 405)


def test_health_has_a_second_path(site: Site) -> None:
    assert site.get("/alive").json() == site.get("/health").json()


def test_a_prediction_needs_the_key_and_its_instances_have_it() -> None:
    with FakeBackend() as backend, site_of(backend, Vertex(health="/alive"), api_key=("secret",)) as site:
        error_of(site.post("/predict", {"instances": [CHAT]}), 401)
        answer = site.post("/predict", {"instances": [CHAT]}, authorization="Bearer secret").json()
        assert "choices" in answer["predictions"][0]
        assert site.get("/alive").status_code == 200


def test_without_vertex_there_is_no_such_route() -> None:
    with FakeBackend() as backend, site_of(backend, None) as site:
        error_of(site.post("/predict", {"instances": [CHAT]}), 404)


def test_a_prefix_is_before_it_too() -> None:
    with FakeBackend() as backend, site_of(backend, Vertex(), api_prefix="/api") as site:
        answer = site.post(
            "/api/predict", {"instances": [CHAT, {FORMAT: "/completion", "prompt": "a", "n_predict": 1}]}
        )
        assert ["choices" in answer.json()["predictions"][0], "content" in answer.json()["predictions"][1]] == [
            True
        ] * 2


def test_a_route_that_is_taken_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="AIP_PREDICT_ROUTE"):
        build_app(ServerParams(), Vertex(predict="/completion"))
