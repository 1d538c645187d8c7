"""Other people's programs that talk to a server of ours, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clients.scripted import Player
from tests.server.site import Live

Play = Callable[[Player], Live]


def output_of(command: list[str], directory: Path, env: Mapping[str, str], seconds: int) -> str:
    """What a program prints that gets nothing of our environment but the path. It may take so many seconds."""
    made = subprocess.run(
        command,
        cwd=directory,
        env={"PATH": os.environ["PATH"], "NO_PROXY": "*", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert made.returncode == 0, f"{made.stdout[-3000:]}\n{made.stderr[-3000:]}"
    return made.stdout
