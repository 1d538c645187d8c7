"""What Linux's /proc says about a process and the machine."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB. Raises OSError when it is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} has no resident memory; it is ending")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads, user and system. Raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU time that all cores together have spent on anything but waiting, since the machine started."""
    user, nice, system, _idle, _iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def wait_quiet(limit_s: float, window_s: float = 1.0, share: float = 0.1) -> bool:
    """Wait until the machine uses less than `share` of a core during `window_s`; False when `limit_s` passed first."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        busy, began = busy_seconds(), time.monotonic()
        time.sleep(window_s)
        if busy_seconds() - busy < share * (time.monotonic() - began):
            return True
    return False


def machine() -> dict[str, str | int]:
    """CPU model, usable cores, kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
