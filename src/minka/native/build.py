"""Faults of how this libllama was compiled that would kill the process, found before they do.

GCC before 14 drops most of the stores that AMX tile configuration reads (its `_tile_loadconfig` names 8 of 64 bytes as
input), so a libllama it built with -march=native on a processor with AMX dies of SIGILL at the first larger matrix
product. Switching two optimisations off builds a good one: see `make` and the README.
"""

from __future__ import annotations

import re
from pathlib import Path

FIRST_GOOD_GCC = 14
REPAIR_FLAGS = (b"-fno-tree-dse", b"-fno-dse")
"""Compiler flags that keep the stores; recorded in the library by -frecord-gcc-switches."""


def amx_is_broken(system_info: str, library: Path) -> bool:
    """Whether libllama would use AMX and its compiler got AMX wrong.

    `system_info` is libllama's own list of features, `library` a file of the library that computes on the CPU.
    """
    if "AMX_INT8 = 1" not in system_info or not library.is_file():
        return False
    code = library.read_bytes()
    versions = [int(major) for major in re.findall(rb"GCC: \([^)]*\) (\d+)\.", code)]
    return min(versions, default=FIRST_GOOD_GCC) < FIRST_GOOD_GCC and not all(flag in code for flag in REPAIR_FLAGS)
