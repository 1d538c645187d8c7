"""`minka batch`: a file of requests in, a file of answers out, and a run that is taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.batches.values import entries, jsonl, request
from tests.fakes import WAIT
from tests.protocols.values import at
from tests.terminal.desk import Desk, desk, environment, oracle

__all__ = ["desk", "oracle"]


def test_answers_are_in_the_order_of_the_requests(desk: Desk) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    lines = [request(f"r{n}", max_tokens=8 - n) for n in range(6)]
    lines.insert(2, {"custom_id": "chat", "url": "/v1/chat/completions", "body": chat})
    Path("in.jsonl").write_bytes(jsonl(*lines))
    result = desk.run("batch", "in.jsonl", "-o", "out.jsonl")
    assert (result.code, result.out, result.err) == (0, b"", "")
    answers = entries(Path("out.jsonl"))
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "chat", "r2", "r3", "r4", "r5"]
    assert at(answers[1], "response", "body", "choices", 0, "text") == desk.complete("r1", 7)
    assert at(answers[2], "response", "body", "object") == "chat.completion"
    assert sorted(path.name for path in desk.folder.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_requests_that_fail_are_told_of(desk: Desk) -> None:
    Path("in.jsonl").write_bytes(jsonl(request("a"), request("b", top_k="many")))
    result = desk.run("batch", "in.jsonl", "-o", "out.jsonl")
    assert result.code == 1
    assert result.err == "1 of 2 requests failed; their lines in out.jsonl say why\n"
    bad = entries(Path("out.jsonl"))[1]
    assert at(bad, "response", "body", "error", "param") == "top_k"


def test_what_is_done_is_not_done_again(desk: Desk) -> None:
    """The partial file of a process that was killed has results that the second run takes as they are."""
    Path("in.jsonl").write_bytes(jsonl(*(request(f"r{n}", max_tokens=400) for n in range(12))))
    partial = Path("out.jsonl.partial")
    command = (sys.executable, "-m", "minka", "batch", "in.jsonl", "-o", "out.jsonl", "-m", desk.model, "--temp", "0")
    with subprocess.Popen(command, env=environment(desk.folder)) as process:
        deadline = time.monotonic() + 3 * WAIT
        while not (partial.exists() and partial.read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    assert not Path("out.jsonl").exists()
    kept = {json.loads(line.split(b" ", 2)[2])["id"] for line in partial.read_bytes().split(b"\n")[1:-1]}
    assert kept
    assert desk.run("batch", "in.jsonl", "-o", "out.jsonl").code == 0
    answers = entries(Path("out.jsonl"))
    assert [answer["custom_id"] for answer in answers] == [f"r{n}" for n in range(12)]
    assert kept <= {answer["id"] for answer in answers}
    assert not partial.exists()


def test_a_batch_that_is_done_is_not_done_again(desk: Desk) -> None:
    Path("in.jsonl").write_bytes(jsonl(request("a"), request("b")))
    words = ("batch", "in.jsonl", "-o", "out.jsonl")
    desk.run(*words)
    before = Path("out.jsonl").read_bytes()
    result = desk.run(*words)
    assert (result.code, result.err) == (0, "all 2 requests were done before; to do them again, remove out.jsonl\n")
    assert Path("out.jsonl").read_bytes() == before
    assert desk.run(*words, "--alias", "other").err == "", "another model's answers are others"
    Path("in.jsonl").write_bytes(jsonl(request("a"), request("c")))
    assert desk.run(*words).err == ""
    assert [answer["custom_id"] for answer in entries(Path("out.jsonl"))] == ["a", "c"]
    Path("out.jsonl").write_text('["something else"]\n')
    assert desk.run(*words).err == ""


def test_a_batch_that_failed_is_done_again(desk: Desk) -> None:
    Path("in.jsonl").write_bytes(jsonl(request("a"), request("b", top_k="many")))
    for _ in range(2):
        result = desk.run("batch", "in.jsonl", "-o", "out.jsonl")
        assert (result.code, result.err) == (1, "1 of 2 requests failed; their lines in out.jsonl say why\n")


def test_another_input_does_not_go_on_with_it(desk: Desk) -> None:
    Path("in.jsonl").write_bytes(jsonl(request("a")))
    Path("out.jsonl.partial").write_bytes(b'{"format": 1}\n')
    result = desk.run("batch", "in.jsonl", "-o", "out.jsonl")
    assert result.code == 2
    assert "out.jsonl.partial is of another input or model" in result.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("in.jsonl",), 2, "name the file for the answers: -o FILE"),
        (("none", "-o", "out"), 2, "cannot read none"),
        (("bad.jsonl", "-o", "out"), 2, 'bad.jsonl line 2: "custom_id" must be a text (1 more problems follow)'),
        (("empty.jsonl", "-o", "out"), 2, "empty.jsonl: the file has no requests"),
        (("in.jsonl", "-o", "none/out"), 2, "none/out cannot be written"),
        (("in.jsonl", "-o", "in.jsonl"), 2, "is the input"),
    ],
)
def test_what_cannot_be_done_is_one_line(desk: Desk, args: tuple[str, ...], code: int, says: str) -> None:
    Path("in.jsonl").write_bytes(jsonl(request("a")))
    Path("bad.jsonl").write_bytes(jsonl(request("a"), {}, {}))
    Path("empty.jsonl").write_bytes(b"")
    result = desk.run("batch", *args)
    assert result.code == code
    assert says in result.err.splitlines()[-1]
    assert Path("in.jsonl").read_bytes() == jsonl(request("a"))
