"""A server that is killed in the middle of a batch: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing
from pathlib import Path

import httpx

from minka.batches.store import Store
from tests.batches.values import jsonl, request
from tests.server.test_process import TIMEOUT, serving
from tests.tiny_fixtures import TinyModels

N = 60


def counts(url: str, id: str) -> dict[str, int]:
    answer = httpx.get(f"{url}/v1/batches/{id}").json()
    return {**answer["request_counts"], "closed": answer["status"] == "completed"}


def test_a_killed_server_goes_on_with_its_batch(tiny_models: TinyModels, tmp_path: Path) -> None:
    data, model, n_done = tmp_path / "data", tiny_models("llama"), list[int]()
    lines = jsonl(*(request(f"r{n}", max_tokens=40) for n in range(N)))
    with serving(model, "--data-dir", str(data), "-np", "3") as server:
        file = httpx.post(f"{server.url}/v1/files", files={"file": ("in", lines)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        id = httpx.post(f"{server.url}/v1/batches", json=body).json()["id"]
        wait(server.url, id, at_least=5)
        server.signal(signal.SIGKILL)
        server.wait()
    for wanted in (20, N):
        n_done.append(kept(data, id))
        with serving(model, "--data-dir", str(data), "-np", "3", "--metrics") as server:
            wait(server.url, id, at_least=wanted)
            if wanted < N:
                server.signal(signal.SIGKILL)
                server.wait()
                continue
            done = finished(server.url, id)
            output = httpx.get(f"{server.url}/v1/files/{done}/content").text.splitlines()
            metrics = httpx.get(f"{server.url}/metrics").text
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
    assert n_done[0] >= 5
    assert n_done[1] >= 20
    answers = [json.loads(line) for line in output]
    assert [answer["custom_id"] for answer in answers] == [f"r{n}" for n in range(N)]
    assert all(answer["response"]["status_code"] == 200 for answer in answers)
    predicted = next(line for line in metrics.splitlines() if line.startswith("llamacpp:tokens_predicted_total"))
    assert float(predicted.split()[1]) <= (N - n_done[1]) * 40, "what had a result was not computed again"


def kept(data: Path, id: str) -> int:
    """Results that a killed server has left behind."""
    with closing(Store(data)) as store:
        return len(store.done(id))


def wait(url: str, id: str, *, at_least: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while counts(url, id)["completed"] < at_least:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def finished(url: str, id: str) -> str:
    deadline = time.monotonic() + TIMEOUT
    while not (answer := httpx.get(f"{url}/v1/batches/{id}").json())["output_file_id"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return str(answer["output_file_id"])
