"""The benchmark harness measures what it says: its client against a server that cuts its bytes anywhere, how strict it
is, its arithmetic, and every scenario's load against a server that answers nonsense at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import peer, proc, report
from benchmarks.churn import churn, slope
from benchmarks.declaration import Bar, Case, Model, Scenario
from benchmarks.load import History, Load, Order, Outcome, gather
from benchmarks.prompts import prose
from benchmarks.runner import Run, Setting, run_case
from benchmarks.scenarios import SCENARIOS, find
from benchmarks.servers import BenchmarkError, Side
from benchmarks.streams import longest_gap, read_chat, read_completion
from benchmarks.worker import perform

from minka.tools.load_client import ChunkedDecoder, Client, FrameSplitter, LoadError, Tape
from tests.instant_server import Answers, Cut, chat_frames, chunked, completion_frames, data

ROOT = Path(__file__).parents[1]


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[Client]:
    server = await asyncio.start_server(answers.handle, "127.0.0.1", 0)
    client = Client("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield client
    finally:
        client.close()
        server.close()
        await asyncio.sleep(0.01)


def run(answers: Answers, work: Callable[[Client], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with serving(answers) as client:
            await work(client)

    asyncio.run(inside())


# ---------------------------------------------------------------------------------------------------------------------
# Bytes
# ---------------------------------------------------------------------------------------------------------------------

WIRE = chunked(b"data: {}\n\n") + chunked(b"data: ab\r\n") + chunked(b"\n") + b"0\r\nA: b\r\nC: d\r\n\r\n"
PAYLOAD = b"data: {}\n\ndata: ab\r\n\n"


@pytest.mark.parametrize("at", range(len(WIRE) + 1))
def test_chunked_coding_may_be_cut_at_any_byte(at: int) -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(WIRE[:at]) + decoder.feed(WIRE[at:]) == PAYLOAD
    assert decoder.done


def test_chunked_coding_byte_by_byte_is_done_at_its_last_byte_only() -> None:
    decoder = ChunkedDecoder()
    pieces, done = [], []
    for i in range(len(WIRE)):
        pieces.append(decoder.feed(WIRE[i : i + 1]))
        done.append(decoder.done)
    assert b"".join(pieces) == PAYLOAD
    assert done == [False] * (len(WIRE) - 1) + [True]


@pytest.mark.parametrize("wire", [b"xyz\r\nabc", b"3\r\nabcdef\r\n", b"\r\n"])
def test_a_broken_chunk_is_an_error(wire: bytes) -> None:
    with pytest.raises(LoadError, match="chunk"):
        ChunkedDecoder().feed(wire)


@pytest.mark.parametrize("at", range(31))
def test_frames_may_be_cut_at_any_byte(at: int) -> None:
    stream = b"data: one\n\ndata: two\n\ndata: thr"
    splitter = FrameSplitter()
    assert splitter.feed(stream[:at]) + splitter.feed(stream[at:]) == [b"data: one", b"data: two"]
    assert splitter.rest == b"data: thr"


# ---------------------------------------------------------------------------------------------------------------------
# The client
# ---------------------------------------------------------------------------------------------------------------------


def whole(block: bytes) -> list[bytes]:
    return [block]


def single_bytes(block: bytes) -> list[bytes]:
    return [block[i : i + 1] for i in range(len(block))]


def ragged(block: bytes) -> list[bytes]:
    rng = random.Random(len(block))
    cuts = sorted({0, len(block), *(rng.randrange(len(block)) for _ in range(3))})
    return [block[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("cut", [whole, single_bytes, ragged])
def test_a_stream_survives_any_cut(cut: Cut) -> None:
    async def work(client: Client) -> None:
        tape = Tape()
        await client.stream("/v1/chat/completions", {"max_tokens": 3}, tape)
        stream = read_chat(tape, 3)
        assert stream.text == "ñ0 ñ1 ñ2 "
        assert (stream.n_prompt, stream.n_cached, stream.n_generated) == (7, 3, 3)
        assert tape.sent < stream.arrivals[0] < stream.arrivals[2] <= tape.ended
        assert len(stream.arrivals) == 3
        assert tape.times[0] < stream.arrivals[0], "the role is no token"

    run(Answers(cut), work)


def test_a_body_may_end_with_the_connection() -> None:
    async def work(client: Client) -> None:
        tape = Tape()
        await client.stream("/until-close", {}, tape)
        assert read_completion(tape, 2).text == "0 1 "

    run(Answers(single_bytes), work)


def test_exchanges_share_a_connection_and_streams_do_not() -> None:
    answers = Answers(ragged)

    async def work(client: Client) -> None:
        for _ in range(3):
            assert (await client.request("GET", "/health")).body == b'{"status": "ok"}'
        assert answers.n_connections == 1
        await client.stream("/completion", {"n_predict": 1}, Tape())
        await client.stream("/completion", {"n_predict": 1}, Tape())
        assert (await client.request("GET", "/health")).status == 200
        assert answers.n_connections == 3

    run(answers, work)


def test_an_error_status_and_a_broken_stream_are_load_errors() -> None:
    async def work(client: Client) -> None:
        assert (await client.request("GET", "/nothing")).status == 404
        with pytest.raises(LoadError, match=r"got 404.*no such path"):
            await client.stream("/nothing", {}, Tape())
        tape = Tape()
        with pytest.raises(LoadError, match="middle of a body"):
            await client.stream("/breaks-off", {}, tape)
        assert tape.ended

    run(Answers(), work)


def test_reached_waits_for_frames_and_notices_the_end() -> None:
    async def work(client: Client) -> None:
        tape = Tape()
        task = asyncio.create_task(client.stream("/completion", {"n_predict": 30}, tape))
        assert await tape.reached(2)
        assert 2 <= len(tape.frames) < 31
        assert not await tape.reached(32)
        assert len(tape.frames) == 31
        await task

    run(Answers(), work)


def test_a_cut_stream_gives_what_came_and_closes_the_connection() -> None:
    async def work(client: Client) -> None:
        load = Load(order(client), client, random.Random(0))
        running = load.begin("hi", 10_000)
        await running.reached(4)
        stream = await running.cut()
        assert 3 <= len(stream.arrivals) < 10_000
        assert stream.n_generated == 0
        short = load.begin("hi", 1)
        await short.whole()
        with pytest.raises(LoadError, match="to outlive"):
            await short.cut()

    run(Answers(), work)


def test_prompts_are_fitted_to_the_vocabulary() -> None:
    async def work(client: Client) -> None:
        load = Load(order(client), client, random.Random(0))
        assert len(load.prose(120).replace(".", " .").split()) == 120
        await load.calibrate()
        assert load.tokens_per_word == pytest.approx(2 * 11 / 12)  # this server's: two for a word, none for a full stop
        assert len(load.prose(110).replace(".", " .").split()) == 60

    run(Answers(), work)


def test_the_first_failure_ends_a_gathering() -> None:
    async def work(client: Client) -> None:
        load = Load(order(client), client, random.Random(0))

        async def fail() -> None:
            raise LoadError("on purpose")

        async def long() -> None:
            await load.chat("hi", 100_000)

        with pytest.raises(LoadError, match="on purpose"):
            await gather([long(), fail()])

    run(Answers(), work)


# ---------------------------------------------------------------------------------------------------------------------
# Strictness
# ---------------------------------------------------------------------------------------------------------------------


def taped(frames: Iterable[bytes]) -> Tape:
    tape = Tape()
    for frame in frames:
        tape.add([frame.removesuffix(b"\n\n")], 1.0)
    tape.end()
    return tape


BAD_CHATS: dict[str, tuple[list[bytes], str]] = {
    "too few tokens": (chat_frames(3), "asked for 4 tokens"),
    "no done": (chat_frames(4)[:-1], "no final"),
    "nothing": ([], "no final"),
    "no usage": ([*chat_frames(4)[:-2], b"data: [DONE]"], "completion_tokens"),
    "an error": ([*chat_frames(4)[:2], data({"error": {"message": "boom"}}), b"data: [DONE]"], "error frame.*boom"),
    "not data": ([b"hello", *chat_frames(4)], "not a data frame"),
    "not JSON": ([b"data: {", *chat_frames(4)], "not JSON"),
    "stopped by itself": ([f.replace(b'"length"', b'"stop"') for f in chat_frames(4)], "got 4 and 'stop'"),
    "usage, no text": ([f.replace(b"content", b"tool") for f in chat_frames(4)], "without a single chunk"),
}


@pytest.mark.parametrize("name", BAD_CHATS)
def test_a_chat_that_is_not_as_asked_is_an_error(name: str) -> None:
    frames, message = BAD_CHATS[name]
    with pytest.raises(LoadError, match=message):
        read_chat(taped(frames), 4)


def test_comments_are_no_frames_of_the_answer() -> None:
    assert read_chat(taped([b":\n\n", *chat_frames(4)]), 4).n_generated == 4


BAD_COMPLETIONS: dict[str, tuple[list[bytes], str]] = {
    "too many tokens": (completion_frames(5), "asked for 4 tokens"),
    "nothing": ([], "'stop' is None"),
    "no end": (completion_frames(4)[:-1], "should say stop"),
    "two ends": ([*completion_frames(4), *completion_frames(4)], "should say stop"),
    "end of text": ([f.replace(b"limit", b"eos") for f in completion_frames(4)], "got 4 and 'eos'"),
}


@pytest.mark.parametrize("name", BAD_COMPLETIONS)
def test_a_completion_that_is_not_as_asked_is_an_error(name: str) -> None:
    frames, message = BAD_COMPLETIONS[name]
    with pytest.raises(LoadError, match=message):
        read_completion(taped(frames), 4)


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "gap"),
    [
        ([1.0, 2.0, 3.0, 5.5, 6.0], 2.5),
        ([0.0, 4.0, 5.0, 6.0], 4.0),  # open when the window began: counts whole
        ([1.0, 2.0, 3.0], 3.0),  # still silent at the end of the window
        ([0.0, 9.0], 6.0),  # nothing inside the window
        ([2.5, 5.9], 3.4),  # not running when the window began
    ],
)
def test_longest_gap(arrivals: list[float], gap: float) -> None:
    assert longest_gap(arrivals, 2.0, 6.0) == pytest.approx(gap)


def test_slope_is_growth_per_value() -> None:
    assert slope([5.0, 7.0, 9.0, 11.0]) == pytest.approx(2.0)
    assert slope([3.0, 4.0, 3.0, 4.0, 3.0]) == pytest.approx(0.0)


def test_prose_has_the_asked_length_and_follows_its_seed() -> None:
    for n in (1, 20, 1000):
        assert len(prose(random.Random(n), n).replace(".", " .").split()) == n
    assert prose(random.Random("a"), 20) == prose(random.Random("a"), 20) != prose(random.Random("b"), 20)


def test_a_busy_machine_is_not_waited_for_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "busy_seconds", time.monotonic)  # one whole core, always
    began = time.monotonic()
    assert not proc.wait_quiet(0.03, window_s=0.01)
    assert time.monotonic() - began >= 0.03
    monkeypatch.setattr(proc, "busy_seconds", lambda: 7.0)
    assert proc.wait_quiet(60.0, window_s=0.01)


@pytest.mark.parametrize(
    ("bar", "value", "ratio", "holds", "text"),
    [
        (Bar("x", ratio_min=0.97), 5.0, 0.97, True, "≥ 0.97x"),
        (Bar("x", ratio_min=0.97), 5.0, 0.96, False, "≥ 0.97x"),
        (Bar("x", ratio_min=0.97), 5.0, None, False, "≥ 0.97x"),
        (Bar("x", value_max=300, ratio_max=0.125), 300.0, 0.125, True, "≤ 300, ≤ 0.125x"),
        (Bar("x", value_max=300, ratio_max=0.125), 301.0, 0.1, False, "≤ 300, ≤ 0.125x"),
        (Bar("x", value_max=300, ratio_max=0.125), 200.0, 0.2, False, "≤ 300, ≤ 0.125x"),
        (Bar("x", value_min=64), 64.0, None, True, "≥ 64"),
    ],
)
def test_bars(bar: Bar, value: float, ratio: float | None, holds: bool, text: str) -> None:
    assert bar.holds(value, ratio) is holds
    assert str(bar) == text


async def no_load(_load: Load) -> Mapping[str, float]:
    return {}


def outcome(rate: float, prompt_tokens: int = 10, others: float = 0.0) -> Outcome:
    return Outcome({"rate": rate, "TTFT": 1.0}, [{"prompt_tokens": prompt_tokens}], 2.0, 0.1, 3.0, others, 100.0)


def runs(side: str, *rates: float | None) -> list[Run]:
    results = [None if rate is None else outcome(rate) for rate in rates]
    return [Run(side, i, 0.0, each, "boom" if each is None else None) for i, each in enumerate(results)]


CASE = Case("case", ("-np", "1"), no_load, (Bar("rate", ratio_min=2.0),))


def test_rows_are_medians_and_their_ratio() -> None:
    judged = report.judge(CASE, [*runs("minka", 9.0, 30.0, 20.0), *runs("peer", 10.0, 4.0, 5.0)])
    rate, ttft = judged.rows
    assert (rate.minka, rate.peer, rate.ratio, rate.bar, rate.ok) == (20.0, 5.0, 4.0, "≥ 2x", True)
    assert (ttft.measure, ttft.ratio, ttft.bar, ttft.ok) == ("TTFT", 1.0, "", None)
    assert judged.ok
    assert judged.notes == ()


def test_a_missed_bar_is_not_ok() -> None:
    assert not report.judge(CASE, [*runs("minka", 9.0), *runs("peer", 5.0)]).ok


@pytest.mark.parametrize("failed", ["minka", "peer"])
def test_a_failed_run_is_reported_and_never_averaged(failed: str) -> None:
    good = "peer" if failed == "minka" else "minka"
    judged = report.judge(CASE, [*runs(failed, 50.0, None, 50.0), *runs(good, 5.0, 5.0, 5.0)])
    rate = judged.rows[0]
    assert (rate.minka, rate.peer)[failed == "peer"] is None
    assert rate.ok is False
    assert judged.notes == (f"{failed}, round 2 failed: boom",)


def test_a_failure_shows_even_without_bars() -> None:
    assert not report.judge(Case("case", (), no_load, ()), runs("minka", 1.0, None)).ok


def test_doubtful_runs_are_remarked() -> None:
    odd = [outcome(1.0, prompt_tokens=11), outcome(1.0, others=0.5), outcome(1.0, others=1.0)]
    odd_runs = [Run(side, 0, 0.0, each, None) for side, each in zip(("minka", "peer", "peer"), odd, strict=True)]
    different, disturbed = report.judge(CASE, odd_runs).notes
    assert "prompt tokens differ, {'minka': 11, 'peer': 10}" in different
    assert disturbed == "no clean numbers: other processes used 25% to 50% of a core during 2 of 3 runs"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (12345.6, "12,346"), (123.45, "123.5"), (4.567, "4.57"), (0.1234, "0.123")]
)
def test_numbers_are_printed_with_three_digits(value: float | None, text: str) -> None:
    assert report.number(value) == text


# ---------------------------------------------------------------------------------------------------------------------
# Scenarios, runner, command
# ---------------------------------------------------------------------------------------------------------------------


def order(client: Client, scenario: str = "one", case: str = "1 stream") -> Order:
    return Order(scenario, case, "seed", client.port, os.getpid(), time.monotonic())


EVERY_CASE = [(scenario.name, case.name) for scenario in SCENARIOS for case in scenario.cases]
WITH_PEER = [(scenario.name, case.name) for scenario in SCENARIOS if scenario.with_peer for case in scenario.cases]


@pytest.mark.parametrize(("scenario", "case"), EVERY_CASE)
def test_every_load_runs_and_measures_what_its_bars_ask_for(scenario: str, case: str) -> None:
    wanted = find(scenario, case)
    if scenario == "churn":
        wanted = Case(case, (), partial(churn, n_visits=24, n_clients=8), wanted.bars)

    async def work(client: Client) -> None:
        histories: list[History] = []
        for start in range(wanted.starts):
            result = await perform(replace(order(client, scenario, case), start=start), wanted, histories)
        assert {bar.measure for bar in wanted.bars} <= set(result.measures)
        assert all(value >= 0 for name, value in result.measures.items() if "RSS" not in name)
        assert all(stream["completion_tokens"] > 0 for stream in result.streams)
        json.dumps(result.measures)

    run(Answers(), work)


def test_names_are_unique_and_the_default_run_is_not_empty() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert len(set(EVERY_CASE)) == len(EVERY_CASE)
    assert [scenario.name for scenario in command.chosen([])] == [s.name for s in SCENARIOS if s.by_default]
    with pytest.raises(BenchmarkError, match="no scenario 'nine'"):
        command.chosen(["one", "nine"])


FAKE_SERVER = (sys.executable, str(ROOT / "tests" / "instant_server.py"))


def test_sides_take_turns_and_a_dead_server_is_a_failed_run(tmp_path: Path) -> None:
    dead = (sys.executable, "-c", "print('no such model'); raise SystemExit(3)")
    sides = (Side("minka", FAKE_SERVER), Side("peer", dead))
    one = next(scenario for scenario in SCENARIOS if scenario.name == "one")
    lines: list[str] = []
    using = Setting(sides, {Model.MAIN: tmp_path / "none.gguf"}, 2, tmp_path)
    results = run_case(one, one.cases[0], using, lines.append)
    assert [(each.side, each.round) for each in results] == [("minka", 0), ("peer", 0), ("peer", 1), ("minka", 1)]
    assert all((each.outcome is None) == (each.side == "peer") for each in results)
    assert results[1].error == "peer ended with code 3 before it listened"
    assert any("no such model" in line for line in lines)
    document = report.document(one, [report.judge(one.cases[0], results)], {"rounds": 2})
    assert json.loads(json.dumps(document))["cases"][0]["runs"][0]["outcome"]["streams"][0]["completion_tokens"] == 128


def test_the_command_prints_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    flags = ["--model", str(model), "--rounds", "1", "--out", str(tmp_path / "out")]
    assert command.main(["storm", *flags, "--minka-command", " ".join(FAKE_SERVER)]) == 0
    printed = capsys.readouterr().out
    assert "64 on 4" in printed
    assert "≥ 64" in printed
    (record,) = (tmp_path / "out").glob("*-storm.json")
    document = json.loads(record.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["models"] == {"main": "model.gguf"}
    assert document["cases"][0]["ok"] is True


@pytest.mark.parametrize(("scenario", "case"), WITH_PEER)
def test_the_peer_understands_every_flag(scenario: str, case: str) -> None:
    flags = find(scenario, case).flags
    peer.parse(
        ["-m", "model.gguf", "--host", "127.0.0.1", "--port", "80", *Setting((), {}, 1, ROOT).common_flags, *flags]
    )


def test_the_tiny_model_is_written_when_none_is_given(tmp_path: Path) -> None:
    given = tmp_path / "given.gguf"
    assert command.tiny_model(given, tmp_path) == given
    assert command.tiny_model(None, tmp_path).read_bytes()[:4] == b"GGUF"


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["storm", "--model", str(tmp_path / "none.gguf")]) == 2
    assert capsys.readouterr().err.startswith("benchmarks: no such model file")


def test_a_scenario_may_limit_its_rounds_and_leave_the_peer_out(tmp_path: Path) -> None:
    alone = Scenario("one", "", (find("one", "1 stream"),), with_peer=False, rounds=1)
    using = Setting((Side("minka", FAKE_SERVER), Side("peer", ())), {Model.MAIN: tmp_path}, 3, tmp_path)
    assert [each.side for each in run_case(alone, alone.cases[0], using, lambda _line: None)] == ["minka"]
