"""Starts the process that quantizes, follows its reports, and ends it with everything that ends the wait for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from minka import errors
from minka.errors import MinkaError, NativeError, UsageError
from minka.ggufs.dump import human_size
from minka.ggufs.layout import tensor_type
from minka.ggufs.progress import Meter, Progress
from minka.tools.quantize_plan import Fallback, PlannedTensor
from minka.tools.quantize_worker import Event, Job

_FULL_DISK = "iostream error"
"""What libllama says when it cannot write."""


class Child:
    """One job, and what the process told of it."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self._job = job
        self._progress = progress
        self._meter: Meter | None = None
        self._folder = Path()
        self._done = 0
        self.tensors: list[PlannedTensor] = []
        self.fallbacks: list[Fallback] = []
        self.imatrix: tuple[int, int, list[str]] | None = None

    def run(self, target: str | None, folder: Path) -> None:
        """Do the job, writing to `target` (None in a dry run), whose final place is in `folder`.

        Raises:
            MinkaError: what the process reports, or that it died.
        """
        self._folder = folder
        job = replace(self._job, output=target or "")
        with tempfile.TemporaryFile() as remarks:
            process = _start(remarks)
            try:
                code = self._follow(process, job)
            finally:
                process.kill()  # nothing happens if it has ended
                process.wait()
            if code:
                raise NativeError(self._died(code, remarks))

    def _follow(self, process: subprocess.Popen[str], job: Job) -> int:
        if process.stdin is None or process.stdout is None:
            raise NativeError("the process that quantizes has no pipes")
        with process.stdin as requests, process.stdout as events:
            try:
                requests.write(job.to_json())
                requests.close()
            except BrokenPipeError:
                pass  # it died at once: its end says why
            for line in events:
                self._on_event(json.loads(line))
        return process.wait()

    def _on_event(self, event: Event) -> None:
        if "error" in event:
            raise self._error(*event["error"])
        if "imatrix" in event:
            self.imatrix = event["imatrix"]
        if "fallbacks" in event:
            self.fallbacks = [Fallback(*one) for one in event["fallbacks"]]
        if "plan" in event:
            self._on_plan(event)
        if "done" in event and self._meter:
            through, self._done = self.tensors[self._done : event["done"]], event["done"]
            self._meter.add(sum(tensor.before for tensor in through))

    def _on_plan(self, event: Event) -> None:
        self.tensors = [
            PlannedTensor(name, tuple(dims), tensor_type(source), tensor_type(target))
            for name, dims, source, target in event["plan"]
        ]
        if self._job.dry_run:
            return
        need, free = sum(tensor.after for tensor in self.tensors), shutil.disk_usage(self._folder).free
        if need > free:
            raise MinkaError(f"{self._folder} has {human_size(free)} left, and the result needs {human_size(need)}")
        self._meter = Meter(sum(tensor.before for tensor in self.tensors), self._progress)

    def _error(self, name: str, message: str) -> MinkaError:
        kind = getattr(errors, name, NativeError)
        if kind is not NativeError:
            return kind(message)
        if _FULL_DISK in message:
            return MinkaError(f"cannot write to {self._folder}: the disk is full, or failing")
        if self._job.tensor_types and ("regular expression" in message or "regex" in message):
            return UsageError(f"a pattern of --tensor-type cannot be used: {message}")
        return NativeError(f"cannot quantize {self._job.source}: {message}")

    def _died(self, code: int, remarks: IO[bytes]) -> str:
        remarks.seek(0)
        lines = [line for line in remarks.read().decode("utf-8", "replace").splitlines() if line.strip()]
        at = f" at {self.tensors[self._done].name}" if self._done < len(self.tensors) else ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the process that quantizes {self._job.source} {how}{at}" + (f": {lines[-1].strip()}" if lines else "")


def _start(remarks: IO[bytes]) -> subprocess.Popen[str]:
    # The child finds modules where this process does; -P keeps the current folder from being searched before them.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, "-P", "-m", "minka.tools.quantize_worker"]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=remarks, env=env, text=True, encoding="utf-8"
        )
    except OSError as error:
        raise NativeError(f"cannot start the process that quantizes: {error.strerror or error}") from error
