"""What is logged where: levels, the two forms of a line, files, colours, and a second `configure`."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path

import pytest

from minka import logs
from minka.errors import UsageError
from minka.logs import REQUEST_ID, TRACE, configure
from minka.params import LogParams

serve = logging.getLogger("minka.commands.serve")
llama = logging.getLogger("minka.llama")
other = logging.getLogger("httpcore.connection")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Leaves `logging` as it was: no handler of ours, no level of ours."""
    loggers = [logging.getLogger(name) for name in ("", "minka", "minka.llama")]
    levels = [logger.level for logger in loggers]
    before = list(logging.getLogger().handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in [handler for handler in logging.getLogger().handlers if handler not in before]:
        logging.getLogger().removeHandler(handler)
        handler.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(params: LogParams) -> set[str]:
    """What of one line at every level and of every origin comes through."""
    stream = io.StringIO()
    configure(params, stream)
    for name, logger in (("minka", serve), ("llama", llama), ("other", other)):
        for level in (logging.DEBUG, TRACE, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logger.log(level, "<%s:%s>", name, level)
    return set(re.findall("<(.*?)>", stream.getvalue()))


ALL = {f"{name}:{level}" for name in ("minka", "llama", "other") for level in (10, 15, 20, 30, 40, 50)}


@pytest.mark.parametrize(
    ("verbosity", "minka", "libllama", "others"),
    [(0, 50, 50, 50), (1, 40, 40, 40), (2, 30, 30, 30), (3, 20, 30, 30), (4, 15, 20, 30), (5, 10, 10, 10)],
)
def test_verbosity_is_llama_servers(verbosity: int, minka: int, libllama: int, others: int) -> None:
    least = {"minka": minka, "llama": libllama, "other": others}
    expected = {line for line in ALL if int(line.partition(":")[2]) >= least[line.partition(":")[0]]}
    assert said(LogParams(verbosity=verbosity)) == expected


def test_by_default_minka_tells_and_libllama_only_warns() -> None:
    assert said(LogParams()) == said(LogParams(verbosity=3))


def test_verbose_is_everything_and_so_is_a_number_beyond() -> None:
    assert said(LogParams(verbose=True)) == ALL
    assert said(LogParams(verbosity=99)) == ALL


def test_disable_beats_verbose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(LogParams(log_disable=True, verbose=True, log_file=str(tmp_path / "log"))) == set()
    assert not serve.isEnabledFor(logging.CRITICAL)
    assert not (tmp_path / "log").exists()
    # Not even what `logging` says when it has no handler at all.
    logging.getLogger("elsewhere").warning("hello")
    assert capsys.readouterr() == ("", "")


def line(params: LogParams, message: str = "listening", level: int = logging.INFO, *, tty: bool = False) -> str:
    stream = Terminal() if tty else io.StringIO()
    configure(params, stream)
    serve.log(level, message)
    return stream.getvalue()


def test_a_human_line_is_short() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d serve  listening\n", line(LogParams()))
    assert re.fullmatch(r"\d\d:\d\d:\d\d serve  warning: low\n", line(LogParams(), "low", logging.WARNING))


def test_prefix_and_timestamps_can_be_left_out() -> None:
    assert line(LogParams(log_timestamps=False)) == "serve  listening\n"
    assert re.fullmatch(r"\d\d:\d\d:\d\d listening\n", line(LogParams(log_prefix=False)))
    assert line(LogParams(log_prefix=False, log_timestamps=False), "low", logging.WARNING) == "low\n"


def test_a_message_cannot_pass_for_a_line_or_command_the_terminal() -> None:
    forged = "user said: hi\n12:00:00 serve  error: forged \x1b[2J\x07\r\n"
    out = line(LogParams(log_timestamps=False), forged)
    assert out == "serve  user said: hi\n    12:00:00 serve  error: forged \\x1b[2J\\x07\n"


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    configure(LogParams(log_timestamps=False), stream)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        serve.exception("request failed")
    head, *rest = stream.getvalue().splitlines()
    assert head == "serve  error: request failed"
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "RuntimeError: boom"


@pytest.mark.parametrize(
    ("choice", "tty", "environment", "colored"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("on", False, {"NO_COLOR": "1"}, True),
        ("off", True, {}, False),
    ],
)
def test_colors(
    choice: str, tty: bool, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = line(LogParams(log_colors=choice), "low", logging.WARNING, tty=tty)
    assert ("\x1b[33m" in out) is colored
    assert out.count("\x1b[0m") == (2 if colored else 0)


def test_jsonl_is_one_object_a_line_with_the_request() -> None:
    stream = Terminal()
    configure(LogParams(log_jsonl=True, log_colors="on"), stream)
    serve.info("done: %d tokens\n", 7, extra={"request_id": "chatcmpl-1"})
    llama.warning("größer\nzwei")
    first, second = [json.loads(text) for text in stream.getvalue().splitlines()]
    moment = datetime.fromisoformat(first.pop("ts"))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert first == {
        "level": "info",
        "logger": "minka.commands.serve",
        "message": "done: 7 tokens",
        "request_id": "chatcmpl-1",
    }
    assert (second["level"], second["logger"], second["message"]) == ("warning", "minka.llama", "größer\nzwei")
    assert "request_id" not in second
    assert stream.getvalue().isascii()


def test_lines_of_a_request_carry_its_id_and_facts_are_members() -> None:
    stream = Terminal()
    configure(LogParams(log_jsonl=True), stream)

    def work() -> None:
        REQUEST_ID.set("r1")
        serve.info("one")
        serve.info("two", extra={"request_id": "r2", "facts": {"status": 200, "level": "not this one"}})

    copy_context().run(work)
    serve.info("three")
    one, two, three = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert one["request_id"] == "r1"
    assert (two["request_id"], two["status"], two["level"]) == ("r2", 200, "info")
    assert "request_id" not in three


def test_an_exception_in_jsonl_is_one_line() -> None:
    stream = io.StringIO()
    configure(LogParams(log_jsonl=True), stream)
    try:
        raise RuntimeError("boom\nboom")
    except RuntimeError:
        serve.exception("request failed")
    (only,) = stream.getvalue().splitlines()
    fields = json.loads(only)
    assert fields["message"] == "request failed"
    assert fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("RuntimeError: boom\nboom")


def test_people_read_stderr_and_machines_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogParams())
    serve.info("for people")
    out, err = capsys.readouterr()
    assert out == ""
    assert "for people" in err
    configure(LogParams(log_jsonl=True))
    serve.info("for machines")
    out, err = capsys.readouterr()
    assert json.loads(out)["message"] == "for machines"
    assert err == ""


def test_a_file_is_appended_to_without_colors_and_with_the_date(tmp_path: Path) -> None:
    path = tmp_path / "minka.log"
    path.write_text("before\n")
    shown = line(LogParams(log_file=str(path), log_colors="on"), "größer", logging.ERROR)
    assert "\x1b[31m" in shown
    before, added = path.read_text(encoding="utf-8").splitlines()
    assert before == "before"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d serve  error: größer", added)


def test_jsonl_goes_to_the_file_as_well(tmp_path: Path) -> None:
    path = tmp_path / "minka.jsonl"
    shown = line(LogParams(log_file=str(path), log_jsonl=True))
    assert json.loads(shown)["message"] == "listening"
    assert path.read_text() == shown


@pytest.mark.parametrize("where", [".", "no/such/folder/log"])
def test_a_file_that_cannot_be_opened_is_a_usage_error(tmp_path: Path, where: str) -> None:
    stream = io.StringIO()
    configure(LogParams(), stream)
    with pytest.raises(UsageError, match=r"cannot be opened .* --log-file") as caught:
        configure(LogParams(log_file=str(tmp_path / where)))
    assert str(tmp_path / where) in caught.value.message
    serve.info("still here")
    assert "still here" in stream.getvalue()


def test_a_second_configure_replaces_the_first(tmp_path: Path) -> None:
    first, second = io.StringIO(), io.StringIO()
    foreign = logging.NullHandler()
    logging.getLogger().addHandler(foreign)
    configure(LogParams(log_file=str(tmp_path / "a")), first)
    configure(LogParams(log_file=str(tmp_path / "b"), verbosity=2), second)
    configure(LogParams(log_file=str(tmp_path / "b")), second)
    serve.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert (tmp_path / "a").read_text() == ""
    assert (tmp_path / "b").read_text().count("once") == 1
    assert foreign in logging.getLogger().handlers
    configure(LogParams(log_disable=True), second)
    configure(LogParams(), second)
    serve.info("twice")
    assert second.getvalue().count("twice") == 1


def test_a_stream_that_knows_little_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stderr", stream)
    configure(LogParams(log_timestamps=False))
    serve.info("größer")
    stream.flush()
    assert stream.buffer.getvalue() == b"serve  gr\\xf6\\xdfer\n"


def test_the_trace_level_has_a_name() -> None:
    assert line(LogParams(verbosity=4, log_timestamps=False), "step", logs.TRACE) == "serve  trace: step\n"
