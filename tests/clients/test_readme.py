"""The README's examples, run as they stand (but for the address) against the demo model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.site import Live

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def block(language: str, mark: str) -> str:
    found = [text for text in blocks(language) if mark in text]
    assert len(found) == 1, f"{len(found)} {language} blocks with {mark!r}"
    return found[0]


def shape(value: object) -> object:
    """The keys of a JSON value, without its texts and numbers."""
    match value:
        case dict():
            return {key: shape(item) for key, item in value.items()}
        case list():
            return [shape(item) for item in value]
        case _:
            return type(value).__name__


def within(shown: object, real: object) -> bool:
    """Whether all that is shown is there; of long objects the README shows a part."""
    if isinstance(shown, dict) and isinstance(real, dict):
        return all(key in real and within(value, real[key]) for key, value in shown.items())
    if isinstance(shown, list) and isinstance(real, list):
        return len(shown) == len(real) and all(map(within, shown, real))
    return shown == real


def test_curl(demo_server: Live) -> None:
    command = shlex.split(block("sh", "curl").replace(ADDRESS, demo_server.url))
    done = subprocess.run([*command, "--silent", "--show-error"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer, shown = json.loads(done.stdout), json.loads(block("json", "chat.completion"))
    assert within(shape(shown), shape(answer)), f"{shape(shown)} is not in {shape(answer)}"
    for fact in ("prompt_tokens",):
        assert answer["usage"][fact] == shown["usage"][fact]
    assert answer["model"] == "test-model" or answer["model"] == shown["model"]


def test_openai_client(demo_server: Live) -> None:
    code = block("python", "from openai import OpenAI").replace(ADDRESS, demo_server.url)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert len(printed.getvalue().split()) > 1


@pytest.mark.usefixtures("demo_model")
def test_in_the_own_process() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python", "from minka import LLM"), "README.md", "exec"), {"__name__": "readme"})
    assert "Paris" in printed.getvalue()


def test_the_demo_model_is_there_by_the_name_of_the_pages(demo_model: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", block("sh", "ln -s")], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "model.gguf").samefile(demo_model)


@pytest.mark.parametrize("name", ["serve", "chat", "test"])
def test_the_two_commands_are_targets(name: str) -> None:
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")
    assert f"make {name}" in block("sh", "make serve")
    assert re.search(rf"^{name}:", makefile, re.MULTILINE)
