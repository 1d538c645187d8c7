"""A process in which grammars of strangers are compiled first, so that one that takes too long can be killed.

The grammar compiler has limits for most of what it does, but not for all: intersections of schemas and of patterns can
take forever, and it cannot be interrupted. What comes out of here alive is compiled again in our own process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref

from minka.errors import MinkaError, RequestError, UnavailableError

SECONDS = 5.0
"""The most processor time that a grammar may take."""

PATIENCE = 6
"""So many times as long it may take on a machine that has other things to do."""

MEMORY = 2 * 1024**3
"""Bytes of address space of the process, over what it has when it starts; half of that is stack."""

N_PROCESSES = 2
"""Grammars that are tried at the same time; more wait."""


class Jail:
    """Processes that are started when the first grammar comes, and again after one had to be killed."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._idle: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._room = threading.Semaphore(N_PROCESSES)
        weakref.finalize(self, _end_all, self._idle)  # whoever forgets to close it leaves no process behind

    def problem(self, source: str) -> str:
        """What is wrong with a grammar, empty if nothing is. Raises RequestError if it takes too much."""
        with self._room:
            process = self._take()
            try:
                answer = self._ask(process, source)
            except BaseException:
                _end(process)
                raise
            if answer is None:
                _end(process)
                raise RequestError("the grammar takes too much time or memory to compile")
            with self._lock:
                self._idle.append(process)
            return answer

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            _end_all(self._idle)

    def _take(self) -> subprocess.Popen[str]:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        try:
            return _start(self._seconds)
        except OSError as error:
            raise UnavailableError(f"cannot start a process to compile the grammar: {error}") from None

    def _ask(self, process: subprocess.Popen[str], source: str) -> str | None:
        """The process's answer, None if there is none in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(self._seconds * PATIENCE, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps(source) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ValueError):
            line = ""
        finally:
            watch.cancel()
        return str(json.loads(line)) if line.endswith("\n") else None


def _end_all(processes: list[subprocess.Popen[str]]) -> None:
    while processes:
        _end(processes.pop())


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _start(seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"from minka.grammar.jail import serve; serve({seconds})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        _end(process)
        raise MinkaError("the process that compiles grammars did not start")
    return process


def serve(seconds: float) -> None:
    """The process itself: a grammar a line as a JSON string, and a line for each answer.

    It ends in the middle of a grammar that takes more than `seconds` of processor time.
    """
    from minka.grammar.problems import problem_of, try_out

    _limit_memory()
    print("ready", flush=True)
    for line in sys.stdin:
        source = json.loads(line)
        _limit_time(seconds)
        answer = problem_of(source) or try_out(source)
        _limit_time(0)
        print(json.dumps(answer), flush=True)


def _limit_time(seconds: float) -> None:
    """Let the system end this process after so much processor time, 0 for never. Not every system can do that."""
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    except AttributeError:
        return


def _limit_memory() -> None:
    """Let the system refuse memory; the process dies then, which is what it is for. Not every system can do that."""
    try:
        import resource
    except ImportError:
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        return
