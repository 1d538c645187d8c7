"""What tests of the terminal commands share: tiny models, the command line in this process, and an oracle.

The oracle is the engine itself, asked without the code of the commands.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from minka import cli
from minka.chat.messages import Message
from minka.chat.prompt import prompt_tokens
from minka.engine.engine import EngineConfig
from minka.params import ChatParams, ContextParams, GenerationParams, ModelParams, SamplingParams
from minka.runtime import Runtime, Settings, load
from minka.types import Finished, Job, Token
from tests import tiny


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did: its exit code and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


def environment(state: Path) -> dict[str, str]:
    """The environment of a command: none of the user's settings, its own folder for state."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "MINKA_", "NO_COLOR"))}
    # Without an answer from a real terminal, prompt_toolkit would wait for the place of the cursor.
    return kept | {"XDG_STATE_HOME": str(state), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


class Desk:
    """Runs commands with a tiny model; `endless` has a context that no test fills."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch, runtime: Runtime
    ) -> None:
        self.folder = folder
        self._capture, self._patch, self._runtime = capture, patch, runtime

    @property
    def model(self) -> str:
        return self._runtime.served.model.path

    @cached_property
    def endless(self) -> str:
        return str(tiny.write_llama(self.folder / "endless.gguf", n_ctx_train=65536))

    def run(self, *args: str, stdin: bytes = b"") -> Result:
        """A command in this process; `-m` comes with it."""
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        code = cli.main([args[0], "-m", self.model, "--temp", "0", *args[1:]])
        out, err = self._capture.readouterr()
        return Result(code, out, err.decode())

    def chat(self, *messages: Message, n: int = 16) -> str:
        """The oracle's greedy answer to some messages."""
        return self.complete(self._runtime.served.template.render(messages), n)

    def complete(self, prompt: str, n: int = 16) -> str:
        """The oracle's greedy continuation of a text."""
        tokens = prompt_tokens(prompt, self._runtime.served.tokenizer)
        job = Job("oracle", tuple(tokens), SamplingParams(temperature=0), n_predict=n)
        events = self._runtime.engine.stream(job)
        return "".join(event.text for event in events if isinstance(event, Token | Finished))


def user(*texts: str) -> Sequence[Message]:
    """Messages that alternate between the user and the assistant."""
    return [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    path = tiny.write_llama(tmp_path_factory.mktemp("desk") / "tiny.gguf")
    settings = Settings(
        ModelParams(model=str(path)),
        ContextParams(parallel=1),
        SamplingParams(),
        GenerationParams(),
        ChatParams(),
        EngineConfig(),
    )
    with closing(load(settings)) as runtime:
        yield runtime


@pytest.fixture
def desk(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, oracle: Runtime
) -> Iterator[Desk]:
    for name in set(os.environ) - set(environment(tmp_path)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    root, minka, llama = (logging.getLogger(name) for name in ("", "minka", "minka.llama"))
    handlers, levels = list(root.handlers), [logger.level for logger in (root, minka, llama)]
    yield Desk(tmp_path, capfdbinary, monkeypatch, oracle)
    # A command sets up the log of its process on streams that end with this test.
    root.handlers = handlers
    for logger, level in zip((root, minka, llama), levels, strict=True):
        logger.setLevel(level)
