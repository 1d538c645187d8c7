from __future__ import annotations

from dataclasses import replace

import pytest

from minka.errors import NotFoundError, RequestError, UnsupportedError
from minka.protocols.anthropic import ANTHROPIC, count_tokens, decode
from minka.protocols.anthropic_threads import ThreadLostError
from minka.protocols.responses_store import ResponseStore
from minka.protocols.served import Served
from tests.protocols.values import Play, made_served
from tests.protocols.vendor import stream_of, whole_of

ONE = {"role": "user", "content": "one"}
TWO = {"role": "user", "content": "two"}


@pytest.fixture
def served() -> Served:
    return replace(made_served(), responses=ResponseStore().of("a"))


def body(*messages: object, **fields: object) -> dict[str, object]:
    return {"max_tokens": 4, "messages": [*messages], **fields}


def on(previous: object) -> dict[str, object]:
    return {"type": "continue", "previous_message_id": previous}


def prompt(served: Served, request: dict[str, object]) -> str:
    return served.tokenizer.detokenize(decode(request, served).jobs[0].prompt, special=True).decode()


def first(served: Served, *, stream: bool = False) -> object:
    """The id of a message that begins a thread."""
    exchange = decode(body(ONE, system="Be brief.", thread={"type": "create"}, stream=stream), served)
    if stream:
        return stream_of(exchange, Play())[0]["message"]["id"]  # type: ignore[index]
    return whole_of(exchange, Play())["id"]  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_goes_on_as_if_all_had_been_sent(served: Served, stream: bool) -> None:
    id = first(served, stream=stream)
    answer = {"role": "assistant", "content": "Hello"}
    assert prompt(served, body(TWO, thread=on(id))) == prompt(served, body(ONE, answer, TWO, system="Be brief."))
    second = whole_of(decode(body(TWO, thread=on(id)), served), Play())["id"]  # type: ignore[index]
    third = prompt(served, body(ONE, thread=on(second)))
    assert third == prompt(served, body(ONE, answer, TWO, answer, ONE, system="Be brief."))
    assert count_tokens({"messages": [ONE], "thread": on(second)}, served) == {"input_tokens": len(third)}


def test_a_thread_that_is_lost_is_told_so_that_the_client_sends_all_of_it(served: Served) -> None:
    with pytest.raises(ThreadLostError) as caught:
        decode(body(TWO, thread=on("msg_x")), served)
    told = ANTHROPIC.error(caught.value, "r")["error"]
    assert told["details"] == {"error_code": "thread_not_found"}  # type: ignore[index]
    assert ANTHROPIC.status(caught.value) == NotFoundError.status


def test_a_thread_is_its_tenants_and_no_response(served: Served) -> None:
    id = first(served)
    assert served.responses is not None
    assert served.responses.get(str(id)) is None
    other = replace(served, responses=served.responses.store.of("b"))
    with pytest.raises(ThreadLostError):
        decode(body(TWO, thread=on(id)), other)


def test_what_makes_no_sense(served: Served) -> None:
    id = first(served)
    for fields, param in (
        ({"thread": 1}, "thread"),
        ({"thread": {"type": "continue"}}, "thread"),
        ({"thread": on(id), "system": "x"}, "system"),
        ({"thread": on(id), "tools": []}, "tools"),
    ):
        with pytest.raises(RequestError) as caught:
            decode(body(TWO, **fields), served)
        assert caught.value.param == param
    with pytest.raises(UnsupportedError):
        decode(body(ONE, thread={"type": "create"}), made_served())
