from __future__ import annotations

import errno
from io import BytesIO

import pytest

from minka.errors import MinkaError
from minka.terminal.output import Output, Screen, timings_line, token_table, wants_colors
from minka.types import Timings
from tests.fakes import BOS, FakeVocab

EVIL = "a\x1b]0;title\x07b\rc\td\ne\x9b31m"


def test_a_pipe_gets_the_text_exactly() -> None:
    stream = BytesIO()
    Output(stream, terminal=False).write(EVIL + "é\ufffd")
    assert stream.getvalue() == (EVIL + "é\ufffd").encode()


def test_a_terminal_is_shown_control_characters_and_never_sent_them() -> None:
    stream = BytesIO()
    Output(stream, terminal=True).write(EVIL)
    assert stream.getvalue() == b"a\\x1b]0;title\\x07b\\x0dc\td\ne\\x9b31m"


def test_end_line_ends_a_line_once() -> None:
    stream = BytesIO()
    out = Output(stream, terminal=False)
    for text in ("", "a", "b\n", ""):
        out.write(text)
        out.end_line()
    assert stream.getvalue() == b"a\nb\n"


def test_what_is_typed_behind_an_invitation_ends_its_line() -> None:
    stream = BytesIO()
    out = Output(stream, terminal=False)
    out.invite("> ")
    out.end_line()
    assert stream.getvalue() == b"> "


class _Broken(BytesIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def flush(self) -> None:
        raise OSError(self._number, "No space left on device")


def test_a_full_disk_is_one_sentence_and_a_closed_pipe_is_passed_on() -> None:
    with pytest.raises(MinkaError, match="cannot write the output: No space left on device"):
        Output(_Broken(errno.ENOSPC), terminal=False).write("x")
    with pytest.raises(BrokenPipeError):
        Output(_Broken(errno.EPIPE), terminal=False).write("x")


def screen(*, colors: bool = False, live: bool = False) -> tuple[Screen, BytesIO]:
    stream = BytesIO()
    return Screen(Output(stream, terminal=True), colors=colors, live=live), stream


def test_without_colours_there_is_no_escape_on_the_screen() -> None:
    shown, stream = screen()
    shown.title("T")
    shown.answer("an answer")
    shown.note("note\x1b[2J")
    shown.status("unseen")
    shown.error("error")
    shown.space()
    assert stream.getvalue() == b"T\nan answer\nnote\\x1b[2J\nerror\n\n"


def test_with_colours_only_our_own_words_are_styled() -> None:
    shown, stream = screen(colors=True)
    shown.answer("answer")
    shown.error("error")
    assert stream.getvalue() == b"answer\n\x1b[31merror\x1b[0m\n"


def test_a_status_is_erased_before_anything_else_is_written() -> None:
    shown, stream = screen(live=True)
    shown.status("reading")
    shown.answer("text")
    shown.end_answer()
    assert stream.getvalue() == b"\r\x1b[2Kreading\r\x1b[2Ktext\n"
    shown.status("reading")
    shown.end_answer()
    assert stream.getvalue().endswith(b"\r\x1b[2Kreading\r\x1b[2K")


TIMINGS = Timings(cache_n=0, prompt_n=50, prompt_ms=500, predicted_n=21, predicted_ms=1000)


def test_timings_count_the_first_token_to_the_prompt() -> None:
    assert timings_line(TIMINGS, 71, 1000) == "[ Prompt: 100.0 t/s | Generation: 20.0 t/s ]"


def test_timings_of_nothing_are_dashes() -> None:
    assert timings_line(Timings(), 0, 100) == "[ Prompt: - t/s | Generation: - t/s ]"


def test_a_prompt_that_was_all_there_has_no_speed() -> None:
    assert "Prompt: cached |" in timings_line(Timings(cache_n=49, prompt_n=1, prompt_ms=10), 50, 1000)


@pytest.mark.parametrize(("n_past", "is_shown"), [(800, False), (801, True), (1000, True)])
def test_the_use_of_the_context_is_shown_over_80_percent(n_past: int, is_shown: bool) -> None:
    assert ("Context: " in timings_line(TIMINGS, n_past, 1000)) == is_shown


def test_the_use_of_the_context_in_words() -> None:
    line = timings_line(TIMINGS, 7000, 8192)
    assert line.endswith("| Context: 85 % full (7,000 of 8,192 tokens) ]")


@pytest.mark.parametrize(
    ("choice", "terminal", "env", "wanted"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("on", False, {"NO_COLOR": "1"}, True),
        ("off", True, {}, False),
    ],
)
def test_colours(
    choice: str, terminal: bool, env: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert wants_colors(choice, terminal=terminal) == wanted


def test_the_token_table_has_a_line_for_each_token() -> None:
    assert token_table([BOS, 104, 10], FakeVocab()) == (
        "number of tokens in prompt = 3\n   256 -> '<s>'\n   104 -> 'h'\n    10 -> '\\n'\n"
    )
