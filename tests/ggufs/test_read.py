from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minka.errors import ModelError
from minka.ggufs.check import check
from minka.ggufs.dump import metadata_rows, to_json
from minka.ggufs.read import open_gguf
from tests.ggufs.files import Raw, string, text, u32, write_model, write_raw


@pytest.mark.parametrize("options", [{}, {"alignment": 128}, {"big": True}])
def test_reads_what_the_gguf_package_reads(tmp_path: Path, options: dict[str, int]) -> None:
    path = write_model(tmp_path / "m.gguf", **options)  # type: ignore[arg-type]
    theirs = GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
        assert [field.key for field in ours.fields] == list(fields)
        for field in ours.fields:
            assert ours.value(field) == fields[field.key].contents(), field.key
            assert field.start == fields[field.key].offset
        assert ours.data_start == theirs.data_offset
        assert ours.order.upper() == theirs.endianess.name
        assert len(ours.tensors) == len(theirs.tensors)
        for tensor, their in zip(ours.tensors, theirs.tensors, strict=True):
            assert (tensor.name, list(tensor.dims), tensor.type.name) == (
                their.name,
                their.shape.tolist(),
                their.tensor_type.name,
            )
            assert tensor.data_start == their.data_offset
            assert b"".join(ours.chunks(tensor, 7)) == np.ascontiguousarray(their.data).tobytes()


def test_arrays_can_be_cut_short(model: Path) -> None:
    with open_gguf(model) as source:
        field = source.field("tokenizer.ggml.tokens")
        assert field is not None
        assert source.value(field, 2) == ["<unk>", "<s>"]
        assert field.type_name == "[string]"


def test_typed_getters_only_give_their_type(model: Path) -> None:
    with open_gguf(model) as source:
        assert source.get_int("llama.block_count") == 2
        assert source.get_int("general.name") is None
        assert source.get_int("tokenizer.ggml.add_bos_token") is None
        assert source.get_str("llama.block_count") is None
        assert source.get("no.such.key") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGUF", "truncated"),
        (b"GGML" + b"\0" * 60, "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 77, 0, 0), "version 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<I", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 9, 0), "array of arrays"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 4, 2**61), "values, at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 4, 20), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**61), "values, at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 20), "announces 20 strings"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63) + b"k" * 20, "bytes of a name"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 99) + b"k" * 20, "truncated"),
    ],
)
def test_a_bad_header_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def _sparse(path: Path, head: bytes, n_tensors: int = 0, n_fields: int = 0) -> Path:
    """A header of zeros: 20 GiB, and hardly a byte on the disk."""
    with path.open("wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_fields) + head)
        out.truncate(20 << 30)
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("head", "n_tensors", "n_fields", "message"),
    [
        (b"", 2**29, 0, "tensors"),
        (b"", 0, 2**29, "metadata entries"),
        (struct.pack("<Q", 2**34), 0, 1, "bytes of a name"),
        (string(b"k") + struct.pack("<IQ", 8, 2**34), 0, 1, "bytes of a string"),
        (string(b"k") + struct.pack("<IIQ", 9, 8, 2**31), 0, 1, "values"),
        (string(b"k") + struct.pack("<IIQ", 9, 0, 2**34), 0, 1, "values"),
        (string(b"t") + struct.pack("<I", 2**30), 1, 0, "dimensions of t"),
    ],
)
def test_a_header_cannot_be_a_memory_bomb(
    tmp_path: Path, head: bytes, n_tensors: int, n_fields: int, message: str
) -> None:
    with pytest.raises(ModelError, match=f"announces [0-9]+ {message}, at most [0-9]+ are read"):
        open_gguf(_sparse(tmp_path / "bomb.gguf", head, n_tensors, n_fields))


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match=r"cannot read .*pipe\.gguf: it is a pipe"):
        open_gguf(tmp_path / "pipe.gguf")


def test_names_cannot_move_the_cursor(tmp_path: Path) -> None:
    fields = [text("a\x1b[2Jb\n", "\x1b]0;title\x07")]
    path = write_raw(tmp_path / "m.gguf", [Raw("t\x9b5m\u202e", (1,), 0, bytes(4))], fields)
    with open_gguf(path) as source:
        assert source.fields[0].key == r"a\x1b[2Jb\n"
        assert source.tensors[0].name == r"t\x9b5m\u202e"
        assert source.value(source.fields[0]) == "\x1b]0;title\x07"
        assert metadata_rows(source) == [(r"a\x1b[2Jb\n", "string", r"\x1b]0;title\x07")]


def test_a_missing_file_and_a_folder_are_model_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_gguf(tmp_path / "no.gguf")
    with pytest.raises(ModelError, match="cannot read"):
        open_gguf(tmp_path)


def test_a_header_cut_anywhere_is_reported(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as source:
        last = source.tensors[-1]
        end = last.start + 8 + len(last.raw_name) + 4 + 8 * len(last.dims) + 12
    whole, cut = model.read_bytes(), tmp_path / "cut.gguf"
    for n in range(0, end, 3):
        cut.write_bytes(whole[:n])
        with pytest.raises(ModelError, match=r"truncated|empty|no GGUF"):
            open_gguf(cut)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(4, 1500), value=st.integers(0, 255))
def test_a_damaged_byte_never_gives_another_error(model: Path, tmp_path: Path, at: int, value: int) -> None:
    damaged = bytearray(model.read_bytes())
    damaged[at] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        with open_gguf(path) as source:
            check(source)
            to_json(source, arrays=True)
    except ModelError:
        pass


def test_truncated_data_is_found_when_it_is_read(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-200])
    with open_gguf(model) as source, pytest.raises(ModelError, match="truncated: tensor positions"):
        list(source.chunks(source.tensors[-1]))


def test_an_unknown_type_keeps_its_bytes_up_to_the_next_tensor(tmp_path: Path) -> None:
    tensors = [Raw("a", (8,), 77, b"A" * 40), Raw("b", (4,), 0, b"B" * 16), Raw("c", (3,), 78, b"C" * 5)]
    path = write_raw(tmp_path / "u.gguf", tensors, [u32("x", 1)])
    with open_gguf(path) as source:
        a, _, c = source.tensors
        assert (a.type.name, a.n_bytes, source.n_bytes(a)) == ("type_77", None, 64)
        assert b"".join(source.chunks(a)) == b"A" * 40 + b"\0" * 24
        assert b"".join(source.chunks(c)) == b"C" * 5 + b"\0" * 27


def test_names_that_are_no_utf8_are_shown_as_escapes(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "n.gguf", fields=[string(b"k\xff") + struct.pack("<I", 8) + string(b"v\xfe")])
    with open_gguf(path) as source:
        assert source.fields[0].key == "k\\xff"
        assert source.value(source.fields[0]) == "v\\xfe"
        assert source.fields[0].raw_key == b"k\xff"
