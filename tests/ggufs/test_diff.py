from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from minka.ggufs.diff import Diff, compare, to_json
from minka.ggufs.endian import convert_endian
from minka.ggufs.metadata import parse_setting, rewrite
from minka.ggufs.read import open_gguf
from tests.ggufs.files import Raw, text, u32, write_model, write_raw


def _compare(left: Path, right: Path, *, data: bool = False) -> Diff:
    with open_gguf(left) as a, open_gguf(right) as b:
        return compare(a, b, data=data)


def test_a_file_is_the_same_as_itself(model: Path) -> None:
    diff = _compare(model, model, data=True)
    assert diff.same
    assert diff.n_same_data == 12


def test_keys_that_came_went_or_changed(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as source:
        edits = dict([parse_setting("x.u8=i32:200"), parse_setting("x.new=f32:nan"), parse_setting("x.i8=i8:4")])
        rewrite(source, tmp_path / "o.gguf", {**edits, "x.bools": None})
    diff = _compare(model, tmp_path / "o.gguf")
    found = {key.key: (key.left, key.left_type, key.right, key.right_type) for key in diff.keys}
    assert found.pop("x.new")[3] == "float32"
    assert found == {
        "x.u8": (200, "uint8", 200, "int32"),
        "x.i8": (-5, "int8", 4, "int8"),
        "x.bools": ([True, False, True], "[bool]", None, None),
    }
    assert _compare(tmp_path / "o.gguf", tmp_path / "o.gguf").same  # its NaN is no difference


def _floats(path: Path, **tensors: list[float]) -> Path:
    raws = [Raw(name, (len(v),), 0, np.array(v, np.float32).tobytes()) for name, v in tensors.items()]
    return write_raw(path, raws, [text("general.architecture", "x")])


def test_tensors_that_came_went_or_changed(tmp_path: Path) -> None:
    left = _floats(tmp_path / "l.gguf", same=[1.0], gone=[1.0], shape=[1.0, 2.0], kind=[1.0, 2.0])
    right = write_raw(
        tmp_path / "r.gguf",
        [
            Raw("new", (1,), 0, b"\0" * 4),
            Raw("kind", (2,), 1, np.array([1.0, 2.5], np.float16).tobytes()),
            Raw("shape", (3,), 0, b"\0" * 12),
            Raw("same", (1,), 0, np.float32(1.0).tobytes()),
        ],
        [text("general.architecture", "x")],
    )
    diff = _compare(left, right, data=True)
    sides = {t.name: (t.left and t.left.type.name, t.right and t.right.type.name) for t in diff.tensors}
    assert sides == {"gone": ("F32", None), "shape": ("F32", "F32"), "kind": ("F32", "F16"), "new": (None, "F32")}
    assert [(item.name, item.max_abs) for item in diff.data] == [("kind", 0.5)]
    assert diff.n_same_data == 1


def test_how_far_values_are_apart(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    left = _floats(tmp_path / "l.gguf", a=[1.0, 2.0, 3.0, 4.0], b=[nan, inf, 1.0], c=[nan], d=[inf], e=[nan, 1.0])
    right = _floats(tmp_path / "r.gguf", a=[1.0, 2.0, 3.0, 2.0], b=[nan, inf, 1.5], c=[0.0], d=[-inf], e=[nan, 1.0])
    data = {item.name: (item.max_abs, item.rms) for item in _compare(left, right, data=True).data}
    assert data["a"] == (2.0, 1.0)
    assert data["b"][0] == 0.5
    assert data["b"][1] == pytest.approx(0.5 / math.sqrt(3))
    assert data["c"] == data["d"] == (inf, inf)
    assert "e" not in data


def test_a_model_and_its_big_endian_form_have_equal_values(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    convert_endian(path, "big", output=tmp_path / "b.gguf")
    diff = _compare(path, tmp_path / "b.gguf", data=True)
    assert not diff.keys
    assert not diff.tensors
    assert {item.max_abs for item in diff.data} == {0.0}


def test_types_that_cannot_be_compared_say_so(tmp_path: Path) -> None:
    left = write_raw(tmp_path / "l.gguf", [Raw("t", (8,), 77, b"A" * 40)], [u32("x", 1)])
    right = write_raw(tmp_path / "r.gguf", [Raw("t", (8,), 77, b"B" * 40)], [u32("x", 1)])
    (item,) = _compare(left, right, data=True).data
    assert item.max_abs is None
    assert "type_77 data cannot" in item.note
    assert _compare(left, left, data=True).same


def test_json_has_no_number_that_json_has_not(tmp_path: Path) -> None:
    left = _floats(tmp_path / "l.gguf", a=[math.nan], b=[1.0])
    right = _floats(tmp_path / "r.gguf", a=[0.0])
    found = json.loads(json.dumps(to_json(_compare(left, right, data=True)), allow_nan=False))
    assert found["data"] == [{"name": "a", "max_abs": "inf", "rms": "inf", "note": ""}]
    assert found["tensors"] == [{"name": "b", "left": {"type": "F32", "shape": [1]}, "right": None}]
    assert not found["same"]
