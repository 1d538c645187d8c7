"""Files and batches over HTTP, with OpenAI's own client where it can say it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Batch

from minka.batches.store import Store
from minka.batches.worker import Worker
from minka.params import ServerParams
from minka.protocols.batches import CLOSED
from minka.types import EngineView
from tests.batches.values import URL, jsonl, request
from tests.fakes import WAIT, FakeBackend
from tests.server.site import Live, Site, error_of, fake_runtime


@pytest.fixture
def busy(fake_backend: Callable[..., FakeBackend]) -> FakeBackend:
    return fake_backend(n_ctx=512)


@pytest.fixture
def live(busy: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    made: list[Worker] = []

    def make(params: ServerParams) -> Worker:
        made.append(Worker(Store(Path(params.data_dir or ""))))
        return made[0]

    monkeypatch.setattr("minka.server.batches.make_worker", make)
    with Live(fake_runtime(busy), ServerParams(data_dir=str(tmp_path / "data"), body_limit=1)) as server:
        yield server
    made[0].store.close()  # the command does that; the worker's task ended with its loop


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def closed(client: OpenAI, id: str) -> Batch:
    """The batch when it is closed."""
    deadline = time.monotonic() + WAIT
    while (batch := client.batches.retrieve(id)).status not in CLOSED:
        assert time.monotonic() < deadline, batch
    return batch


def upload(client: OpenAI, *lines: object) -> str:
    return client.files.create(file=("in.jsonl", io.BytesIO(jsonl(*lines))), purpose="batch").id


def test_the_whole_way(client: OpenAI) -> None:
    input_id = upload(client, request("a"), request("b", max_tokens=-7))
    made = client.batches.create(
        input_file_id=input_id, endpoint="/v1/completions", completion_window="24h", metadata={"my": "batch"}
    )
    assert (made.status, made.endpoint, made.metadata) == ("validating", "/v1/completions", {"my": "batch"})
    assert made.expires_at == made.created_at + 86400
    done = closed(client, made.id)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (2, 1, 1)
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    answer = json.loads(client.files.content(done.output_file_id).text)
    assert answer["custom_id"] == "a"
    assert answer["response"]["body"]["object"] == "text_completion"
    error = json.loads(client.files.content(done.error_file_id).text)
    assert (error["custom_id"], error["response"]["body"]["error"]["param"]) == ("b", "max_tokens")
    assert [batch.id for batch in client.batches.list()] == [made.id]
    assert [file.id for file in client.files.list(purpose="batch")] == [input_id]
    assert len(client.files.list().data) == 3
    assert client.files.delete(input_id).deleted
    with pytest.raises(NotFoundError):
        client.files.retrieve(input_id)


def test_a_batch_can_be_cancelled(client: OpenAI, busy: FakeBackend) -> None:
    busy.gate.close()
    input_id = upload(client, *(request(f"r{n}", max_tokens=400) for n in range(8)))
    made = client.batches.create(input_file_id=input_id, endpoint=URL, completion_window="24h")  # type: ignore[arg-type]
    busy.gate.wait_held()
    with pytest.raises(BadRequestError, match="in use by"):
        client.files.delete(input_id)
    assert client.batches.cancel(made.id).status == "cancelling"
    busy.gate.open()
    assert closed(client, made.id).status == "cancelled"
    with pytest.raises(BadRequestError, match="cannot be cancelled"):
        client.batches.cancel(made.id)


def test_a_file_with_problems(client: OpenAI) -> None:
    made = client.batches.create(
        input_file_id=upload(client, request("a"), request("a")), endpoint="/v1/completions", completion_window="24h"
    )
    done = closed(client, made.id)
    assert done.status == "failed"
    assert done.errors is not None
    assert done.errors.data is not None
    assert [(problem.code, problem.line) for problem in done.errors.data] == [("duplicate_custom_id", 2)]


def test_clients_go_first(live: Live, client: OpenAI, busy: FakeBackend) -> None:
    """A batch leaves a slot free, and a client does not wait for its lines."""
    busy.gate.close()
    input_id = upload(client, *(request(f"r{n}", max_tokens=400) for n in range(8)))
    client.batches.create(input_file_id=input_id, endpoint="/v1/completions", completion_window="24h")
    busy.gate.wait_held()
    assert sum(slot.busy for slot in _view(live, busy).slots) <= 3
    busy.gate.open()
    text = client.completions.create(model="", prompt="me first", max_tokens=2).choices[0].text
    assert len(text) == 2


def _view(live: Live, busy: FakeBackend) -> EngineView:
    future = live.runtime.engine.view()
    busy.gate.let(1)
    return future.result(WAIT)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "endpoint"),
        ({"endpoint": "/v1/files", "completion_window": "24h", "input_file_id": "x"}, "endpoint"),
        ({"endpoint": URL, "completion_window": "soon", "input_file_id": "x"}, "completion_window"),
        ({"endpoint": URL, "completion_window": "24h"}, "input_file_id"),
        ({"endpoint": URL, "completion_window": "24h", "input_file_id": "x", "metadata": {"a": 1}}, "metadata"),
        (
            {"endpoint": URL, "completion_window": "24h", "input_file_id": "x", "output_expires_after": {}},
            "output_expires_after",
        ),
    ],
)
def test_what_cannot_be_a_batch(live: Live, body: dict[str, object], param: str) -> None:
    response = httpx.post(f"{live.url}/v1/batches", json=body)
    assert error_of(response, 400)["param"] == param


def test_what_cannot_be_uploaded(live: Live) -> None:
    url, file = f"{live.url}/v1/files", {"file": ("a", b"x")}
    assert error_of(httpx.post(url, files=file, data={"purpose": "fun"}), 400)["param"] == "purpose"
    assert error_of(httpx.post(url, files=file), 400)["param"] == "purpose"
    assert error_of(httpx.post(url, files={"file": (None, b"x")}, data={"purpose": "batch"}), 400)["param"] == "file"
    assert error_of(httpx.post(url, files=file, data={"purpose": "batch", "x": "y"}), 400)["param"] == "x"
    error_of(httpx.post(url, json={}), 400)
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        error_of(httpx.post(url, content=b"rubbish", headers={"content-type": kind}), 400)
    big = {"file": ("a", b"x" * (1 << 20))}
    assert "--body-limit" in str(error_of(httpx.post(url, files=big, data={"purpose": "batch"}), 413)["message"])
    assert httpx.get(url).json()["data"] == []


def test_a_key_sees_its_own_files_and_batches_only(busy: FakeBackend, tmp_path: Path) -> None:
    params = ServerParams(data_dir=str(tmp_path / "data"), api_key=("one", "two"))
    with Site(params, fake_runtime(busy)) as site:
        form = {"file": ("in.jsonl", jsonl(request("a"))), "purpose": (None, b"batch")}
        upload = httpx.Request("POST", "http://test", files=form)
        kind = upload.headers["content-type"]
        file = site.post("/v1/files", upload.read(), content_type=kind, x_api_key="one").json()["id"]
        wanted = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
        assert error_of(site.post("/v1/batches", wanted, x_api_key="two"), 404)
        batch = site.post("/v1/batches", wanted, x_api_key="one").json()["id"]
        for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/batches/{batch}"):
            assert site.get(path, x_api_key="one").status_code == 200
            assert error_of(site.get(path, x_api_key="two"), 404)
        for path in ("/v1/files", "/v1/batches"):
            assert len(site.get(path, x_api_key="one").json()["data"]) == 1
            assert site.get(path, x_api_key="two").json()["data"] == []
        assert error_of(site.request("DELETE", f"/v1/files/{file}", x_api_key="two"), 404)
        assert error_of(site.post(f"/v1/batches/{batch}/cancel", x_api_key="two"), 404)
        site._runner.run(site.app.state.batches.stop())


def test_a_files_name_is_only_a_name(live: Live, tmp_path: Path) -> None:
    sent = {"file": ("../../evil.jsonl", b"x")}
    made = httpx.post(f"{live.url}/v1/files", files=sent, data={"purpose": "batch"}).json()
    assert made["filename"] == "evil.jsonl"
    assert made["bytes"] == 1
    assert [path.name for path in (tmp_path / "data" / "files").iterdir()] == [made["id"]]


@pytest.mark.parametrize("path", ["/v1/files/file-x", "/v1/files/file-x/content", "/v1/batches/batch_x"])
def test_what_is_not_there(live: Live, path: str) -> None:
    error_of(httpx.get(live.url + path), 404)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999", "order=up", "purpose=fun"])
def test_a_list_that_cannot_be(live: Live, query: str) -> None:
    error_of(httpx.get(f"{live.url}/v1/files?{query}"), 400)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/x"),
        ("DELETE", "/v1/files/x"),
        ("GET", "/v1/files/x/content"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches"),
        ("GET", "/v1/batches/x"),
        ("POST", "/v1/batches/x/cancel"),
    ],
)
def test_without_a_directory_the_routes_say_so(site: Site, method: str, path: str) -> None:
    assert "--data-dir" in str(error_of(site.request(method, path), 501)["message"])
