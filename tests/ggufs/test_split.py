from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from minka.errors import ModelError, UsageError
from minka.ggufs.merge import merge
from minka.ggufs.read import open_gguf
from minka.ggufs.split import SplitRule, canonical_dims, parse_size, plan_split, shard_paths, split
from tests.ggufs.files import Raw, text, u32, write_model, write_raw


def _split(path: Path, prefix: Path, rule: SplitRule | None = None) -> tuple[Path, ...]:
    with open_gguf(path) as source:
        return split(source, prefix, rule or SplitRule(max_tensors=3))


def test_all_metadata_goes_into_the_first_shard(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    assert [path.name for path in paths] == [f"s-{i:05d}-of-00004.gguf" for i in range(1, 5)]
    original, readers = GGUFReader(model), [GGUFReader(path) for path in paths]
    first = [name for name in readers[0].fields if not name.startswith("GGUF.")]
    keys = ["split.no", "split.tensors.count", "split.count"]
    assert first == [name for name in original.fields if not name.startswith("GGUF.")] + keys
    for i, reader in enumerate(readers):
        if i:
            assert [name for name in reader.fields if not name.startswith("GGUF.")] == keys
        assert [reader.fields[key].contents() for key in keys] == [i, len(original.tensors), 4]
        assert [reader.fields[key].types[0].name for key in keys] == ["UINT16", "INT32", "UINT16"]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    assert [tensor.name for tensor in tensors] == [tensor.name for tensor in original.tensors]
    assert all(np.array_equal(a.data, b.data) for a, b in zip(tensors, original.tensors, strict=True))


@pytest.mark.parametrize("alignment", [None, 128])
@pytest.mark.parametrize(
    "rule",
    [
        SplitRule(max_tensors=1),
        SplitRule(max_tensors=4, no_tensor_first=True),
        SplitRule(max_bytes=500),
        SplitRule(max_bytes=1, no_tensor_first=True),
        SplitRule(),
    ],
)
def test_merging_a_split_gives_back_the_original(tmp_path: Path, alignment: int | None, rule: SplitRule) -> None:
    path = write_model(tmp_path / "m.gguf", alignment=alignment)
    paths = _split(path, tmp_path / "s", rule)
    merge(paths[0], tmp_path / "clean.gguf", drop_split_keys=True)
    assert (tmp_path / "clean.gguf").read_bytes() == path.read_bytes()

    merge(paths[0], tmp_path / "merged.gguf")
    assert GGUFReader(tmp_path / "merged.gguf").fields["split.count"].contents() == 0
    again = _split(tmp_path / "merged.gguf", tmp_path / "t", rule)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    merge(again[0], tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "merged.gguf").read_bytes()


def write_golden(path: Path) -> Path:
    """A file whose bytes depend on nothing but this function."""
    tensors = [
        Raw("token_embd.weight", (4, 8), 0, bytes(range(128))),
        Raw("blk.0.odd.weight", (5, 1), 0, bytes(range(20))),
        Raw("blk.0.attn_q.weight", (32, 2, 1, 1), 8, bytes(range(68))),
        Raw("blk.1.norm.weight", (3,), 1, bytes(range(6))),
        Raw("output.weight", (32, 1), 2, bytes(range(18))),
    ]
    return write_raw(
        path, tensors, [text("general.architecture", "llama"), u32("llama.block_count", 2), text("n", "é")]
    )


GOLDEN = {
    "tensors": ["b8916647e28e7aa1", "ba356bc45ae93898", "5d7b5ec7984e9524", "f9feea6674a39a4b"],
    "first": ["315e37bab033c0aa", "ee618d248fb0df0a", "bc9d9ade77e14da3", "666c4ed04d1d41f9", "f9feea6674a39a4b"],
}
"""First 16 digits of the SHA-256 of what llama.cpp's gguf-split (llama.cpp 0.5.0-dev) makes of the golden file."""


def test_shards_and_merged_files_have_the_bytes_of_gguf_split(tmp_path: Path) -> None:
    path = write_golden(tmp_path / "golden.gguf")
    rules = {"tensors": SplitRule(max_tensors=2), "first": SplitRule(max_tensors=2, no_tensor_first=True)}
    for name, rule in rules.items():
        paths = _split(path, tmp_path / name, rule)
        merge(paths[0], tmp_path / f"{name}-merged.gguf")
        made = [*paths, tmp_path / f"{name}-merged.gguf"]
        assert [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in made] == GOLDEN[name]


def test_a_size_limit_counts_padded_data(tmp_path: Path) -> None:
    path = write_golden(tmp_path / "golden.gguf")  # padded sizes 128, 32, 96, 32, 32
    with open_gguf(path) as source:
        for limit, sizes in ((128, [1, 2, 2]), (127, [1, 1, 1, 2]), (160, [2, 3]), (159, [1, 2, 2]), (320, [5])):
            shards = plan_split(source, SplitRule(max_bytes=limit))
            assert [len(shard.tensors) for shard in shards] == sizes, limit


def test_a_tensor_above_the_limit_gets_a_shard_of_its_own(tmp_path: Path) -> None:
    with open_gguf(write_golden(tmp_path / "golden.gguf")) as source:
        assert [len(shard.tensors) for shard in plan_split(source, SplitRule(max_bytes=1))] == [1] * 5


def test_ones_at_the_end_of_a_shape_are_dropped() -> None:
    assert [canonical_dims(dims) for dims in ((5, 1), (1, 1), (), (2, 1, 3, 1), (0, 1))] == [
        (5,),
        (1,),
        (1,),
        (2, 1, 3),
        (0,),
    ]


def test_sizes_are_decimal() -> None:
    assert (parse_size("500M"), parse_size("2G")) == (500_000_000, 2_000_000_000)
    for words in ("500", "0M", "-1M", "1.5G", "M", "1K"):
        with pytest.raises(UsageError, match="M or G"):
            parse_size(words)


@pytest.mark.parametrize("rule", [SplitRule(max_tensors=0), SplitRule(max_tensors=-1), SplitRule(max_bytes=0)])
def test_a_limit_below_one_is_refused(model: Path, tmp_path: Path, rule: SplitRule) -> None:
    with pytest.raises(UsageError, match="at least one tensor"):
        _split(model, tmp_path / "s", rule)


def test_existing_shards_are_kept_and_no_half_set_is_left(model: Path, tmp_path: Path) -> None:
    taken = tmp_path / "s-00003-of-00004.gguf"
    taken.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        _split(model, tmp_path / "s")
    assert sorted(tmp_path.iterdir()) == sorted([model, taken])
    assert taken.read_bytes() == b"mine"


def test_the_first_shard_must_be_named_so() -> None:
    assert shard_paths(Path("a/m-00001-of-00002.gguf"), 2)[1] == Path("a/m-00002-of-00002.gguf")
    for name in ("m.gguf", "m-00002-of-00002.gguf", "m-00001-of-00003.gguf"):
        with pytest.raises(ModelError, match=r"must end with -00001-of-00002\.gguf"):
            shard_paths(Path(name), 2)


def test_a_missing_shard_is_named(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    paths[2].unlink()
    with pytest.raises(ModelError, match=r"shard .*s-00003-of-00004\.gguf is missing"):
        merge(paths[0], tmp_path / "o.gguf")
    assert not (tmp_path / "o.gguf").exists()


def test_a_shard_of_another_split_is_refused(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(ModelError, match=r"number 1 of 4 shards .* not 2 of 4"):
        merge(paths[0], tmp_path / "o.gguf")


def test_a_shard_with_other_tensors_is_refused(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    other = write_model(tmp_path / "other.gguf", n_layer=3)
    strange = _split(other, tmp_path / "t", SplitRule(max_tensors=5))
    assert len(strange) == len(paths)
    paths[1].write_bytes(strange[1].read_bytes())
    with pytest.raises(ModelError, match="hold 14 tensors, their metadata announces 12"):
        merge(paths[0], tmp_path / "o.gguf")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    model = write_raw(tmp_path / "m.gguf", [Raw(name, (8,), 0, bytes(32)) for name in "abcd"])
    paths = _split(model, tmp_path / "s", SplitRule(max_tensors=2))
    paths[1].write_bytes(paths[1].read_bytes().replace(b"d\x01\0\0\0", b"a\x01\0\0\0"))
    with pytest.raises(ModelError, match="hold tensor a 2 times"):
        merge(paths[0], tmp_path / "o.gguf")


def test_a_file_that_is_not_split_is_not_merged(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a shard"):
        merge(model, tmp_path / "o.gguf")


def test_a_truncated_shard_is_refused_before_the_merge(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    paths[3].write_bytes(paths[3].read_bytes()[:-64])
    with pytest.raises(ModelError, match="truncated"):
        merge(paths[0], tmp_path / "o.gguf", delete_shards=True)
    assert all(path.exists() for path in paths)


def test_shards_are_deleted_only_once_the_whole_is_there(model: Path, tmp_path: Path) -> None:
    paths = _split(model, tmp_path / "s")
    (tmp_path / "o.gguf").write_bytes(b"taken")
    with pytest.raises(UsageError, match="exists"):
        merge(paths[0], tmp_path / "o.gguf", delete_shards=True)
    assert all(path.exists() for path in paths)
    merge(paths[0], tmp_path / "o.gguf", delete_shards=True, force=True)
    assert sorted(tmp_path.iterdir()) == sorted([model, tmp_path / "o.gguf"])


def test_progress_counts_all_tensor_data(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_gguf(model) as source:
        total = sum(source.n_bytes(tensor) for tensor in source.tensors)
        split(source, tmp_path / "s", SplitRule(max_tensors=3), progress=lambda done, all_: seen.append((done, all_)))
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
