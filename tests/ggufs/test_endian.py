from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.scripts.gguf_convert_endian import convert_byteorder

from minka.errors import ModelError, UsageError
from minka.ggufs.endian import convert_endian, swap_blocks
from minka.ggufs.layout import TENSOR_TYPES, tensor_type
from minka.ggufs.read import open_gguf
from tests.ggufs.files import Raw, string, text, u32, write_model, write_raw

UPSTREAM = (0, 1, 2, 8, 12, 14, 30, 39, 40)


def _blocks(number: int, n: int = 4) -> bytes:
    return np.random.default_rng(number).integers(0, 256, n * tensor_type(number).size, np.uint8).tobytes()


def _write_all(path: Path, numbers: tuple[int, ...]) -> Path:
    tensors = [Raw(f"t{n}", (4 * tensor_type(n).block,), n, _blocks(n)) for n in numbers]
    return write_raw(path, tensors, [text("general.architecture", "llama"), u32("k", 7)])


def test_the_bytes_are_those_of_gguf_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = _write_all(tmp_path / "o.gguf", UPSTREAM), _write_all(tmp_path / "t.gguf", UPSTREAM)
    monkeypatch.setattr("builtins.input", lambda _: "YES")
    convert_byteorder(GGUFReader(theirs, "r+"), argparse.Namespace(order="big", dry_run=False))
    assert convert_endian(ours, "big")
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("number", [n for n, row in TENSOR_TYPES.items() if row.words is not None])
def test_there_and_back_is_the_same(number: int) -> None:
    row, data = tensor_type(number), _blocks(number)
    swapped = swap_blocks(row, data)
    assert swap_blocks(row, swapped) == data
    assert (swapped != data) == bool(row.words)


def test_a_whole_file_there_and_back(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    assert convert_endian(model, "big", output=tmp_path / "b.gguf")
    assert model.read_bytes() == before
    with open_gguf(model) as little, open_gguf(tmp_path / "b.gguf") as big:
        assert big.order == "big"
        assert [(f.key, big.value(f)) for f in big.fields] == [(f.key, little.value(f)) for f in little.fields]
    assert convert_endian(tmp_path / "b.gguf", "little")
    assert (tmp_path / "b.gguf").read_bytes() == before


def test_q5_high_bits_are_one_word() -> None:
    block = b"\x01\x02" + b"\x0a\x0b\x0c\x0d" + bytes(16)
    assert swap_blocks(tensor_type(6), block) == b"\x02\x01" + b"\x0d\x0c\x0b\x0a" + bytes(16)


def test_a_file_of_that_order_is_left_alone(model: Path) -> None:
    before = model.stat()
    assert not convert_endian(model, "little")
    assert model.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("number", [16, 29, 77])
def test_types_that_cannot_be_converted_are_refused_before_writing(tmp_path: Path, number: int) -> None:
    data = b"\0" * 256
    path = write_raw(tmp_path / "m.gguf", [Raw("bad", (256,), number, data), Raw("b2", (256,), number, data)])
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"tensor bad \(and 1 more tensors\)"):
        convert_endian(path, "big")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_dry_run_writes_nothing_and_an_existing_copy_stays(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    assert convert_endian(model, "big", dry_run=True)
    assert model.read_bytes() == before
    (tmp_path / "o.gguf").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        convert_endian(model, "big", output=tmp_path / "o.gguf")
    assert (tmp_path / "o.gguf").read_bytes() == b"mine"


def test_names_that_are_no_utf8_keep_their_bytes(tmp_path: Path) -> None:
    field = string(b"k\xff") + (8).to_bytes(4, "little") + string(b"v\xfe")
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (1,), 0, b"\0" * 4)], [field])
    before = path.read_bytes()
    convert_endian(path, "big")
    convert_endian(path, "little")
    assert path.read_bytes() == before


def test_a_big_endian_file_of_gguf_py_becomes_little(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", big=True)
    convert_endian(path, "little")
    little = write_model(tmp_path / "l.gguf", big=True)
    a, b = GGUFReader(path), GGUFReader(little)
    assert a.endianess.name == "LITTLE"
    assert all(np.array_equal(x.data, y.data) for x, y in zip(a.tensors, b.tensors, strict=True))
