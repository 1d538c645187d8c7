"""What the machine can give this process: cores and memory, container limits included."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> int:
    """Physical cores that this process may use, at least 1: two threads of one core only slow a decode down."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in usable}
    return max(1, min(len(siblings), _cgroup_cores() or len(siblings)))


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, None where the system does not tell."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            limit = _cgroup_memory()
            return free if limit is None else max(0, min(free, limit))
    return None


def total_memory() -> int | None:
    """Bytes of memory that this process could ever have, None where the system does not tell."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
            limit = _read("/sys/fs/cgroup/memory.max")
            return min(total, int(limit)) if limit.isdigit() else total
    return None


def _cgroup_cores() -> int | None:
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None


def _cgroup_memory() -> int | None:
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
