from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from minka.batches.journal import Journal
from minka.batches.lines import Result
from minka.errors import UsageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}")
    return path


def test_results_come_back_in_order_and_over_restarts(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "out.partial"
    first = Journal(path, source, "m")
    first.save([Result(3, ok=True, data=b'{"a": 3}'), Result(1, ok=False, data=b'{"a": 1}')])
    first.close()
    again = Journal(path, source, "m")
    assert again.done == {1, 3}
    again.save([Result(2, ok=True, data=b'{"a": 2}')])
    assert list(again.results()) == [b'{"a": 1}\n', b'{"a": 2}\n', b'{"a": 3}\n']
    assert again.n_failed == 1
    again.remove()
    assert not path.exists()


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "out.partial"
    for length in range(0, 200, 3):
        path.unlink(missing_ok=True)
        made = Journal(path, source, "m")
        made.save([Result(1, ok=True, data=b"one"), Result(2, ok=True, data=b"two")])
        made.close()
        path.write_bytes(path.read_bytes()[:length])
        again = Journal(path, source, "m")
        assert again.done in (frozenset(), {1}, {1, 2})
        again.save([Result(n, ok=True, data=b"%d" % n) for n in (1, 2) if n not in again.done])
        again.close()
        with closing(Journal(path, source, "m")) as whole:
            assert whole.done == {1, 2}


@pytest.mark.parametrize("change", ["input", "model"])
def test_a_journal_of_something_else_is_refused(tmp_path: Path, source: Path, change: str) -> None:
    path = tmp_path / "out.partial"
    Journal(path, source, "m").close()
    if change == "input":
        source.write_bytes(b"{} ")
    with pytest.raises(UsageError, match="another input or model"):
        Journal(path, source, "m" if change == "input" else "n")


@pytest.mark.parametrize(
    "damage", [b"\0" * 40 + b"\n", b"\n", b"2 7 {}\n", b"x 1 {}\n", b"2\n", b"99999999999999999999 1 {}\n"]
)
def test_a_damaged_line_ends_what_counts(tmp_path: Path, source: Path, damage: bytes) -> None:
    path = tmp_path / "out.partial"
    with closing(Journal(path, source, "m")) as made:
        made.save([Result(1, ok=True, data=b"one")])
    path.write_bytes(path.read_bytes() + damage + b"3 1 three\n")
    with closing(Journal(path, source, "m")) as again:
        assert again.done == {1}
        again.save([Result(2, ok=True, data=b"two"), Result(3, ok=False, data=b"three")])
    with closing(Journal(path, source, "m")) as whole:
        assert list(whole.results()) == [b"one\n", b"two\n", b"three\n"]
        assert whole.n_failed == 1


def test_two_runs_cannot_work_on_one_batch(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "out.partial"
    with closing(Journal(path, source, "m")), pytest.raises(UsageError, match="in use"):
        Journal(path, source, "m")
    Journal(path, source, "m").close()
