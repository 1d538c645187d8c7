"""Fields that no route reads: told in the log, once, with what was probably meant; the request is answered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytest

from minka.errors import MinkaError
from minka.protocols.route import Completion, Embedding, Prefill, discover
from minka.server.unread import _MAX_TOLD, known_fields
from tests.fakes import FakeBackend
from tests.protocols.values import served_for
from tests.server.site import CHAT, MESSAGES, Site, fake_runtime

WATCHED = [route for route in discover() if isinstance(route, Completion | Embedding | Prefill)]


@pytest.fixture
def own_site() -> Iterator[Site]:
    """A site that has told of nothing yet."""
    with Site(runtime=fake_runtime(FakeBackend())) as made:
        yield made


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_misspelt_field_is_told_once_with_what_was_meant(own_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        answer = own_site.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, "temprature": 0})
        assert answer.status_code == 200
    (line,) = told(caplog)
    assert line == f'{CHAT} has no field "temprature", so it had no effect; did you mean "temperature"?'


def test_a_field_like_no_other_has_no_hint(own_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    own_site.post("/completion", {"prompt": "a", "n_predict": 1, "tfs_z": 1.0})
    assert told(caplog) == ['/completion has no field "tfs_z", so it had no effect']


def test_what_is_refused_is_not_told(own_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert own_site.post(CHAT, {"mesages": MESSAGES}).status_code == 400
    assert told(caplog) == []


def test_a_client_cannot_fill_the_log(own_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    names = {f"field\n{index}" + "x" * 10_000: 1 for index in range(_MAX_TOLD + 50)}
    assert own_site.post("/completion", {"prompt": "a", "n_predict": 1} | names).status_code == 200
    assert len(told(caplog)) == _MAX_TOLD
    assert all(len(line) < 160 and "\n" not in line for line in told(caplog))


class Recorder(dict[str, object]):
    """A body that notes what it is asked for."""

    def __init__(self, body: Mapping[str, object]) -> None:
        super().__init__(body)
        self.asked: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


@pytest.mark.parametrize("route", WATCHED, ids=lambda route: route.paths[0])
def test_what_a_route_reads_is_known(route: Completion | Embedding | Prefill) -> None:
    body = Recorder(route.example)
    try:
        route.decode(body, served_for(route.paths[0]))
    except MinkaError as error:
        pytest.fail(f"the example is refused: {error}")
    assert body.asked - known_fields(route) == set()
    assert body.keys() <= known_fields(route)
