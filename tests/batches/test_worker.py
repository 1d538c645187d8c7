from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from minka.api.settings import keyword_settings
from minka.batches import worker as module
from minka.batches.execute import endpoints, execute
from minka.batches.lines import Line, Result, parse_line
from minka.batches.store import Store
from minka.batches.worker import Worker
from minka.errors import RequestError
from minka.protocols import openai_completions
from minka.protocols.batches import CLOSED, BatchFacts
from minka.runtime import Runtime, load
from minka.types import Inbox, Job, Priority
from tests.batches.values import URL, add_batch, entries, jsonl, request
from tests.fakes import WAIT, FakeBackend, tokens_of
from tests.protocols.values import at
from tests.server.site import fake_runtime
from tests.tiny_fixtures import TinyModels

T = TypeVar("T")


@pytest.fixture
def backend(fake_backend: Callable[..., FakeBackend]) -> FakeBackend:
    return fake_backend(n_ctx=512)


@pytest.fixture
def runtime(backend: FakeBackend) -> Iterator[Runtime]:
    with closing(fake_runtime(backend, queue_size=0)) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(main: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, WAIT))


async def until(worker: Worker, id: str, when: Callable[[BatchFacts], bool]) -> BatchFacts:
    """Wait for a batch."""
    while not when(facts := worker.store.batch(id)):
        await asyncio.sleep(0.002)
    return facts


def closed(facts: BatchFacts) -> bool:
    return facts.status in CLOSED


def of_file(store: Store, id: str | None) -> list[dict[str, object]]:
    assert id is not None
    return entries(store.path(id))


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_batch_may_use_what_the_engine_works_on() -> None:
    assert {URL, "/v1/chat/completions"} <= set(endpoints())
    assert all(path.startswith("/v1/") for path in endpoints())


def test_more_lines_than_the_queue_takes_and_few_at_a_time(runtime: Runtime) -> None:
    lines = [parse_line(n, jsonl(request(f"r{n}")), (URL,)) for n in range(1, 20)]

    async def main() -> dict[int, bool]:
        found: dict[int, bool] = {}
        async for results in execute(lines, runtime, 8):
            found |= {result.number: result.ok for result in results}
        return found

    assert run(main()) == dict.fromkeys(range(1, 20), True)


def test_jobs_have_the_lowest_priority_whatever_the_line_says(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    submit = runtime.engine.submit

    def noted(job: Job, inbox: Inbox) -> None:
        jobs.append(job)
        submit(job, inbox)

    monkeypatch.setattr(runtime.engine, "submit", noted)
    line = Line(1, "a", URL, {"prompt": "a", "max_tokens": 1, "priority": 1})

    async def main() -> None:
        assert [result.ok for results in [r async for r in execute([line], runtime, 1)] for result in results] == [True]

    run(main())
    assert [(job.priority, job.tenant) for job in jobs] == [(Priority.LOW, "batch")]


# -- the worker --------------------------------------------------------------------------------------------------------


def test_a_batch_from_its_file_to_its_answers(runtime: Runtime, folder: Path) -> None:
    async def main() -> None:
        worker = Worker(Store(folder))
        worker.start(runtime)
        lines = [request(f"r{n}") for n in range(9)]
        lines[4] = request("bad", max_tokens="many")
        lines[6] = request("stream", stream=True)
        batch = add_batch(worker.store, *lines)
        worker.notice()
        done = await until(worker, batch.id, closed)
        assert (done.status, done.total, done.completed, done.failed) == ("completed", 9, 7, 2)
        assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
        good, bad = of_file(worker.store, done.output_file_id), of_file(worker.store, done.error_file_id)
        assert [entry["custom_id"] for entry in good] == ["r0", "r1", "r2", "r3", "r5", "r7", "r8"]
        assert at(good[0], "response", "status_code") == 200
        assert at(good[0], "response", "body", "usage", "completion_tokens") == 4
        assert [entry["custom_id"] for entry in bad] == ["bad", "stream"]
        assert [at(entry, "response", "body", "error", "param") for entry in bad] == ["max_tokens", "stream"]
        assert at(bad[0], "response", "status_code") == 400
        await worker.stop()

    run(main())


def test_a_file_that_is_wrong_fails_with_its_problems(runtime: Runtime, folder: Path) -> None:
    async def main() -> None:
        worker = Worker(Store(folder))
        worker.start(runtime)
        batch = add_batch(worker.store, request("a"), request("a", url="/v1/chat/completions"))
        worker.notice()
        done = await until(worker, batch.id, closed)
        assert (done.status, [problem.code for problem in done.problems]) == ("failed", ["invalid_url"])
        await worker.stop()

    run(main())


def test_batches_are_done_in_turn(runtime: Runtime, folder: Path) -> None:
    async def main() -> None:
        worker = Worker(Store(folder))
        batches = [add_batch(worker.store, request("a"), request("b")) for _ in range(3)]
        worker.start(runtime)
        for batch in batches:
            assert (await until(worker, batch.id, closed)).completed == 2
        await worker.stop()

    run(main())


def test_cancelling_keeps_what_is_there(
    runtime: Runtime, backend: FakeBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate makes sure that the first line ends, and the others get no step between its end and theirs."""
    submitted: list[str] = []
    cancelled: set[str] = set()
    submit, cancel = runtime.engine.submit, runtime.engine.cancel

    def noted(job: Job, inbox: Inbox) -> None:
        submit(job, inbox)
        submitted.append(job.id)

    def noted_cancel(id: str) -> None:
        cancel(id)
        cancelled.add(id)

    monkeypatch.setattr(runtime.engine, "submit", noted)
    monkeypatch.setattr(runtime.engine, "cancel", noted_cancel)

    async def main() -> None:
        worker = Worker(Store(folder))
        worker.start(runtime)
        batch = add_batch(worker.store, request("a"), *(request(f"{n}", max_tokens=500) for n in range(20)))
        other = add_batch(worker.store, request("a"))
        backend.gate.close()
        worker.notice()
        while len(submitted) < runtime.served.n_slots - 1:  # in any order; each has a slot from the first step on
            await asyncio.sleep(0.002)
        backend.gate.let(20)
        await until(worker, batch.id, lambda facts: facts.completed == 1)
        facts = worker.cancel(batch.id)
        assert (facts.status, worker.cancel(batch.id).status) == ("cancelling", "cancelling")
        worker.notice()
        while len(cancelled) < len(submitted) - 1:
            await asyncio.sleep(0.002)
        backend.gate.open()
        done = await until(worker, batch.id, closed)
        assert (done.status, done.completed, done.total) == ("cancelled", 1, 21)
        assert [entry["custom_id"] for entry in of_file(worker.store, done.output_file_id)] == ["a"]
        assert (await until(worker, other.id, closed)).status == "completed"
        with pytest.raises(RequestError, match="cancelled cannot be cancelled"):
            worker.cancel(batch.id)
        await worker.stop()

    run(main())


def test_time_that_is_over_ends_a_batch(runtime: Runtime, backend: FakeBackend, folder: Path) -> None:
    async def main() -> None:
        worker = Worker(Store(folder))
        batch = add_batch(worker.store, *(request(f"{n}", max_tokens=500) for n in range(3)), seconds=0)
        worker.start(runtime)
        done = await until(worker, batch.id, closed)
        assert (done.status, done.failed, done.expired_at is not None) == ("expired", 3, True)
        codes = [at(entry, "error", "code") for entry in of_file(worker.store, done.error_file_id)]
        assert codes == ["batch_expired"] * 3
        await worker.stop()

    run(main())


@pytest.mark.parametrize("how", ["stop", "engine"])
def test_a_batch_goes_on_where_it_stopped(
    fake_backend: Callable[..., FakeBackend], folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Either the worker is stopped, or the engine under it; no line is worked on that has a result."""
    decoded: list[str] = []
    decode = openai_completions.decode

    def noted(body: dict[str, object], served: object) -> object:
        decoded.append(str(body["prompt"]))
        return decode(body, served)  # type: ignore[arg-type]

    route = endpoints()[URL]
    monkeypatch.setattr(module, "execute", execute)
    monkeypatch.setattr("minka.batches.execute.endpoints", lambda: {URL: _with(route, noted)})

    async def first() -> tuple[str, frozenset[int]]:
        backend = fake_backend(n_ctx=512)
        with closing(fake_runtime(backend)) as runtime:
            worker = Worker(Store(folder))
            batch = add_batch(worker.store, *(request(f"r{n}", max_tokens=3 + n) for n in range(12)))
            backend.gate.let(12)
            worker.start(runtime)
            await until(worker, batch.id, lambda facts: facts.completed >= 2)
            done = worker.store.done(batch.id)
            if how == "engine":
                backend.gate.open()
                await asyncio.to_thread(runtime.close)
                done = worker.store.done(batch.id)
            stopping = asyncio.create_task(worker.stop())
            backend.gate.open()
            await stopping
            return batch.id, done

    async def second(id: str) -> None:
        with closing(fake_runtime(fake_backend(n_ctx=512))) as runtime:
            worker = Worker(Store(folder))
            worker.start(runtime)
            end = await until(worker, id, closed)
            assert (end.completed, end.failed, end.total) == (12, 0, 12)
            assert [entry["custom_id"] for entry in of_file(worker.store, end.output_file_id)] == [
                f"r{n}" for n in range(12)
            ]
            await worker.stop()

    id, done = run(first())
    began = len(decoded)
    run(second(id))
    again = set(decoded[began:])
    assert again.isdisjoint(f"r{n - 1}" for n in done)
    assert len(decoded) - began <= 12 - len(done)


def _with(route: object, decode: object) -> object:
    from dataclasses import replace

    return replace(route, decode=decode)  # type: ignore[type-var]


def test_a_disk_that_is_full_is_tried_again(
    runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    save, failures = Store.save, [OSError(28, "No space left on device")]

    def full(self: Store, batch: str, results: list[object]) -> None:
        if failures:
            raise failures.pop()
        save(self, batch, results)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "save", full)

    async def main() -> None:
        worker = Worker(Store(folder))
        batch = add_batch(worker.store, request("a"), request("b"))
        worker.start(runtime)
        assert (await until(worker, batch.id, closed)).completed == 2
        await worker.stop()

    run(main())
    assert "it is tried again" in caplog.text


def test_a_batch_that_a_bug_is_in_the_way_of_ends_and_the_next_one_is_done(
    runtime: Runtime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file was changed behind the store's back: what was a request is none any more."""

    async def main() -> None:
        store = Store(folder)
        worker = Worker(store)
        broken = add_batch(store, request("a"), request("b"))
        checked = worker._validate(broken)
        assert checked.status == "in_progress"
        path = store.path(broken.input_file_id)
        path.write_bytes(path.read_bytes().splitlines()[0] + b"\nno request\n")
        good = add_batch(store, request("c"))
        worker.start(runtime)
        assert (await until(worker, good.id, closed)).status == "completed"
        ended = store.batch(broken.id)
        assert (ended.status, [problem.code for problem in ended.problems]) == ("failed", ["server_error"])
        assert ended.failed_at
        await worker.stop()

    run(main())
    assert "cannot go on" in caplog.text


def test_a_bug_in_a_line_fails_the_line_alone(
    fake_backend: Callable[..., FakeBackend], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tokens_of("bad")
    backend = fake_backend(fail=lambda chunks: any(chunk.tokens[-3:] == bad for chunk in chunks))

    async def main() -> None:
        with closing(fake_runtime(backend)) as runtime:
            worker = Worker(Store(folder))
            batch = add_batch(worker.store, request("a"), request("bad"))
            worker.start(runtime)
            end = await until(worker, batch.id, closed)
            assert (end.completed + end.failed, end.failed >= 1) == (2, True)
            errors = of_file(worker.store, end.error_file_id)
            assert at(errors[-1], "response", "status_code") == 500
            await worker.stop()

    run(main())


def test_lines_may_ask_for_vectors(tiny_models: TinyModels) -> None:
    settings = keyword_settings(tiny_models("bert"), {"n_ctx": 256, "threads": 1, "warmup": False})
    lines = [Line(n, str(n), "/v1/embeddings", {"input": ["a text", f"text {n}"]}) for n in range(1, 6)]

    async def main(runtime: Runtime) -> list[Result]:
        return [result async for results in execute(lines, runtime, 2) for result in results]

    with closing(load(settings)) as runtime:
        found = run(main(runtime))
    assert sorted(result.number for result in found) == [1, 2, 3, 4, 5]
    assert all(result.ok for result in found)
    body = at(json.loads(found[0].data), "response", "body")
    assert at(body, "object") == "list"
    assert at(body, "data", 1, "object") == "embedding"
