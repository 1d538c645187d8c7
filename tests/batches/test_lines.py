from __future__ import annotations

import json
from pathlib import Path

import pytest

from minka.batches import lines
from minka.batches.lines import BadLineError, Line, answered, check_file, parse_line, read_lines, unanswered
from tests.batches.values import URL, jsonl, request


def test_a_request(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl(request("a"), request("b")).replace(b"\n", b"\r\n\n"))
    found = [parse_line(number, raw, (URL,)) for number, raw in read_lines(path)]
    assert [(line.number, line.custom_id) for line in found] == [(1, "a"), (3, "b")]
    assert found[0].body == request("a")["body"]
    assert check_file(path, (URL,)) == (2, [])


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b'{"custom_id": "a", "body": {"x": 1e999}}', "invalid_json_line"),
        (b"{}", "missing_required_parameter"),
        (json.dumps({**request("a"), "custom_id": 7}).encode(), "missing_required_parameter"),
        (json.dumps({**request("a"), "body": []}).encode(), "missing_required_parameter"),
        (json.dumps({**request("a"), "method": "GET"}).encode(), "invalid_method"),
        (json.dumps({**request("a"), "url": "/v1/chat/completions"}).encode(), "invalid_url"),
        (json.dumps({**request("a"), "url": ["x"]}).encode(), "invalid_url"),
    ],
)
def test_what_is_no_request(raw: bytes, code: str) -> None:
    with pytest.raises(BadLineError) as caught:
        parse_line(1, raw, (URL,))
    assert caught.value.code == code


def test_all_problems_of_a_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl(request("a"), {}, request("b"), request("a")))
    n, problems = check_file(path, (URL,))
    assert n == 4
    assert [(problem.line, problem.code) for problem in problems] == [
        (2, "missing_required_parameter"),
        (4, "duplicate_custom_id"),
    ]
    assert problems[1].message == 'line 1 has the same "custom_id"'
    monkeypatch.setattr(lines, "MAX_LINES", 3)
    assert check_file(path, (URL,))[1][-1].code == "too_many_tasks"
    path.write_bytes(b"\n \n")
    assert [problem.code for problem in check_file(path, (URL,))[1]] == ["empty_file"]


def test_results_have_openais_form() -> None:
    line = Line(3, "a", URL, {})
    good, bad = answered(line, 200, "r1", {"x": 1}), answered(line, 400, "r2", {"error": {}})
    assert (good.ok, bad.ok, good.number) == (True, False, 3)
    entry = json.loads(good.data)
    assert entry.pop("id").startswith("batch_req_")
    assert entry == {
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r1", "body": {"x": 1}},
        "error": None,
    }
    late = json.loads(unanswered(4, json.dumps(request("b")).encode(), "batch_expired", "too late").data)
    assert (late["custom_id"], late["response"]) == ("b", None)
    assert late["error"] == {"code": "batch_expired", "message": "too late"}
