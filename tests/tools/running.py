"""Runs `minka` in this process: the fixture `minka` is a function from words to exit code, output and errors.

A test module makes it visible with `from tests.tools.running import minka`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from minka import cli


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Minka = Callable[..., Outcome]


@pytest.fixture
def minka(capsys: pytest.CaptureFixture[str]) -> Iterator[Minka]:
    """The command line. Logging is as before afterwards."""
    loggers = [logging.getLogger(name) for name in ("", "minka", "minka.llama")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    yield run
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in [handler for handler in loggers[0].handlers if handler not in handlers]:
        loggers[0].removeHandler(handler)
