from __future__ import annotations

from pathlib import Path

import pytest

from minka.native.build import amx_is_broken

AMX, PLAIN = "AVX512 = 1 | AMX_INT8 = 1 | OPENMP = 1 | ", "AVX512 = 1 | OPENMP = 1 | "
REPAIRED = b"-O3 -fno-tree-dse -fno-dse -frecord-gcc-switches"


@pytest.mark.parametrize(
    ("info", "compilers", "flags", "broken"),
    [
        (AMX, [b"GCC: (Debian 12.2.0-14) 12.2.0"], b"", True),
        (AMX, [b"GCC: (GNU) 13.1.1 20230614"], b"-fno-dse", True),
        (AMX, [b"GCC: (Debian 12.2.0-14) 12.2.0"], REPAIRED, False),
        (AMX, [b"GCC: (Debian 14.2.0-19) 14.2.0"], b"", False),
        (AMX, [b"GCC: (Debian 14.2.0-19) 14.2.0", b"GCC: (Debian 12.2.0) 12.2.0"], b"", True),
        (AMX, [b"clang version 17.0.6"], b"", False),
        (PLAIN, [b"GCC: (Debian 12.2.0-14) 12.2.0"], b"", False),
    ],
)
def test_which_builds_die_of_amx(tmp_path: Path, info: str, compilers: list[bytes], flags: bytes, broken: bool) -> None:
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"\x7fELF\0" + b"\0".join([*compilers, flags]) + b"\0")
    assert amx_is_broken(info, library) is broken


def test_a_library_that_is_not_where_it_should_be(tmp_path: Path) -> None:
    assert not amx_is_broken(AMX, tmp_path / "missing.so")
