from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from minka.errors import UnavailableError, UsageError
from minka.ggufs.terminal import draw
from minka.tools import load_test
from minka.tools.bench_prompts import MultiTurn, Random, SharedPrefix
from minka.tools.bench_requests import Sample
from minka.tools.bench_serve import CALIBRATE, LoadTest, Plan
from minka.tools.bench_serve_report import comparison, draw_table, to_json
from minka.tools.bench_spread import Level
from tests.tools.servers import Answer, Request, Served, completion, openai, plain, serving

SMALL = Plan(Random(10), levels=(1, 3), n_requests=4, max_tokens=5)


def run(plan: Plan, *answers: Answer) -> tuple[LoadTest, list[Served]]:
    """Test servers that answer so."""

    async def main() -> tuple[LoadTest, list[Served]]:
        async with AsyncExitStack() as stack:
            served = [await stack.enter_async_context(serving(answer)) for answer in answers]
            test = LoadTest([one.url for one in served], plan)
            await test.run()
        return test, served

    return asyncio.run(main())


def sizes(served: Served) -> list[object]:
    return [request.body.get("max_tokens") for request in served.requests if request.method == "POST"]


def test_each_level_has_its_requests() -> None:
    test, (served,) = run(SMALL, openai)
    assert [(level.n_clients, len(level.done), level.n_output) for level in test.results] == [(1, 4, 20), (3, 4, 20)]
    assert sizes(served) == [4, 4] + [5] * 8
    assert {request.body.get("model") for request in served.requests[1:]} == {"first"}


def test_without_a_number_there_are_four_requests_a_client() -> None:
    assert [Plan().requests(n) for n in (1, 2, 4, 16)] == [8, 8, 16, 64]


def test_never_more_clients_than_said() -> None:
    running: list[int] = [0]
    peak: list[int] = [0]

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        for _ in range(5):
            await asyncio.sleep(0)
        running[0] -= 1
        await openai(request, writer)

    run(Plan(Random(5), levels=(3,), n_requests=12, max_tokens=1), slow)
    assert peak[0] == 3


def test_servers_get_the_same_prompts_and_take_turns() -> None:
    test, (first, second) = run(SMALL, openai, openai)
    prompts = [[request.messages for request in one.requests if request.body] for one in (first, second)]
    assert prompts[0] == prompts[1]
    order = [(level.n_clients, level.url) for level in test.results]
    assert order == [(1, first.url), (1, second.url), (3, second.url), (3, first.url)]


def test_a_word_is_as_many_tokens_as_the_server_counts() -> None:
    _, (served,) = run(Plan(Random(30), levels=(1,), n_requests=1), openai)  # its answers say two for each word
    warm_up, measured = served.requests[1:-1], served.requests[-1]
    lengths = [len(str(request.messages[0]["content"]).split()) for request in (*warm_up, measured)]
    assert lengths == [*CALIBRATE, 15]


def test_a_conversation_carries_the_servers_answers() -> None:
    _, (served,) = run(Plan(MultiTurn(3, 4), levels=(1,), n_requests=5, max_tokens=2), openai)
    roles = [[message["role"] for message in request.messages] for request in served.requests[3:]]
    first = ["user"]
    assert roles == [
        first,
        [*first, "assistant", "user"],
        [*first, *["assistant", "user"] * 2],
        first,
        [*first, "assistant", "user"],
    ]
    assert served.requests[4].messages[1] == {"role": "assistant", "content": "soso"}


def test_a_shared_prefix_is_the_system_message() -> None:
    _, (served,) = run(Plan(SharedPrefix(8, 4), levels=(2,), n_requests=3), openai)
    systems = [request.messages[0] for request in served.requests[3:]]
    assert systems[0]["role"] == "system"
    assert systems[0] == systems[1] == systems[2]


def test_failed_requests_are_counted() -> None:
    count = [0]

    async def flaky(request: Request, writer: asyncio.StreamWriter) -> None:
        count[0] += 1
        if count[0] == 6:
            writer.write(plain("500 Oops", b"broken"))
        else:
            await openai(request, writer)

    test, _ = run(Plan(Random(5), levels=(2,), n_requests=6), flaky)
    (level,) = test.results
    assert len(level.done) == 5
    assert level.errors == ["POST /v1/chat/completions got 500: broken"]


def test_a_silent_server_is_given_up() -> None:
    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.body.get("max_tokens") == 64:
            await asyncio.Event().wait()
        await openai(request, writer)

    test, _ = run(Plan(Random(5), levels=(1,), n_requests=1, timeout=0.05), silent)
    assert test.results[0].errors == ["no whole answer within 0.05 seconds"]


def test_a_server_without_a_list_of_models_is_asked_for_none() -> None:
    async def no_list(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(plain("404 No", b"{}") if request.method == "GET" else completion(request))

    _, (served,) = run(Plan(Random(5), levels=(1,), n_requests=1), no_list)
    assert "model" not in served.requests[-1].body


def test_keys_and_further_fields_are_sent() -> None:
    plan = Plan(
        Random(5), levels=(1,), n_requests=1, api="completions", api_key="secret", extra={"top_k": 1}, model="m"
    )
    _, (served,) = run(plan, openai)
    last = served.requests[-1]
    assert last.path == "/v1/completions"
    assert (last.headers["authorization"], last.body["top_k"], last.body["model"]) == ("Bearer secret", 1, "m")
    assert "secret" not in repr(plan)


def test_a_cancelled_test_keeps_what_it_has() -> None:
    async def main() -> LoadTest:
        reached = asyncio.Event()

        async def until_third(request: Request, writer: asyncio.StreamWriter) -> None:
            if len(served.requests) == 6:  # the list, two to warm up, two answers
                reached.set()
                await asyncio.Event().wait()
            await openai(request, writer)

        async with serving(until_third) as served:
            test = LoadTest([served.url], Plan(Random(5), levels=(1,), n_requests=4))
            task = asyncio.create_task(test.run())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return test

    test = asyncio.run(main())
    assert test.results == []
    assert test.partial is not None
    assert len(test.partial.samples) == 2


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:1 does not answer"):
        load_test("http://127.0.0.1:1", SMALL)


def test_a_server_that_refuses_is_one_sentence() -> None:
    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(plain("401 No", b"who are you"))

    with pytest.raises(UnavailableError, match=r"cannot be measured: POST .* got 401: who are you"):
        run(SMALL, refuse)


@pytest.mark.parametrize(
    "plan", [Plan(levels=()), Plan(levels=(0,)), Plan(n_requests=-1), Plan(max_tokens=0), Plan(timeout=0)]
)
def test_a_plan_without_work_is_refused(plan: Plan) -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        LoadTest(["http://a"], plan)


FAST = Level("http://a:1", 2, (Sample(0.0, 2.0, 0.5, (0.25, 0.75), 6, 3), Sample(1.0, 1.0, 0.5, (), 6, 1)))
SLOW = Level("http://b:2", 2, (Sample(0.0, 4.0, 1.0, (0.5,), 6, 2), Sample(0.0, 1.0, error="no")))


def test_ratios_over_one_are_better() -> None:
    assert comparison(FAST, SLOW) == [
        "4.00x", "4.00x", "2.00x / 2.00x / 2.00x", "1.00x / 0.71x / 0.67x", "2.67x / 2.11x / 2.01x",
    ]  # fmt: skip
    assert comparison(FAST, Level("http://b:2", 2, ()))[0] == "-"


def test_the_table_names_servers_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    draw(lambda console: draw_table(console, [SLOW, FAST], ["http://a:1", "http://b:2"], Plan(Random(7), max_tokens=3)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["random,", "7", "tokens", "in,", "3", "out"]
    assert lines[3] == [
        "2",
        "a:1",
        "2",
        "2.00",
        "1.00",
        "500",
        "/",
        "500",
        "/",
        "500",
        "500",
        "/",
        "700",
        "/",
        "745",
        "1.50",
        "/",
        "1.90",
        "/",
        "1.99",
    ]
    assert lines[4][:5] == ["2", "b:2", "1", "(1", "failed)"]
    assert lines[5][:3] == ["ratio", "4.00x", "4.00x"]
    assert "in favour of a:1" in " ".join(lines[-1])


def test_json_has_milliseconds_and_no_nan() -> None:
    found = json.loads(json.dumps(to_json([FAST, Level("http://b:2", 1, ())], SMALL), allow_nan=False))
    assert found["dataset"] == "random, 10 tokens in"
    first, second = found["levels"]
    assert first["ttft_ms"] == {"mean": 500.0, "p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert (first["output_tokens_per_second"], first["total_tokens_per_second"]) == (2.0, 8.0)
    assert second["itl_ms"]["p50"] is None
