"""Ending the reasoning of an answer while it is written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import httpx
import pytest

from minka.chat.formats.find import find_format
from minka.engine.engine import Engine, EngineConfig
from minka.engine.memory import MemoryConfig
from minka.grammar.compiler import Grammars
from minka.native.model import Model
from minka.params import ServerParams
from minka.runtime import Runtime
from tests.chat.test_turn import OPENS
from tests.fakes import WAIT, FakeBackend
from tests.protocols.values import made_served
from tests.server.site import CHAT, MESSAGES, Connection, Live, events

CONTROL = "/v1/chat/completions/control"


class _NoModel:
    def close(self) -> None:
        """There is nothing to free."""


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """It writes without an end, and stands still until the test lets it go on."""
    with FakeBackend(n_seq_max=2, n_ctx=1024) as made:
        yield made


@pytest.fixture
def live(backend: FakeBackend) -> Iterator[Live]:
    """A server whose model begins to think."""
    served = made_served(backend.vocab, n_ctx=backend.n_ctx_seq, n_slots=2, template=OPENS)
    grammars = Grammars(backend.vocab)
    served = replace(served, format=find_format(served.template), grammars=grammars)
    engine = Engine(backend, EngineConfig(memory=MemoryConfig(), check=True), constraints=grammars)
    with Live(Runtime(cast("Model", _NoModel()), engine, served)) as made:
        yield made


def told(answer: Iterable[str]) -> dict[str, str]:
    """All of a stream's deltas, joined."""
    joined = {"content": "", "reasoning_content": ""}
    for line in answer:
        if line.startswith("{"):
            for choice in json.loads(line)["choices"]:
                for key, text in choice["delta"].items():
                    joined[key] = joined.get(key, "") + (text or "")
    return joined


def control(live: Live, **body: object) -> tuple[int, dict[str, object]]:
    with live.connect() as connection:
        answer = connection.post(CONTROL, **body)
        return answer.status, json.loads(answer.read())


def begin(talk: Connection, backend: FakeBackend, **fields: object) -> tuple[str, Iterator[str]]:
    """The id of an answer that has begun, and the rest of its frames."""
    backend.gate.let(12)
    stream = events(talk.post(CHAT, messages=MESSAGES, max_tokens=80, stream=True, ignore_eos=True, **fields))
    id = json.loads(next(stream))["id"]
    backend.gate.wait_held()
    return id, stream


def wait_for_message(live: Live) -> None:
    """Wait until the engine, which stands still in a decode, has been told of something."""
    messages, deadline = live.runtime.engine._messages, time.monotonic() + WAIT
    while messages.empty():
        assert time.monotonic() < deadline, "the engine was told of nothing"
        time.sleep(0.001)


def test_reasoning_ends_when_the_client_says_so(live: Live, backend: FakeBackend) -> None:
    with live.connect() as talk:
        id, stream = begin(talk, backend, reasoning_control=True)
        with live.connect() as other:
            other.send(CONTROL, id=id, action="reasoning_end")
            wait_for_message(live)  # it asks which jobs there are
            backend.gate.let(1)
            backend.gate.wait_held()
            wait_for_message(live)  # and has the reasoning of one end
            backend.gate.open()
            answer = other.answer()
            assert (answer.status, json.loads(answer.read())) == (200, {"success": True})
        text = told(stream)
        assert text["reasoning_content"]
        assert text["content"]


def test_an_answer_that_did_not_ask_for_it_is_left_alone(live: Live, backend: FakeBackend) -> None:
    with live.connect() as talk:
        id, stream = begin(talk, backend)
        backend.gate.open()
        status, answer = control(live, id=id, action="reasoning_end")
        assert (status, answer["success"]) == (200, False)
        assert not told(stream)["content"]


def test_the_answer_of_another_key_is_none_of_the_client_s(backend: FakeBackend) -> None:
    engine = Engine(backend, EngineConfig(memory=MemoryConfig(), check=True))
    served = made_served(backend.vocab, n_ctx=backend.n_ctx_seq, n_slots=2, template=OPENS)
    runtime = Runtime(cast("Model", _NoModel()), engine, served)
    body = {"messages": MESSAGES, "max_tokens": 80, "stream": True, "ignore_eos": True}
    said = []
    with Live(runtime, ServerParams(api_key=("one", "two"))) as live, ThreadPoolExecutor() as pool:
        backend.gate.let(3)
        with httpx.stream("POST", live.url + CHAT, json=body, headers={"x-api-key": "one"}, timeout=WAIT) as answer:
            lines = answer.iter_lines()  # as long as it is kept, the client is there
            ask = {"id": json.loads(next(lines)[6:])["id"], "action": "reasoning_end"}
            for key in ("one", "two"):
                backend.gate.wait_held()
                asked = pool.submit(httpx.post, live.url + CONTROL, json=ask, headers={"x-api-key": key}, timeout=WAIT)
                wait_for_message(live)
                backend.gate.let(1)
                said.append(asked.result(WAIT).json()["message"])
            backend.gate.open()
    assert said == ["reasoning control not enabled for this completion", "no active completion for this id"]


def test_nothing_of_this_name_is_being_written(live: Live) -> None:
    expected = {"success": False, "message": "no active completion for this id"}
    assert control(live, id="chatcmpl-none", action="reasoning_end") == (200, expected)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"action": "reasoning_end"}, "id", "missing completion id"),
        ({"id": "chatcmpl-x", "action": "stop"}, "action", "unknown control action"),
    ],
)
def test_a_bad_request_is_refused(live: Live, body: dict[str, object], param: str, message: str) -> None:
    status, answer = control(live, **body)
    error = cast("dict[str, object]", answer["error"])
    assert status == 400
    assert error["param"] == param
    assert message in str(error["message"])


def test_a_budget_ends_reasoning(live: Live) -> None:
    with live.connect() as talk:
        body = {"reasoning_budget_tokens": 5, "reasoning_budget_message": " Enough.", "ignore_eos": True}
        answer = json.loads(talk.post(CHAT, messages=MESSAGES, max_tokens=60, **body).read())
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"].endswith(" Enough.")
        assert len(message["reasoning_content"]) <= 5 + len(" Enough.")
        assert message["content"]
