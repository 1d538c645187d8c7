"""Logging of the process: what a person reads on the terminal, or one JSON object per line for machines.

Loggers are named `minka.AREA`; `minka.llama` carries libllama's own lines. Verbosity numbers are llama-server's. This
module decides what is shown, where and in which form; it starts no thread and knows nothing of what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from minka.errors import UsageError
from minka.params import LogParams

TRACE = 15
"""Level between DEBUG and INFO, for lines that explain single steps; `-lv 4` shows it."""

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The request that the running task or thread works for; its lines of JSON carry it."""

LIBLLAMA = "minka.llama"
"""Logger of libllama's own lines. It says much at INFO, so it is held to warnings until `-v` or `-lv 4`."""

_OFF = logging.CRITICAL + 10
_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, TRACE, logging.DEBUG)
_LIBLLAMA_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.WARNING, logging.INFO, logging.DEBUG)
_OTHERS_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.WARNING, logging.WARNING, logging.DEBUG)
_WORDS = {logging.DEBUG: "debug", TRACE: "trace", logging.INFO: "info", logging.WARNING: "warning"}
_WORDS |= {logging.ERROR: "error", logging.CRITICAL: "critical"}
_COLORS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[1;31m"}
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
# A message may quote a client's bytes: control characters are shown, never sent to the terminal.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def configure(params: LogParams, stream: TextIO | None = None) -> None:
    """Sets up `logging` for the whole process. A second call replaces what the first one set up.

    `stream` is where lines go: stderr if not given, and stdout for `log_jsonl`. With `log_file` they are appended to
    that file as well. Raises UsageError if the file cannot be opened; logging is then as it was before.
    """
    handlers = [] if params.log_disable else _handlers(params, stream)
    verbosity = 5 if params.verbose else max(0, min(params.verbosity, 5))
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, (_StreamSink, _FileSink, _NoSink))]:
        root.removeHandler(old)
        old.close()
    for handler in handlers or [_NoSink()]:
        root.addHandler(handler)
    root.setLevel(_OFF if params.log_disable else _OTHERS_LEVELS[verbosity])
    logging.getLogger("minka").setLevel(_OFF if params.log_disable else _LEVELS[verbosity])
    logging.getLogger(LIBLLAMA).setLevel(_OFF if params.log_disable else _LIBLLAMA_LEVELS[verbosity])


class _StreamSink(logging.StreamHandler[TextIO]):
    """Our handler on a stream: a type of its own, so that a second `configure` can find it."""


class _FileSink(logging.FileHandler):
    """Our handler on a file."""


class _NoSink(logging.NullHandler):
    """Nothing is shown; keeps `logging` from falling back to its handler of last resort."""


def _handlers(params: LogParams, stream: TextIO | None) -> list[logging.Handler]:
    terminal = _StreamSink(stream or (sys.stdout if params.log_jsonl else sys.stderr))
    terminal.setFormatter(_formatter(params, colors=_wants_colors(params.log_colors, terminal.stream)))
    if not params.log_file:
        return [terminal]
    file = _open(params.log_file)
    # A file is read days later: its times carry the date.
    file.setFormatter(_formatter(params, time_format="%Y-%m-%d %H:%M:%S"))
    return [terminal, file]


def _formatter(params: LogParams, *, colors: bool = False, time_format: str = "%H:%M:%S") -> logging.Formatter:
    if params.log_jsonl:
        return JsonFormatter()
    return HumanFormatter(
        timestamps=params.log_timestamps, prefix=params.log_prefix, colors=colors, time_format=time_format
    )


def _open(path: str) -> _FileSink:
    try:
        return _FileSink(path, mode="a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"the log file {str(path)!r} cannot be opened ({error.strerror}): give --log-file another path",
            param="log_file",
        ) from error


def _wants_colors(choice: str, stream: TextIO) -> bool:
    if choice != "auto":
        return choice == "on"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class HumanFormatter(logging.Formatter):
    """`12:03:04 serve  message`: local time, the area (last part of the logger's name), and a word for what is wrong.

    Further lines of a message are indented, so that no text can pass for a log line of its own.
    """

    def __init__(
        self, *, timestamps: bool = True, prefix: bool = True, colors: bool = False, time_format: str = "%H:%M:%S"
    ) -> None:
        super().__init__(datefmt=time_format)
        self.timestamps = timestamps
        self.prefix = prefix
        self.colors = colors

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, with its traceback below if it has one."""
        head = " ".join(part for part in (self._time(record), self._area(record)) if part)
        text = record.getMessage().rstrip().translate(_VISIBLE).replace("\n", "\n    ")
        word = _WORDS.get(record.levelno, record.levelname.lower())
        if self.prefix and record.levelno != logging.INFO:
            text = f"{word}: {text}"
        if self.colors:
            color = _COLORS.get(record.levelno, _DIM if record.levelno < logging.INFO else "")
            head, text = f"{_DIM}{head}{_RESET}" if head else "", f"{color}{text}{_RESET}" if color else text
        lines = [f"{head} {text}" if head else text]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)

    def _time(self, record: logging.LogRecord) -> str:
        return self.formatTime(record, self.datefmt) if self.timestamps else ""

    def _area(self, record: logging.LogRecord) -> str:
        return f"{record.name.rpartition('.')[2]:6}" if self.prefix else ""


class JsonFormatter(logging.Formatter):
    """One JSON object on one line: ts, level, logger, message, and request_id and exception where there are any.

    `ts` is UTC in RFC 3339 with milliseconds. A record's `facts` are further members, which the message tells as text.
    The line is ASCII, so no encoding of the stream can break it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        fields: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": _WORDS.get(record.levelno, record.levelname.lower()),
            "logger": record.name,
            "message": record.getMessage().rstrip(),
        }
        request_id = getattr(record, "request_id", None) or REQUEST_ID.get()
        if request_id:
            fields["request_id"] = str(request_id)
        for name, value in getattr(record, "facts", {}).items():
            fields.setdefault(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
