from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka

__all__ = ["minka"]


@pytest.fixture
def model(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


def test_a_line_for_each_token(minka: Minka, model: Path) -> None:
    outcome = minka("tokenize", "-m", model, "-p", "Hi\\n")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[0] == "     1 -> '<s>'"
    assert outcome.out.endswith(" -> '\n'\n")


def test_ids_are_a_list(minka: Minka, model: Path) -> None:
    outcome = minka("tokenize", "-m", model, "-p", "Hi", "--ids", "--show-count")
    ids, count = outcome.out.splitlines()
    assert json.loads(ids)[0] == 1
    assert count == f"Total number of tokens: {len(json.loads(ids))}"


def test_flags(minka: Minka, model: Path) -> None:
    def ids(*words: str) -> list[int]:
        found: list[int] = json.loads(minka("tokenize", "-m", model, "--ids", *words).out)
        return found

    assert ids("-p", "Hi", "--no-bos") == ids("-p", "Hi")[1:]
    assert ids("-p", "a\\nb", "--no-escape") == ids("-p", "a\\\\nb")
    assert len(ids("-p", "<|im_start|>")) == 2
    assert len(ids("-p", "<|im_start|>", "--no-parse-special")) > 2


def test_a_file_is_read_to_its_last_byte_and_stdin_goes_first(
    minka: Minka, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(*words: str) -> str:
        return minka("tokenize", "-m", model, "--ids", *words).out

    file = tmp_path / "text"
    file.write_bytes(b"Hi\n")
    assert ids("-f", str(file), "-p", "x") == ids("-p", "Hi\\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Ho")))
    assert ids("--stdin", "-f", str(file)) == ids("-p", "Ho")


def test_a_nul_ends_what_is_shown_of_a_piece(minka: Minka, model: Path) -> None:
    assert "     3 -> ''\n" in minka("tokenize", "-m", model, "-p", "\\x00").out  # the token <0x00>


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "there is no text"),
        (("-p", ""), "there is no text"),
        (("-f", "none"), "cannot read the text none: No such file"),
    ],
)
def test_bad_input_is_one_line(minka: Minka, model: Path, words: tuple[str, ...], says: str) -> None:
    outcome = minka("tokenize", "-m", model, *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"minka tokenize: {says}")
    assert outcome.out == ""
