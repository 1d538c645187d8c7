"""The pages of docs/: their commands and programs, run as they stand (but for the address) on the demo model.

What is shown must come, but for numbers, ids, the model's words, and what `...` leaves out.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.engine.engine import EngineConfig
from minka.engine.memory import MemoryConfig
from minka.params import (
    ChatParams,
    ContextParams,
    EmbeddingParams,
    GenerationParams,
    ModelParams,
    SamplingParams,
    ServerParams,
)
from minka.runtime import Settings, load
from tests.server.site import Live

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("anthropic", "cache", "completions", "responses", "streams", "structured-output", "tool-calls")
"""Pages whose console blocks ask a server that was started without further files. `NEEDS` is what they cannot have."""
NEEDS = ("minka ", "claude ", "export ", "lm_eval ", "/infill", "/predict")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WORDS = re.compile(r'"(content|text)":"(?:[^"\\]|\\.)*"')
ID = re.compile(r"\b(resp|msg|call|chatcmpl|cmpl)[-_]\w{8,}|\b[0-9a-f]{32}\b")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server as `minka serve` makes it, with a place for slots and the disk tier."""
    folder = tmp_path_factory.mktemp("docs")
    settings = Settings(
        model=ModelParams(model=str(demo_model)),
        context=ContextParams(n_ctx=2048, parallel=4, kv_unified=True, warmup=False),
        sampling=SamplingParams(),
        generation=GenerationParams(),
        chat=ChatParams(),
        engine=EngineConfig(memory=MemoryConfig(limit=1 << 28), disk=folder / "disk"),
        embedding=EmbeddingParams(),
    )
    with Live(load(settings), ServerParams(slot_save_path=str(folder))) as live:
        yield live.url


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block with the output that is shown; one goes on in quotes and after a backslash."""
    lines, command = block.splitlines(), ""
    shown: list[str] = []
    for line in lines:
        if open_ended(command):
            command += "\n" + line
        elif line.startswith("$ "):
            if command:
                yield command, "\n".join(shown)
            command, shown = line[2:], []
        else:
            shown.append(line)
    if command:
        yield command, "\n".join(shown)


def open_ended(command: str) -> bool:
    quoted = re.sub(r'"[^"\']*"', "", command) if command.count("'") % 2 == 0 else command
    return quoted.count("'") % 2 == 1 or command.endswith("\\")


def plain(text: str) -> str:
    """What two runs have in common."""
    text = WORDS.sub(r'"\1":"words"', re.sub(r"(?<=[:,{}\]\[])\s+|\s+(?=[:,}{\]])", "", text))
    return re.sub(r"\s", "", NUMBER.sub("0", ID.sub(r"\1id", text)))


def is_in(shown: str, real: str) -> bool:
    """Whether the pieces between `...` come in this order, the first one at the beginning."""
    first, *rest = map(plain, shown.split("..."))
    text = plain(real)
    if not text.startswith(first):
        return False
    place = len(first)
    for piece in rest:
        place = text.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return True


@pytest.mark.model
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page(name: str, server: str) -> None:
    """Variables live on from one command of a page to the next."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    found = [
        (command, shown)
        for language, block in BLOCK.findall(page(name))
        if language == "console"
        for command, shown in commands(block)
        if not any(need in command for need in NEEDS)
    ]
    assert found
    said = ""
    for command, shown in found:
        if re.match(r"\w+='", command):
            said += command + "\n"
            continue
        if "jq" in command and shutil.which("jq") is None:
            continue
        text = said + command.replace("localhost:8080", server.removeprefix("http://"))
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert is_in(shown, done.stdout), f"{command}\nshown: {plain(shown)}\nreal:  {plain(done.stdout)}"


@pytest.mark.model
@pytest.mark.parametrize("name", ["responses", "embeddings"])
def test_the_program_of_a_page(name: str, server: str) -> None:
    blocks = BLOCK.findall(page(name))
    at = next(index for index, (language, _) in enumerate(blocks) if language == "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(re.sub(r"http://[\w.]+:8080", server, blocks[at][1]), f"{name}.md", "exec"), {"__name__": "docs"})
    last = blocks[at + 1][1].splitlines()[-1]
    assert plain(printed.getvalue().splitlines()[-1]) == plain(last)
