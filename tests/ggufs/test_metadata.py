from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from minka.errors import ModelError, UsageError
from minka.ggufs.layout import ValueType
from minka.ggufs.metadata import describe, parse_setting, rewrite, set_value
from minka.ggufs.read import open_gguf
from minka.ggufs.write import NewValue
from tests.ggufs.files import Raw, u32, write_model, write_raw


@pytest.mark.parametrize(
    ("key", "words", "value"),
    [
        ("x.u8", "255", 255),
        ("x.i8", "-128", -128),
        ("x.u16", "0xffff", 65535),
        ("x.i16", "-1", -1),
        ("llama.context_length", "4096", 4096),
        ("x.i32", "-7", -7),
        ("x.u64", str(2**64 - 1), 2**64 - 1),
        ("x.i64", str(-(2**63)), -(2**63)),
        ("x.f32", "0.5", 0.5),
        ("x.f64", "1e300", 1e300),
        ("tokenizer.ggml.add_bos_token", "false", False),
    ],
)
@pytest.mark.parametrize("big", [False, True])
def test_setting_in_place_changes_the_value_and_no_other_byte(
    tmp_path: Path, key: str, words: str, value: object, big: bool
) -> None:
    path = write_model(tmp_path / "m.gguf", big=big)
    before = path.read_bytes()
    change = set_value(path, key, words)
    after = path.read_bytes()
    assert GGUFReader(path).fields[key].contents() == value
    differing = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert differing
    assert change.offset <= differing[0] <= differing[-1] < change.offset + change.type.size


def test_a_dry_run_changes_nothing(model: Path) -> None:
    before = model.read_bytes()
    change = set_value(model, "x.u8", "1", dry_run=True)
    assert (change.old, change.new) == (200, 1)
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "words", "message"),
    [
        ("no.key", "1", "has no key no.key"),
        ("general.name", "x", "is a string"),
        ("x.bools", "1", "is an array"),
        ("x.u8", "256", "does not fit the type uint8"),
        ("x.u8", "one", "'one' is no uint8"),
        ("x.i8", "-129", "does not fit"),
        ("x.f32", "1e300", "does not fit the type float32"),
        ("tokenizer.ggml.add_bos_token", "perhaps", "is no bool"),
    ],
)
def test_what_cannot_be_set_in_place(model: Path, key: str, words: str, message: str) -> None:
    before = model.read_bytes()
    with pytest.raises(UsageError, match=message):
        set_value(model, key, words)
    assert model.read_bytes() == before


def test_the_alignment_cannot_be_set_in_place(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", alignment=64)
    with pytest.raises(UsageError, match="where all tensors lie"):
        set_value(path, "general.alignment", "32")


def _rewritten(path: Path, out: Path, *settings: str, remove: tuple[str, ...] = ()) -> GGUFReader:
    edits: dict[str, NewValue | None] = {**dict.fromkeys(remove), **dict(map(parse_setting, settings))}
    with open_gguf(path) as source:
        rewrite(source, out, edits)
    return GGUFReader(out)


def _assert_same_tensors(path: Path, copy: GGUFReader) -> None:
    original = GGUFReader(path)
    assert [tensor.name for tensor in original.tensors] == [tensor.name for tensor in copy.tensors]
    for a, b in zip(original.tensors, copy.tensors, strict=True):
        assert a.tensor_type == b.tensor_type
        assert np.array_equal(a.data, b.data), a.name
        assert b.data_offset % copy.alignment == 0


@pytest.mark.parametrize("big", [False, True])
def test_a_copy_has_the_edits_and_everything_else_as_it_was(tmp_path: Path, big: bool) -> None:
    path = write_model(tmp_path / "m.gguf", big=big)
    copy = _rewritten(
        path,
        tmp_path / "out.gguf",
        "general.name=str:A much longer name: with = and :",
        "x.new=[f32]:[1, 2.5]",
        "x.words=[str]:[\"a\", \"\"]",
        "x.u8=i64:-1",
        remove=("x.bools",),
    )  # fmt: skip
    before = [name for name in GGUFReader(path).fields if not name.startswith("GGUF.")]
    after = [name for name in copy.fields if not name.startswith("GGUF.")]
    assert after == [name for name in before if name != "x.bools"] + ["x.new", "x.words"]
    assert copy.fields["general.name"].contents() == "A much longer name: with = and :"
    assert copy.fields["x.new"].contents() == [1.0, 2.5]
    assert copy.fields["x.words"].contents() == ["a", ""]
    assert (copy.fields["x.u8"].contents(), copy.fields["x.u8"].types[0].name) == (-1, "INT64")
    assert copy.fields["x.u64"].contents() == 2**63 + 1
    _assert_same_tensors(path, copy)


def test_undoing_an_edit_gives_the_same_bytes_again(model: Path, tmp_path: Path) -> None:
    _rewritten(model, tmp_path / "1.gguf", "x.u8=u8:7")
    _rewritten(tmp_path / "1.gguf", tmp_path / "2.gguf", "x.u8=u8:200")
    assert (tmp_path / "2.gguf").read_bytes() == model.read_bytes()


@pytest.mark.parametrize(("before", "after"), [(None, 256), (256, 8), (64, None)])
def test_a_new_alignment_lays_the_tensors_out_anew(tmp_path: Path, before: int | None, after: int | None) -> None:
    path = write_model(tmp_path / "m.gguf", alignment=before)
    settings = (f"general.alignment=u32:{after}",) if after else ()
    copy = _rewritten(path, tmp_path / "o.gguf", *settings, remove=() if after else ("general.alignment",))
    assert copy.alignment == (after or 32)
    _assert_same_tensors(path, copy)


@pytest.mark.parametrize("setting", ["general.alignment=u32:33", "general.alignment=u32:0", "general.alignment=i32:32"])
def test_an_alignment_must_be_a_power_of_two(model: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="power of two"):
        _rewritten(model, tmp_path / "o.gguf", setting)
    assert not (tmp_path / "o.gguf").exists()


def test_tensors_of_unknown_types_are_carried_over(tmp_path: Path) -> None:
    tensors = [Raw("a", (8,), 77, b"A" * 40), Raw("b", (4,), 0, b"B" * 16)]
    path = write_raw(tmp_path / "u.gguf", tensors, [u32("x", 1)])
    with open_gguf(path) as source:
        rewrite(source, tmp_path / "o.gguf", {"x": NewValue(ValueType.STRING, "longer" * 20)})
    with open_gguf(tmp_path / "o.gguf") as copy:
        assert [(tensor.name, tensor.type_id, tensor.offset) for tensor in copy.tensors] == [("a", 77, 0), ("b", 0, 64)]
        assert b"".join(copy.chunks(copy.tensors[0])).rstrip(b"\0") == b"A" * 40
        assert b"".join(copy.chunks(copy.tensors[1])) == b"B" * 16


def test_a_truncated_source_is_refused_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        _rewritten(model, tmp_path / "o.gguf", "x.u8=u8:1")
    assert list(tmp_path.iterdir()) == [model]


def test_the_input_is_not_overwritten_unless_forced(model: Path) -> None:
    before = model.read_bytes()
    with open_gguf(model) as source:
        with pytest.raises(UsageError, match="is the input"):
            rewrite(source, model, {"x.u8": NewValue(ValueType.UINT8, 1)})
        assert model.read_bytes() == before
        rewrite(source, model, {"x.u8": NewValue(ValueType.UINT8, 1)}, force=True)
    assert GGUFReader(model).fields["x.u8"].contents() == 1


def test_what_will_change_is_described(model: Path) -> None:
    with open_gguf(model) as source:
        lines = describe(
            source, {"x.u8": None, "x.f32": NewValue(ValueType.FLOAT32, 2.0), **dict([parse_setting("n=str:v")])}
        )
        assert lines == ("removed x.u8 (was 200)", "changed x.f32: 0.10000000149011612 -> 2.0", 'added   n = "v"')
        with pytest.raises(UsageError, match="no key nope to remove"):
            describe(source, {"nope": None})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("novalue", "is not KEY=TYPE:VALUE"),
        ("a=u32", "is not KEY=TYPE:VALUE"),
        ("=u32:1", "is not KEY=TYPE:VALUE"),
        ("a=int128:1", "unknown type 'int128'"),
        ("a=array:1", "unknown type 'array'"),
        ("a=u8:x", "is no uint8"),
        ("a=[u8]:1,2", "is no JSON list"),
        ("a=[u8]:{}", "is no JSON list"),
    ],
)
def test_a_setting_that_cannot_be_read(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_setting(words)


def test_array_elements_are_checked(model: Path, tmp_path: Path) -> None:
    for setting, message in (
        ("a=[u8]:[1,300]", "does not fit"),
        ("a=[str]:[1]", "no string"),
        ("a=[bool]:[1]", "no bool"),
    ):
        with pytest.raises(UsageError, match=message):
            _rewritten(model, tmp_path / "o.gguf", setting)


def test_an_edited_key_that_is_there_twice_is_written_once(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", fields=[u32("k", 1), u32("k", 2)])
    with open_gguf(path) as source:
        rewrite(source, tmp_path / "o.gguf", {"k": NewValue(ValueType.UINT32, 3)})
    assert GGUFReader(tmp_path / "o.gguf").fields["k"].contents() == 3
    assert struct.unpack_from("<Q", (tmp_path / "o.gguf").read_bytes(), 16) == (1,)


@pytest.mark.parametrize("setting", ["x.y=str:\udcff", "x.\udcff=u32:1", 'x.y=[str]:["\\ud800"]'])
def test_text_without_a_form_in_utf8_is_refused(model: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="is no text"):
        _rewritten(model, tmp_path / "copy.gguf", setting)
    assert not (tmp_path / "copy.gguf").exists()
