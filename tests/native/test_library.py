from __future__ import annotations

import logging

import pytest

from minka.errors import ModelError
from minka.native.library import library
from minka.native.model import Model
from tests.native.conftest import ON_CPU
from tests.tiny_fixtures import TinyModels

DEBUG, INFO, WARN, ERROR, CONTINUE = 1, 2, 3, 4, 5


def test_there_is_one_library() -> None:
    assert library() is library()
    assert library().version
    assert isinstance(library().supports_gpu, bool)


def test_what_libllama_says_arrives_at_our_logger(tiny_models: TinyModels, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "minka.llama"):
        Model.load(tiny_models("llama"), ON_CPU).close()
    lines = [record for record in caplog.records if record.name == "minka.llama"]
    assert any("general.architecture" in record.getMessage() for record in lines)
    assert any(record.levelno == logging.INFO for record in lines)
    assert not any("\n" in record.getMessage() for record in lines)


def test_nothing_goes_past_the_logger(tiny_models: TinyModels, capfd: pytest.CaptureFixture[str]) -> None:
    Model.load(tiny_models("llama"), ON_CPU).close()
    assert capfd.readouterr() == ("", "")


def test_errors_are_errors_and_are_collected(tiny_models: TinyModels, caplog: pytest.LogCaptureFixture) -> None:
    with library().errors() as errors, caplog.at_level(logging.ERROR, "minka.llama"):
        with pytest.raises(ModelError):
            Model.load(tiny_models("truncated"), ON_CPU)
        assert any("within the file bounds" in line for line in errors)
    assert any("within the file bounds" in record.getMessage() for record in caplog.records)
    with library().errors() as errors:
        assert not errors, "those of an earlier call are gone"


def test_levels_lines_and_continuations(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "minka.llama"):
        for level, text in (
            (INFO, b"one line\n"),
            (WARN, b"two\nlines\n"),
            (ERROR, b"begun "),
            (CONTINUE, b"and ended"),
            (CONTINUE, b"\n"),
            (INFO, b"...."),
            (CONTINUE, b"..\n"),
            (DEBUG, b"caf\xc3\xa9 \xff\n"),
            (99, b"unknown level\n"),
        ):
            library()._on_log(level, text, None)
    assert [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "minka.llama"] == [
        (logging.INFO, "one line"),
        (logging.WARNING, "two"),
        (logging.WARNING, "lines"),
        (logging.ERROR, "begun and ended"),
        (logging.DEBUG, "café \ufffd"),
        (logging.DEBUG, "unknown level"),
    ]
