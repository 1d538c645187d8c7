"""OpenAI's Responses over HTTP: what is kept, what goes on in the background, what is streamed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from minka.errors import UsageError
from minka.params import ServerParams
from minka.server.responses import open_store
from tests.fakes import WAIT, FakeBackend, Gate, eos_after, hashed
from tests.protocols.vendor import Json, openai_events, openai_response, parsed
from tests.server.site import Live, Site, error_of, fake_runtime

PATH = "/v1/responses"


def made_backend() -> FakeBackend:
    return FakeBackend(eos_after(90, hashed(b"abcdefgh ")), n_ctx=512)


@pytest.fixture
def backend() -> FakeBackend:
    return made_backend()


@pytest.fixture
def gate(backend: FakeBackend) -> Gate:
    return backend.gate


@pytest.fixture
def live(backend: FakeBackend) -> Iterator[Live]:
    with backend, Live(fake_runtime(backend)) as made:
        yield made
        backend.gate.open()


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WAIT) as made:
        yield made


def create(client: httpx.Client, **fields: object) -> Json:
    answer = client.post(PATH, json={"input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    openai_response(body)
    assert isinstance(body, dict)
    return body


def wait_for(client: httpx.Client, id: object, *statuses: str) -> Json:
    until = time.monotonic() + WAIT
    while (body := client.get(f"{PATH}/{id}").json())["status"] not in statuses:
        assert time.monotonic() < until, body
    assert isinstance(body, dict)
    return body


def test_a_response_is_kept_until_it_is_deleted(client: httpx.Client) -> None:
    body = create(client)
    assert client.get(f"{PATH}/{body['id']}").json() == body
    assert client.get(f"/responses/{body['id']}").json() == body
    assert client.delete(f"{PATH}/{body['id']}").json() == {"id": body["id"], "object": "response", "deleted": True}
    assert error_of(client.get(f"{PATH}/{body['id']}"), 404)["type"] == "not_found_error"
    error_of(client.delete(f"{PATH}/{body['id']}"), 404)


def test_the_next_response_goes_on_and_computes_no_prompt_again(client: httpx.Client) -> None:
    first = create(client)
    second = create(client, input="more", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    used = first["usage"]["total_tokens"]  # type: ignore[index]
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]  # type: ignore[index]
    assert cached >= used - 2, "all but what the template writes at the end of an answer"
    error = error_of(client.post(PATH, json={"input": "x", "previous_response_id": "resp_x"}), 404)
    assert error["param"] == "previous_response_id"


def test_without_store_nothing_is_kept(client: httpx.Client) -> None:
    body = create(client, store=False)
    error_of(client.get(f"{PATH}/{body['id']}"), 404)


def test_input_items(client: httpx.Client) -> None:
    items = [{"role": "user", "content": str(n)} for n in range(4)]
    id = create(client, input=items)["id"]

    def page(query: str) -> Json:
        body = client.get(f"{PATH}/{id}/input_items?{query}").json()
        assert isinstance(body, dict)
        return body

    def texts(body: Json) -> str:
        return "".join(item["content"][0]["text"] for item in body["data"])  # type: ignore[attr-defined]

    assert texts(page("")) == "3210"
    first = page("order=asc&limit=3")
    assert texts(first) == "012"
    assert first["has_more"] is True
    rest = page(f"order=asc&after={first['last_id']}")
    assert texts(rest) == "3"
    assert rest["has_more"] is False
    for query in ("order=up", "limit=0", "limit=101", "limit=x", "after=nothing"):
        error_of(client.get(f"{PATH}/{id}/input_items?{query}"), 400)
    error_of(client.get(f"{PATH}/resp_x/input_items"), 404)


def test_in_the_background(client: httpx.Client, gate: Gate) -> None:
    gate.close()
    accepted = create(client, background=True)
    assert accepted["status"] == "queued"
    gate.wait_held()
    gate.let(1)
    assert wait_for(client, accepted["id"], "in_progress")["output"] == []
    gate.open()
    done = wait_for(client, accepted["id"], "completed")
    openai_response(done)
    assert done["output"]


def test_a_background_response_can_be_cancelled(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    id = create(client, background=True)["id"]
    gate.wait_held()
    cancelled = client.post(f"{PATH}/{id}/cancel").json()
    gate.open()
    openai_response(cancelled)
    assert cancelled["status"] == "cancelled"
    assert client.post(f"{PATH}/{id}/cancel").json()["status"] == "cancelled"
    until = time.monotonic() + WAIT
    while any(slot.busy for slot in live.view().slots):
        assert time.monotonic() < until
    other = create(client)
    error_of(client.post(f"{PATH}/{other['id']}/cancel"), 400)
    error_of(client.post(f"{PATH}/resp_x/cancel"), 404)


def test_deleting_stops_what_is_made(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    id = create(client, background=True)["id"]
    gate.wait_held()
    assert client.delete(f"{PATH}/{id}").status_code == 200
    gate.open()
    error_of(client.get(f"{PATH}/{id}"), 404)


def test_what_fails_in_the_background(client: httpx.Client) -> None:
    id = create(client, background=True, input="x" * 600)["id"]
    failed = wait_for(client, id, "failed")
    openai_response(failed)
    assert "context size" in failed["error"]["message"]  # type: ignore[index]


def test_a_background_stream_can_be_left_and_followed_again(live: Live, client: httpx.Client, gate: Gate) -> None:
    gate.close()
    gate.let(3)
    body = {"input": "hi", "background": True, "stream": True}
    with httpx.stream("POST", live.url + PATH, json=body, timeout=WAIT) as answer:
        head = next(answer.iter_raw())
    id = parsed(head.rpartition(b"\n\n")[0])[0]["response"]["id"]  # type: ignore[index]
    gate.open()
    whole = parsed(client.get(f"{PATH}/{id}?stream=true").content)
    openai_events(whole)
    assert whole[-1]["type"] == "response.completed"
    after = parsed(client.get(f"{PATH}/{id}?stream=true&starting_after=3").content)
    assert after == whole[4:]
    assert client.get(f"{PATH}/{id}").json() == whole[-1]["response"]
    error_of(client.get(f"{PATH}/{id}?stream=true&starting_after=x"), 400)


def test_only_what_was_made_in_the_background_is_streamed_again(client: httpx.Client) -> None:
    error_of(client.get(f"{PATH}/{create(client)['id']}?stream=true"), 400)


def test_an_error_in_the_midst_of_a_stream() -> None:
    made = FakeBackend(hashed(b"abcdefgh "), n_ctx=512, fail=lambda _chunks: len(made.decodes) > 8)
    with made, Live(fake_runtime(made)) as live:
        told = parsed(httpx.post(live.url + PATH, json={"input": "hi", "stream": True}, timeout=WAIT).content)
    openai_events(told)
    assert told[-1]["type"] == "response.failed"


def test_a_key_sees_its_own_responses_only() -> None:
    with Site(ServerParams(api_key=("one", "two")), fake_runtime(made_backend())) as site:
        id = site.post(PATH, {"input": "hi"}, x_api_key="one").json()["id"]
        assert site.get(f"{PATH}/{id}", x_api_key="one").status_code == 200
        assert site.get(f"{PATH}/{id}", x_api_key="two").status_code == 404
        again = {"input": "x", "previous_response_id": id}
        assert site.post(PATH, again, x_api_key="two").status_code == 404


def test_responses_outlive_the_server(tmp_path: Path) -> None:
    params = ServerParams(data_dir=str(tmp_path / "new"))
    with Site(runtime=fake_runtime(made_backend())) as site:
        site.app.state.minka.responses = store = open_store(params)
        body = site.post(PATH, {"input": "hi"}).json()
        store.close()
    with Site(runtime=fake_runtime(made_backend())) as site:
        site.app.state.minka.responses = open_store(params)
        assert site.get(f"{PATH}/{body['id']}").json() == body
        after = site.post(PATH, {"input": "more", "previous_response_id": body["id"]})
        assert after.json()["usage"]["input_tokens"] > body["usage"]["input_tokens"]


def test_a_key_keeps_its_responses_when_other_keys_come_and_go(tmp_path: Path) -> None:
    kept = ServerParams(data_dir=str(tmp_path))
    with Site(ServerParams(api_key=("one", "two")), fake_runtime(made_backend())) as site:
        site.app.state.minka.responses = store = open_store(kept)
        one, two = (site.post(PATH, {"input": "hi"}, x_api_key=key).json()["id"] for key in ("one", "two"))
        store.close()
    with Site(ServerParams(api_key=("two", "new")), fake_runtime(made_backend())) as site:
        site.app.state.minka.responses = open_store(kept)
        found = [site.get(f"{PATH}/{id}", x_api_key=key).status_code for id in (one, two) for key in ("two", "new")]
        assert found == [404, 404, 200, 404]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        open_store(ServerParams(data_dir=str(tmp_path / "file")))


def test_counting(client: httpx.Client) -> None:
    answer = client.post(f"{PATH}/input_tokens", json={"input": "hi"}).json()
    assert answer == {"input_tokens": create(client)["usage"]["input_tokens"], "object": "response.input_tokens"}  # type: ignore[index]
