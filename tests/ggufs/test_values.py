from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from minka.errors import ModelError
from minka.ggufs.endian import convert_endian
from minka.ggufs.layout import TENSOR_TYPES, tensor_type
from minka.ggufs.read import open_gguf
from minka.ggufs.values import can_dequantize, float_chunks, stats, to_floats
from tests.ggufs.files import Raw, write_model, write_raw

PLAIN = {0: np.float32, 1: np.float16, 24: np.int8, 25: np.int16, 26: np.int32, 27: np.int64, 28: np.float64}


@pytest.mark.parametrize("number", [n for n, row in TENSOR_TYPES.items() if can_dequantize(row) and n < 41])
def test_chunks_are_what_the_whole_tensor_is(tmp_path: Path, number: int) -> None:
    row = tensor_type(number)
    n_blocks = 24 if row.block > 1 else 1000
    data = np.random.default_rng(number).integers(0, 60, n_blocks * row.size, np.uint8).tobytes()
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (n_blocks * row.block,), number, data)])
    with open_gguf(path) as source:
        chunks = list(float_chunks(source, source.tensors[0], row.block * 5))
    assert len(chunks) > 1
    if number in PLAIN:
        expected = np.frombuffer(data, PLAIN[number]).astype(np.float64)
    else:
        blocks = np.frombuffer(data, np.uint8).reshape(-1, row.size)
        expected = dequantize(blocks, GGMLQuantizationType(number)).reshape(-1)
    assert np.array_equal(np.concatenate(chunks), expected, equal_nan=True)


def test_every_type_that_files_hold_can_be_dequantised() -> None:
    missing = [row.name for row in TENSOR_TYPES.values() if not can_dequantize(row)]
    assert missing == ["Q8_1", "Q8_K"]
    assert GGML_QUANT_SIZES  # the list above depends on the installed package


def test_one_and_two_bit_blocks() -> None:
    one = np.float16(0.5).tobytes() + bytes([0b00000101, *[255] * 15])
    assert to_floats(tensor_type(41), one).tolist() == [0.5, -0.5, 0.5, *[-0.5] * 5, *[0.5] * 120]
    two = np.float16(2.0).tobytes() + bytes([0b11100100, *[0] * 15])
    assert to_floats(tensor_type(42), two).tolist() == [-2.0, 0.0, 2.0, 4.0, *[-2.0] * 60]


def test_a_type_without_a_dequantiser_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Q8_K data cannot"):
        to_floats(tensor_type(15), b"\0" * 292)
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (8,), 77, b"A" * 40)])
    with open_gguf(path) as source, pytest.raises(ModelError, match="unknown type 77"):
        list(float_chunks(source, source.tensors[0]))


def test_numbers_do_not_depend_on_the_byte_order(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    convert_endian(path, "big", output=tmp_path / "b.gguf")
    with open_gguf(path) as little, open_gguf(tmp_path / "b.gguf") as big:
        for a, b in zip(little.tensors, big.tensors, strict=True):
            for x, y in zip(float_chunks(little, a), float_chunks(big, b), strict=True):
                assert np.array_equal(x, y), a.name


def test_statistics_leave_out_what_is_not_finite(tmp_path: Path) -> None:
    values = np.array([1.0, -3.0, 5.0, 1.0, np.nan, np.inf], np.float32)
    path = write_raw(
        tmp_path / "m.gguf",
        [Raw("t", (6,), 0, values.tobytes()), Raw("none", (1,), 0, np.float32("nan").tobytes())],
    )
    with open_gguf(path) as source:
        found = stats(source, source.tensors[0])
        assert (found.minimum, found.maximum, found.mean, found.n_nonfinite) == (-3.0, 5.0, 1.0, 2)
        assert found.std == pytest.approx(np.std([1.0, -3.0, 5.0, 1.0]))
        nothing = stats(source, source.tensors[1])
        assert math.isnan(nothing.mean)
        assert nothing.n_nonfinite == 1
