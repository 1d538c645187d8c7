"""`minka serve` as a process: how it starts, how it ends, and what it says if it cannot start."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from minka import cli
from tests.fakes import WAIT
from tests.server.site import Connection, error_of, events
from tests.tiny import write_llama
from tests.tiny_fixtures import TinyModels

TIMEOUT = 3 * WAIT


def environment() -> dict[str, str]:
    """Ours, without settings for a server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "MINKA_", "HF_"))}


def command(*arguments: str) -> Sequence[str]:
    return (sys.executable, "-m", "minka", "serve", *arguments)


class Process:
    """A server that listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self._process = process

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code; nothing may be left to say on stderr that looks like a failure."""
        _, said = self._process.communicate(timeout=TIMEOUT)
        assert "Traceback" not in said, said
        return self._process.returncode


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[Process]:
    """A server process with a model that is loaded."""
    line = command("-m", str(model), "--port", "0", "--threads", "1", *arguments)
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment()
    ) as made:
        try:
            assert made.stderr is not None
            said = []
            for line_said in made.stderr:
                said.append(line_said)
                if found := re.search(r"listening on (http://\S+)", line_said):
                    break
            else:
                raise AssertionError("".join(said))
            yield Process(made, found[1])
        finally:
            made.kill()


def wait_until_open(port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.02)
        else:
            return


def wait_until_refused(url: str) -> None:
    """Wait until a server takes no more connections."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            httpx.get(f"{url}/health", timeout=WAIT)
        except httpx.TransportError:
            return
        assert time.monotonic() < deadline, "it goes on to take connections"


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose texts go on for a long time."""
    return write_llama(tmp_path_factory.mktemp("long") / "long.gguf", n_ctx_train=1 << 16)


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_first_signal_lets_answers_end(tiny_models: TinyModels) -> None:
    with serving(tiny_models("llama")) as server, Connection(server.url) as client:
        frames = events(client.post("/completion", prompt="go", n_predict=400, stream=True))
        next(frames)
        server.signal(signal.SIGTERM)
        rest = list(frames)
        assert '"stop":true' in rest[-1]
        assert '"tokens_predicted":400' in rest[-1]
        assert server.wait() == 0


def test_a_second_signal_does_not(long_model: Path) -> None:
    with serving(long_model, "-c", str(1 << 16), "-np", "1") as server, Connection(server.url) as client:
        frames = events(client.post("/completion", prompt="go", stream=True))
        next(frames)
        server.signal(signal.SIGTERM)
        wait_until_refused(server.url)
        next(frames)  # this one is still served
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        assert '"stop":true' not in "".join(frames)


def test_draining_ends_by_itself(long_model: Path) -> None:
    line = ("-c", str(1 << 16), "-np", "1", "--drain-timeout", "0")
    with serving(long_model, *line) as server, Connection(server.url) as client:
        frames = events(client.post("/completion", prompt="go", stream=True))
        next(frames)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert '"stop":true' not in "".join(frames)


# -- starting ----------------------------------------------------------------------------------------------------------


SLOW_START = """
import sys
import minka.runtime
from minka.cli import main
from minka.errors import ModelError

def load(settings, progress=None):
    sys.stdin.read()
    raise ModelError("no such luck")

minka.runtime.load = load
sys.exit(main(["serve", "--port", sys.argv[1]]))
"""
"""A server whose model loads until stdin ends, and then is no model."""


def test_it_answers_while_the_model_loads_and_ends_if_that_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = (sys.executable, "-c", SLOW_START, str(port))
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stderr=pipe, text=True, env=environment()) as server:
        try:
            wait_until_open(port)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                for path in ("/health", "/v1/models"):
                    assert error_of(client.get(path), 503)["message"] == "Loading model"
                assert "Minka" in client.get("/").text
            _, said = server.communicate(timeout=TIMEOUT)
        finally:
            server.kill()
    assert server.returncode == 1
    assert said.splitlines()[-1] == "minka serve: no such luck"
    assert "Traceback" not in said


def failure(*arguments: str) -> tuple[int, str]:
    """Exit code of a server that cannot start, and what it says, which must be one line."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=TIMEOUT, env=environment())
    assert done.stdout == ""
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = failure("--port", str(port))
    assert code == 2
    assert said == (
        f"minka serve: cannot listen on 127.0.0.1 port {port}: Address already in use; give another --port or --host\n"
    )


@pytest.mark.parametrize("wrong", [("--parallel", "0"), ("--api-prefix", "llm"), ("--api-key-file", "no/such/file")])
def test_a_flag_that_is_wrong(tiny_models: TinyModels, wrong: Sequence[str]) -> None:
    code, said = failure("--port", "0", "-m", str(tiny_models("llama")), *wrong)
    assert code == 2
    assert said.startswith("minka serve: ")
    assert wrong[0] in said


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """What a command does to the logging of the process is undone."""
    root, ours = logging.getLogger(), logging.getLogger("minka")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    for added in set(root.handlers) - set(handlers):
        root.removeHandler(added)
        added.close()
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.usefixtures("_own_logging")
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--parallel", "many"), "--parallel"),
        (("--port", "70000"), "--port"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--ctx-size", "-5"), "--ctx-size"),
        (("--lora-scaled", "x.gguf"), "--lora-scaled"),
        (("--lora-scaled", "x.gguf:much"), "--lora-scaled"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_line_that_cannot_be_obeyed(
    arguments: Sequence[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--port", "0", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("minka serve: ")
    assert names in said


@pytest.mark.parametrize("name", ["missing", "not-gguf", "truncated"])
def test_a_model_that_cannot_be_used(tiny_models: TinyModels, tmp_path: Path, name: str) -> None:
    path = tmp_path / "missing.gguf" if name == "missing" else tiny_models(name)
    code, said = failure("--port", "0", "-m", str(path))
    assert code == 1
    assert said.startswith("minka serve: ")
    assert path.name in said


def test_a_template_that_is_broken(tiny_models: TinyModels) -> None:
    code, said = failure("--port", "0", "-m", str(tiny_models("llama")), "--chat-template", "{% if %}")
    assert code == 1
    assert "template" in said
