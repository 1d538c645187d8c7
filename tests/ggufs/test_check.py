from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from minka.ggufs.check import check, summary
from minka.ggufs.endian import convert_endian
from minka.ggufs.layout import TENSOR_TYPES, tensor_type
from minka.ggufs.read import open_gguf
from tests.ggufs.files import Raw, string, text, u32, write_model, write_raw

F32 = b"\0\0\x80\x3f"


def _problems(path: Path, *, data: bool = True) -> list[str]:
    with open_gguf(path) as source:
        return [str(problem) for problem in check(source, data=data)]


@pytest.mark.parametrize("options", [{}, {"alignment": 8}, {"alignment": 4096}, {"big": True}])
def test_a_sound_file_has_no_problem(tmp_path: Path, options: dict[str, int]) -> None:
    path = write_model(tmp_path / "m.gguf", **options)  # type: ignore[arg-type]
    assert _problems(path) == []


def _one(tmp_path: Path, *tensors: Raw, fields: tuple[bytes, ...] = ()) -> str:
    (problem,) = _problems(write_raw(tmp_path / "m.gguf", tensors, fields))
    return problem


def test_truncated_data(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-400])
    problems = _problems(model)
    assert problems
    assert all("truncated" in problem for problem in problems)
    assert problems[-1].startswith("tensor positions: data ends at byte ")


def test_duplicates(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("a", (1,), 0, F32), Raw("a", (1,), 0, F32)], [u32("k", 1), u32("k", 1)])
    assert _problems(path) == ["metadata k: the key is there 2 times", "tensor a: the name is there 2 times"]


def test_types_and_shapes(tmp_path: Path) -> None:
    assert _one(tmp_path, Raw("a", (8,), 77, b"A" * 8)) == "tensor a: type 77 is unknown"
    assert "type 4 (Q4_2) was removed" in _one(tmp_path, Raw("a", (32,), 4, b"A" * 18))
    assert "row of 33 elements is not a whole number of Q8_0 blocks of 32" in _one(
        tmp_path, Raw("a", (33,), 8, b"A" * 34)
    )
    assert "5 dimensions, ggml allows 4" in _one(tmp_path, Raw("a", (1,) * 5, 0, F32))
    assert "the name has 64 bytes" in _one(tmp_path, Raw("n" * 64, (1,), 0, F32))
    (overflow, *_) = _problems(write_raw(tmp_path / "m.gguf", [Raw("a", (2**32, 2**32), 0, F32)]))
    assert "overflows 63 bits" in overflow


def test_places(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("a", (10,), 0, b"\0" * 40), Raw("b", (1,), 0, F32, offset=36)])
    assert _problems(path) == [
        "tensor b: offset 36 is not a multiple of the alignment 32",
        "tensor b: starts 4 bytes before a ends",
    ]
    assert _one(tmp_path, Raw("a", (1,), 0, F32 * 30), Raw("b", (1,), 0, F32, offset=64)) == (
        "tensor b: is at offset 64, libllama expects 32"
    )


def test_one_long_tensor_may_overlap_several(tmp_path: Path) -> None:
    tensors = [Raw("a", (64,), 0, b"\0" * 256), Raw("b", (1,), 0, F32, offset=32), Raw("c", (1,), 0, F32, offset=64)]
    found = _problems(write_raw(tmp_path / "m.gguf", tensors))
    assert found[:2] == ["tensor b: starts 224 bytes before a ends", "tensor c: starts 192 bytes before a ends"]


def test_metadata(tmp_path: Path) -> None:
    assert _one(tmp_path, fields=(u32("general.alignment", 33),)) == (
        "metadata general.alignment: is 33, must be a power of two"
    )
    assert _one(tmp_path, fields=(text("general.alignment", "32"),)) == (
        "metadata general.alignment: is of type string, must be uint32"
    )
    assert _one(tmp_path, fields=(u32("", 1),)) == "metadata: a key is empty"
    field = string(b"k\xff") + struct.pack("<II", 4, 1)
    assert _one(tmp_path, fields=(field,)) == "metadata k\\xff: the key is not UTF-8"


def test_vocabulary(tmp_path: Path) -> None:
    def array(key: str, kind: int, body: bytes, n: int) -> bytes:
        return string(key.encode()) + struct.pack("<IIQ", 9, kind, n) + body

    fields = (
        array("tokenizer.ggml.tokens", 8, string(b"a") + string(b"b"), 2),
        array("tokenizer.ggml.scores", 6, b"\0" * 12, 3),
        array("tokenizer.ggml.token_type", 5, b"\0" * 8, 2),
        u32("tokenizer.ggml.bos_token_id", 1),
        u32("tokenizer.ggml.eos_token_id", 2),
        u32("tokenizer.ggml.padding_token_id", 0xFFFFFFFF),
    )
    assert _problems(write_raw(tmp_path / "m.gguf", fields=fields)) == [
        "metadata tokenizer.ggml.scores: has 3 entries for 2 tokens",
        "metadata tokenizer.ggml.eos_token_id: is token 2, there are 2",
    ]


def _with(data: bytearray, at: int, value: bytes) -> bytes:
    data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize("number", [n for n, row in TENSOR_TYPES.items() if row.floats])
def test_infinity_in_any_float_field_of_any_type_is_found(tmp_path: Path, number: int) -> None:
    row = tensor_type(number)
    for field in row.floats:
        bad = field.exponent.to_bytes(field.width, "little")
        data = _with(bytearray(row.size * 5), row.size * 3 + field.offset, bad)
        found = _one(
            tmp_path, Raw("ok", (row.block * 2,), number, bytes(row.size * 2)), Raw("t", (row.block * 5,), number, data)
        )
        what = "values are" if row.block == 1 else "blocks have a scale that is"
        assert found == f"tensor t: 1 of 5 {what} NaN or infinite, the first at index 3"


def test_the_scattered_scale_of_iq1_m(tmp_path: Path) -> None:
    def words(scale: int) -> bytes:
        return struct.pack("<4H", *((scale >> 4 * i & 0xF) << 12 | 0xABC for i in range(4)))

    good = bytes(48) + words(0x7BFF)
    bad = bytes(48) + words(0x7C00)
    assert "1 of 3 blocks" in _one(tmp_path, Raw("t", (768,), 29, good + good + bad))
    assert _problems(write_raw(tmp_path / "m.gguf", [Raw("t", (768,), 29, good * 3)])) == []


def test_bad_values_are_found_in_big_endian_files_too(tmp_path: Path) -> None:
    values = np.array([1, np.nan, 2, -np.inf], np.float32)
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (4,), 0, values.tobytes())])
    little = _problems(path)
    convert_endian(path, "big")
    assert _problems(path) == little == ["tensor t: 2 of 4 values are NaN or infinite, the first at index 1"]
    assert _problems(path, data=False) == []


def test_the_largest_finite_numbers_are_fine(tmp_path: Path) -> None:
    for number, kind in ((0, np.float32), (1, np.float16), (28, np.float64)):
        data = np.array([np.finfo(kind).max, np.finfo(kind).min], kind).tobytes()
        assert _problems(write_raw(tmp_path / "m.gguf", [Raw("t", (2,), number, data)])) == []


def test_the_summary_counts(model: Path) -> None:
    with open_gguf(model) as source:
        assert summary(source, ()) == f"{model}: {len(source.fields)} metadata entries, 12 tensors, no problem found"
        assert summary(source, check(source) or [None]).endswith("1 problem found")  # type: ignore[list-item]
