from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf.scripts.gguf_dump import dump_metadata_json

from minka.ggufs.dump import (
    all_stats,
    group_of,
    groups,
    human_count,
    human_size,
    shorten,
    shown_value,
    to_json,
    to_markdown,
)
from minka.ggufs.read import open_gguf
from tests.ggufs.files import Raw, string, u32, write_model, write_raw


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("big", [False, True])
def test_the_json_is_that_of_gguf_py(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: bool, tensors: bool, big: bool
) -> None:
    path = write_model(tmp_path / "m.gguf", big=big)
    options = argparse.Namespace(model=str(path), json_array=arrays, no_tensors=not tensors)
    dump_metadata_json(GGUFReader(path), options)
    theirs = json.loads(capsys.readouterr().out)
    theirs["metadata"]["GGUF.kv_count"]["offset"] = 16  # gguf-py says 8, where the number of tensors is
    with open_gguf(path) as source:
        ours = json.loads(json.dumps(to_json(source, tensors=tensors, arrays=arrays)))
    assert ours == theirs
    assert list(ours["metadata"]) == list(theirs["metadata"])


def test_the_json_of_a_file_that_gguf_py_refuses(tmp_path: Path) -> None:
    empty = string(b"x.empty") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + (0).to_bytes(8, "little")
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (8,), 77, b"A" * 32)], [empty])
    with pytest.raises(ValueError, match="77"):
        GGUFReader(path)
    with open_gguf(path) as source:
        found = to_json(source, arrays=True)
    assert found["tensors"] == {"t": {"index": 0, "shape": [8], "type": "type_77", "offset": 24 + 31}}
    assert found["metadata"]["x.empty"]["array_types"] == []  # type: ignore[index,call-overload]


def test_statistics_are_added_where_they_can_be(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("a", (2,), 24, b"\x01\x03"), Raw("b", (8,), 77, b"A" * 32)])
    with open_gguf(path) as source:
        found = json.loads(json.dumps(to_json(source, data=all_stats(source))))
    assert found["tensors"]["a"]["data"] == {"min": 1.0, "max": 3.0, "mean": 2.0, "std": 1.0, "n_nonfinite": 0}
    assert found["tensors"]["b"]["data"] is None


def test_values_are_shown_on_one_short_line(model: Path) -> None:
    with open_gguf(model) as source:
        shown = {field.key: shown_value(source, field) for field in source.fields}
    assert shown["x.f32"] == "0.1"
    assert shown["x.longs"] == "[1, 1099511627776] (2)"
    assert shown["tokenizer.ggml.tokens"] == "['<unk>', '<s>', '</s>', 'a', 'b', 'c', ...] (8)"
    assert shorten("a\nb\\" + "c" * 99, 10) == "a\\nb\\\\c..."


def test_layers_are_grouped() -> None:
    names = ("blk.12.attn_q.weight", "enc.blk.3.ffn.weight", "token_embd.weight", "blk.x", "v.blk.0.ln.bias")
    assert [group_of(name) for name in names] == ["blk.12", "enc.blk.3", "token_embd", "blk", "v.blk.0"]


def test_groups_keep_their_order(model: Path) -> None:
    with open_gguf(model) as source:
        found = groups(source.tensors)
    assert [(group.name, len(group.tensors)) for group in found] == [
        ("token_embd", 1),
        ("blk.0", 5),
        ("blk.1", 5),
        ("positions", 1),
    ]
    assert found[0].n_elements == 512


@pytest.mark.parametrize(
    ("n", "size", "count"),
    [
        (0, "0 B", "0"),
        (999, "999 B", "999"),
        (1024, "1 KiB", "1.02 K"),
        (1_030_000, "1006 KiB", "1.03 M"),
        (3 * 2**30, "3 GiB", "3.22 B"),
        (2**41, "2 TiB", "2.2 T"),
    ],
)
def test_human_numbers(n: int, size: str, count: str) -> None:
    assert (human_size(n), human_count(n)) == (size, count)


def test_markdown_escapes_what_would_break_a_table(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("blk.0.a|b", (1,), 0, b"\0" * 4)], [u32("k|k", 1)])
    with open_gguf(path) as source:
        page = to_markdown(source)
        assert "## blk.0" not in to_markdown(source, tensors=False)
    assert "| k\\|k | uint32 | 1 |" in page
    assert "| 0 | blk.0.a\\|b | 1 | F32 | 4 B |" in page
