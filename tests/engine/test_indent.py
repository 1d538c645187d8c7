from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.engine.text import TextStream
from minka.types import FinishReason
from tests.engine.rig import Rig, job
from tests.fakes import FakeBackend, scripted


def outdented(text: str, n_indent: int) -> tuple[str, bool]:
    """The definition: cut in front of the first other character of a line, but the first, with too little before it."""
    at = text.find("\n") + 1
    while at:
        body = at
        while body < len(text) and text[body] in " \t":
            body += 1
        if body < len(text) and body - at < n_indent:
            return text[:body], True
        at = text.find("\n", at) + 1
    return text, False


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = 1\n    y = 2\nz = 3", "x = 1\n    y = 2\n"),
        ("x\n  y", "x\n  "),
        ("x\n\t\t\t\ty\n\t\t\tz", "x\n\t\t\t\ty\n\t\t\t"),
        ("x\n\n    y", "x\n"),
        ("x\n    y", "x\n    y"),
        ("x", "x"),
        ("\nx", "\n"),
    ],
)
def test_a_line_that_is_indented_less_ends_the_text(text: str, shown: str) -> None:
    assert outdented(text, 4)[0] == shown
    stream = TextStream(n_indent=4)
    assert stream.feed(text.encode()) + stream.flush() == shown


@given(st.text("ab \t\n", max_size=30), st.integers(1, 4), st.lists(st.integers(0, 30), max_size=8))
def test_any_cut_into_pieces_gives_the_same(text: str, n_indent: int, cuts: list[int]) -> None:
    stream, shown = TextStream(n_indent=n_indent), ""
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        shown += stream.feed(text[start:end].encode())
        if stream.outdented:
            break
    assert (shown + stream.flush(), stream.outdented) == outdented(text, n_indent)
    assert stream.flush() == ""


def test_of_a_stop_string_and_a_short_indent_the_first_one_ends_the_text() -> None:
    stream = TextStream(("STOP",), n_indent=2)
    assert stream.feed(b"a STOP\nb") == "a "
    assert (stream.stopped, stream.outdented) == (True, False)
    stream = TextStream(("STOP",), n_indent=2)
    assert stream.feed(b"a\nb STOP") == "a\n"
    assert (stream.stopped, stream.outdented) == (False, True)


def test_a_job_ends_with_it_by_its_limit() -> None:
    text = "a:\n  b\nc d e"
    with Rig(FakeBackend(scripted({"p": text, "q": text}))) as rig:
        rig.run(job("cut", "p", 50, n_indent=2), job("whole", "q", 50))
        end = rig.inbox.finished("cut")
        assert (rig.inbox.text("cut"), end.reason, end.timings.predicted_n) == ("a:\n  b\n", FinishReason.LIMIT, 8)
        assert (rig.inbox.text("whole"), rig.inbox.finished("whole").reason) == (text, FinishReason.EOS)
