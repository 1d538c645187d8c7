from __future__ import annotations

import asyncio
import json

import pytest

from minka.tools.bench_requests import Sample, Target, base_path, read_sample
from minka.tools.bench_spread import Level, spread
from minka.tools.load_client import Client, LoadError, Tape
from tests.tools.servers import Request, openai, plain, serving

HELLO = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]


def tape(*frames: object) -> Tape:
    """Frames at 1.0, 1.5, 2.0, ... of a request that was sent at 0.25."""
    coded = [frame if isinstance(frame, bytes) else b"data: " + json.dumps(frame).encode() for frame in frames]
    times = [1.0 + 0.5 * i for i in range(len(frames))]
    return Tape(0.25, coded, times, 10.0)


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def test_a_stream_tells_when_text_came() -> None:
    sample = read_sample(
        tape(
            b": ping", delta(role="assistant", content=""), delta(content="He"), delta(reasoning_content="hm"),
            delta(content="llo"), {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}},
            b"data: [DONE]",
        )
    )  # fmt: skip
    assert sample == Sample(0.25, 9.75, 1.75, (0.5, 0.5), 7, 5, "Hehmllo")
    assert sample.ended == 10.0


def test_text_completions_and_servers_without_counts_are_read() -> None:
    sample = read_sample(tape({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}], "usage": None}))
    assert (sample.n_prompt, sample.n_output, sample.text) == (0, 2, "ab")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"data: {", "no JSON"),
        ({"error": {"message": "busy"}}, "busy"),
        (b"data: [1]", "has an error"),
        (delta(role="assistant"), "no text"),
        ({"choices": [7]}, "no text"),
        ({}, "no text"),
    ],
)
def test_a_stream_that_is_no_answer_is_an_error(frame: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read_sample(tape(frame))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://a", "/v1"),
        ("http://a/", "/v1"),
        ("http://a/openai/v1/", "/openai/v1"),
        ("http://a/v1/chat/completions", "/v1"),
        ("http://a/x/completions", "/x"),
    ],
)
def test_a_url_may_have_a_path(url: str, path: str) -> None:
    assert base_path(url) == path


def test_requests_of_both_apis() -> None:
    client = Client("a", 1)
    chat = Target("u", client, "/v1", "m", "chat", {"temperature": 0}).body(HELLO, 8)
    assert chat == {
        "model": "m", "messages": HELLO, "max_tokens": 8, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    text = Target("u", client, "/v1", "", "completions", {"max_tokens": 3}).body(HELLO, 8)
    assert text["prompt"] == "Be short.\n\nHello"
    assert text["max_tokens"] == 3
    assert "model" not in text
    assert "messages" not in text


def test_an_error_is_a_sample_too() -> None:
    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(plain("400 Bad", b"no"))

    async def main() -> list[Sample]:
        samples = []
        for answer in (refuse, openai):
            async with serving(answer) as served:
                target = Target(served.url, Client.of_url(served.url), "/v1")
                samples.append(await target.ask(HELLO, 3))
        samples.append(await target.ask(HELLO, 3))  # the server is gone
        return samples

    refused, answered, gone = asyncio.run(main())
    assert refused.error == "POST /v1/chat/completions got 400: no"
    assert (answered.error, answered.n_output, answered.text) == ("", 3, "sososo")
    assert gone.error
    assert refused.began > 0 < gone.began


def test_a_level_is_rates_and_percentiles() -> None:
    samples = (
        Sample(10.0, 4.0, 1.0, (0.5, 1.5), 6, 3),
        Sample(11.0, 4.0, 2.0, (1.0,), 4, 5),
        Sample(11.0, 0.5, error="no"),
    )
    level = Level("u", 2, samples)
    assert (len(level.done), level.errors, level.seconds) == (2, ["no"], 5.0)
    assert (level.requests_per_second, level.output_per_second, level.total_per_second) == (0.4, 1.6, 3.6)
    assert [level.ttft.mean, level.ttft.p50, level.ttft.p90] == pytest.approx([1.5, 1.5, 1.9])
    assert (level.itl.p50, level.latency.p99) == (1.0, 4.0)


def test_a_level_without_answers_has_no_percentiles() -> None:
    level = Level("u", 1, ())
    assert (level.seconds, level.output_per_second, level.requests_per_second) == (0.0, 0.0, 0.0)
    assert level.ttft.p50 != level.ttft.p50
    assert spread([3.0]).p99 == 3.0
