"""Server processes: how each side is started, when it is healthy, how it is ended, and what to show when it fails.

Knows the command lines and GET /health, nothing of loads.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
HEALTHY_WITHIN = 60.0
STOPPED_WITHIN = 10.0
TAIL_LINES = 15


class BenchmarkError(Exception):
    """The harness cannot go on; one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: its name and the command that llama-server's flags are appended to."""

    name: str
    command: tuple[str, ...]


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path) -> str:
    """The last lines that a server wrote; nothing when it was never started."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-TAIL_LINES:])


class Server:
    """A running server process; leaving the context ends it (SIGTERM, after a while SIGKILL)."""

    def __init__(self, side: Side, model: Path, flags: tuple[str, ...], log: Path) -> None:
        self.name = side.name
        self.port = free_port()
        listen = ("--host", HOST, "--port", str(self.port))
        command = (*side.command, "-m", str(model), *listen, *flags)
        with log.open("wb") as output:
            self.spawned = time.monotonic()
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            except OSError as error:
                raise BenchmarkError(f"cannot start {side.name} with {command[0]!r}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False when the process has ended."""
        return self._process.poll() is None

    def wait_healthy(self) -> None:
        """Return when GET /health says 200. Raises BenchmarkError when the process ends or takes too long."""
        deadline = self.spawned + HEALTHY_WITHIN
        while not self._healthy():
            if not self.alive:
                raise BenchmarkError(f"{self.name} ended with code {self._process.returncode} before it listened")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self.name} was not healthy within {HEALTHY_WITHIN:g} s")
            time.sleep(0.02)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
