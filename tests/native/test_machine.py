from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minka.native import machine

Files = Callable[[dict[str, str]], None]
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """A machine that has only the given files, and four logical CPUs."""

    def install(there: dict[str, str]) -> None:
        monkeypatch.setattr(machine, "_read", lambda path: there.get(path, ""))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)

    return install


def test_this_machine_has_at_least_one_core_and_some_memory() -> None:
    assert 1 <= machine.physical_cores() <= (os.cpu_count() or 1)
    memory = machine.available_memory()
    assert memory is None or memory > 0


def test_two_threads_of_one_core_are_one(files: Files) -> None:
    files({SIBLINGS.format(cpu): ("0,2" if cpu % 2 == 0 else "1,3") for cpu in range(4)})
    assert machine.physical_cores() == 2


def test_without_topology_every_cpu_is_a_core(files: Files) -> None:
    files({})
    assert machine.physical_cores() == 4


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("150000 100000", 1), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_a_container_gets_the_cores_of_its_quota(files: Files, quota: str, cores: int) -> None:
    files({"/sys/fs/cgroup/cpu.max": quota})
    assert machine.physical_cores() == cores


def test_memory_is_what_is_available(files: Files) -> None:
    files({"/proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:   3000 kB\nSwapFree: 1 kB"})
    assert machine.available_memory() == 3000 * 1024


@pytest.mark.parametrize(("limit", "used", "free"), [("max", "5", 3000 * 1024), ("2000000", "500000", 1500000)])
def test_a_container_gets_the_memory_of_its_limit(files: Files, limit: str, used: str, free: int) -> None:
    there = {"/sys/fs/cgroup/memory.max": limit, "/sys/fs/cgroup/memory.current": used}
    files({"/proc/meminfo": "MemAvailable: 3000 kB", **there})
    assert machine.available_memory() == free


def test_a_container_that_is_full_has_nothing_left(files: Files) -> None:
    there = {"/sys/fs/cgroup/memory.max": "2000000", "/sys/fs/cgroup/memory.current": "2000000"}
    files({"/proc/meminfo": "MemAvailable: 3000 kB", **there})
    assert machine.available_memory() == 0


def test_a_system_that_does_not_tell(files: Files) -> None:
    files({})
    assert machine.available_memory() is None


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert machine._read(str(tmp_path / "missing")) == ""
