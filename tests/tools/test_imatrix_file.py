from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from minka.errors import MinkaError, ModelError
from minka.native.observer import Product
from minka.tools.imatrix_collect import Collector
from minka.tools.imatrix_file import (
    Entry,
    Imatrix,
    importance,
    partial,
    read_imatrix,
    write_dat,
    write_gguf,
)
from minka.tools.imatrix_statistics import by_layer, statistics
from tests.tiny_fixtures import TinyModels
from tests.tools.imatrix_golden import matrix


def _entry(sums: list[float], counts: list[int]) -> Entry:
    return Entry(np.array(sums, np.float32), np.array(counts))


# -- files


def test_the_gguf_form_keeps_everything(tmp_path: Path) -> None:
    found = matrix(3)
    write_gguf(tmp_path / "im.gguf", found)
    again = read_imatrix(tmp_path / "im.gguf")
    assert (again.datasets, again.chunk_count, again.chunk_size, again.legacy) == (("text3.txt",), 5, 128, False)
    assert list(again.entries) == sorted(found.entries)
    for name, entry in found.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        assert again.entries[name].counts.tolist() == entry.counts.tolist()


def test_the_dat_form_keeps_means_and_calls(tmp_path: Path) -> None:
    write_dat(tmp_path / "im.dat", matrix(3))
    again = read_imatrix(tmp_path / "im.dat")
    assert (again.datasets, again.chunk_count, again.chunk_size, again.legacy) == (("text3.txt",), 5, 0, True)
    assert list(again.entries) == ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"]  # output.weight has no data
    assert [entry.counts.tolist() for entry in again.entries.values()] == [[5], [6]]
    raw = (tmp_path / "im.dat").read_bytes()
    assert struct.unpack_from("<ii", raw) == (2, len("blk.0.attn_q.weight"))
    assert raw.endswith(struct.pack("<ii", 5, 9) + b"text3.txt")


def test_both_forms_mean_the_same_to_a_quantizer(tmp_path: Path) -> None:
    found = matrix(3)
    write_gguf(tmp_path / "im.gguf", found)
    write_dat(tmp_path / "im.dat", found)
    new, old = (importance(read_imatrix(tmp_path / name)) for name in ("im.gguf", "im.dat"))
    experts = found.entries["blk.0.ffn_up_exps.weight"].sums.reshape(4, 8)
    wanted = np.stack([experts[0] / 90, np.ones(8), experts[2] / 700, experts[3] / 41]).ravel()
    for values in (new, old):
        np.testing.assert_allclose(values["blk.0.ffn_up_exps.weight"], wanted, rtol=1e-6)
    np.testing.assert_array_equal(new["output.weight"], np.ones(4))
    assert "output.weight" not in old


def test_an_old_file_without_an_end(tmp_path: Path) -> None:
    name = b"blk.0.attn_q.weight"
    raw = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii2f", 0, 2, 3.0, 4.0)
    (tmp_path / "im.dat").write_bytes(raw)
    found = read_imatrix(tmp_path / "im.dat")
    assert (found.datasets, found.chunk_count) == ((), 0)
    assert importance(found)["blk.0.attn_q.weight"].tolist() == [3.0, 4.0]


def test_files_that_cannot_be_used(tmp_path: Path, tiny_models: TinyModels) -> None:
    def refused(raw: bytes) -> str:
        path = tmp_path / "im"
        path.write_bytes(raw)
        with pytest.raises(ModelError) as caught:
            read_imatrix(path)
        return str(caught.value)

    write_dat(tmp_path / "im.dat", matrix(1))
    old = (tmp_path / "im.dat").read_bytes()
    for n in (0, 3, 20, 40, len(old) - 3):
        assert "no importance matrix, or cut short" in refused(old[:n])
    assert "no importance matrix, or cut short" in refused(b"\0\0\0\0")
    assert "no importance matrix, or cut short" in refused(struct.pack("<ii", 1, -5))
    write_gguf(tmp_path / "im.gguf", matrix(1))
    new = (tmp_path / "im.gguf").read_bytes()
    assert "truncated" in refused(new[:-40])
    assert "sums without counts" in refused(new.replace(b"attn_q.weight.counts", b"attn_r.weight.counts"))
    assert "a GGUF file of type imatrix" in refused(new.replace(b"imatrix.chunk_size", b"imatrix.chunk_sizx"))
    assert "is no importance matrix, but a GGUF file" in refused(tiny_models("llama").read_bytes())
    with pytest.raises(ModelError, match="does not exist"):
        read_imatrix(tmp_path / "none")
    for bad in (np.nan, np.inf, -1.0):
        write_gguf(tmp_path / "im.gguf", Imatrix({"a": _entry([1.0, bad], [3])}, (), 1, 1))
        assert "negative or not finite" in refused((tmp_path / "im.gguf").read_bytes())


def test_a_name_that_ggml_cannot_hold(tmp_path: Path) -> None:
    found = Imatrix({"x" * 60: _entry([1.0], [3])}, (), 1, 1)
    with pytest.raises(MinkaError, match="too long"):
        write_gguf(tmp_path / "im.gguf", found)
    assert list(tmp_path.iterdir()) == []
    write_dat(tmp_path / "im.dat", found)
    assert list(read_imatrix(tmp_path / "im.dat").entries) == ["x" * 60]


def test_weights_with_experts_that_saw_nothing() -> None:
    assert partial(matrix(1).entries) == [("blk.0.ffn_up_exps.weight", 0.75), ("output.weight", 0.0)]


# -- merging and collecting


def test_merging_adds_up() -> None:
    collector = Collector()
    collector.merge(Imatrix({"a": _entry([1, 2], [10])}, (), 1, 10), 10, "one")
    collector.merge(Imatrix({"a": _entry([3, 4], [5]), "b": _entry([1], [2])}, (), 1, 10), 10, "two")
    collector.merge(Imatrix({"a": _entry([1, 1], [2])}, (), 2, 0, legacy=True), 10, "old")
    assert collector.entries["a"].sums.tolist() == [14, 16]
    assert collector.entries["a"].counts.tolist() == [35]
    assert collector.chunks(10) == 3
    assert collector.entries["b"].counts.tolist() == [2]


def test_one_count_stands_for_all_experts() -> None:
    for first, second in (([10], [1, 2]), ([1, 2], [10])):
        collector = Collector()
        for counts in (first, second):
            collector.merge(Imatrix({"a": _entry([1, 2, 3, 4], counts)}, (), 1, 10), 10, "x")
        assert collector.entries["a"].counts.tolist() == [11, 12]


def test_files_of_different_models_do_not_merge() -> None:
    collector = Collector()
    collector.merge(Imatrix({"a": _entry([1, 2], [10])}, (), 1, 10), 10, "one")
    for entry in (_entry([1, 2, 3], [1]), _entry([1, 2], [1, 2, 3])):
        if entry.counts.size == 3:
            collector.entries["a"].counts = np.array([1, 2])
        with pytest.raises(ModelError, match=r"other.gguf does not fit: a has"):
            collector.merge(Imatrix({"a": entry}, (), 1, 10), 10, "other.gguf")


def test_what_is_collected() -> None:
    for output in (False, True):
        collector = Collector(process_output=output)
        assert collector.wants("blk.0.attn_q.weight", routed=False, n_rows=16)
        assert not collector.wants("blk.0.attn_q.weight", routed=False, n_rows=15)
        assert collector.wants("blk.0.ffn_up_exps.weight", routed=True, n_rows=1)
        assert collector.wants("output.weight", routed=False, n_rows=16) is output
        assert not collector.wants("cache_k_l0 (view)", routed=False, n_rows=16)


def test_weights_of_several_matrices() -> None:
    x = np.arange(2 * 4 * 20 * 3, dtype=np.float32).reshape(2, 4, 20, 3)
    collector = Collector()
    collector.see(Product("blk.0.attn_k_b.weight", (3, 5, 2, 1), x, None, repeats=False))
    entry = collector.entries["blk.0.attn_k_b.weight"]
    # Matrix 0 is used for the second indices 0 and 2, matrix 1 for 1 and 3.
    wanted = np.stack([(x[:, i::2].astype(np.float64) ** 2).sum(axis=(0, 1, 2)) for i in (0, 1)]).ravel()
    np.testing.assert_allclose(entry.sums, wanted, rtol=1e-6)
    assert entry.counts.tolist() == [2 * 4 * 20 // 2]


def test_rows_are_added_in_order_in_single_precision() -> None:
    rows = np.random.default_rng(0).standard_normal((200, 7), np.float32) * 100
    collector, wanted = Collector(), np.zeros(7, np.float32)
    for part in (rows[:150], rows[150:]):
        collector.see(Product("blk.0.a.weight", (7, 1, 1, 1), part[None, None], None, repeats=False))
    for row in rows:
        wanted += row * row
    np.testing.assert_array_equal(collector.entries["blk.0.a.weight"].sums, wanted)


def test_repeated_activations_are_added_to_what_each_weight_has() -> None:
    rows = np.ones((1, 1, 20, 2), np.float32)
    collector = Collector()
    collector.merge(Imatrix({"blk.0.c.weight": _entry([5, 6], [10])}, (), 1, 10), 10, "x")
    for name, repeats in (("a", False), ("b", True), ("c", True)):
        collector.see(Product(f"blk.0.{name}.weight", (2, 1, 1, 1), rows, None, repeats))
    assert {name: entry.sums.tolist() for name, entry in collector.entries.items()} == {
        "blk.0.a.weight": [20, 20], "blk.0.b.weight": [20, 20], "blk.0.c.weight": [25, 26]
    }  # fmt: skip


def test_older_counts_of_a_dense_weight_become_one() -> None:
    collector = Collector()
    collector.merge(Imatrix({"blk.0.a.weight": _entry([1, 1, 1, 1], [40, 40])}, (), 1, 10), 10, "x")
    rows = np.ones((1, 2, 20, 2), np.float32)
    collector.see(Product("blk.0.a.weight", (2, 1, 2, 1), rows, None, repeats=False))
    assert collector.entries["blk.0.a.weight"].counts.tolist() == [60]
    assert collector.entries["blk.0.a.weight"].sums.tolist() == [21] * 4


def test_an_expert_that_is_not_there() -> None:
    product = Product(
        "blk.0.e.weight", (2, 1, 2, 1), np.ones((1, 3, 1, 2), np.float32), np.array([[2]] * 3, np.int32), repeats=False
    )
    with pytest.raises(ModelError, match="expert that is not there"):
        Collector().see(product)


# -- statistics


def test_statistics_of_a_weight() -> None:
    values = [0.0, 1e-6, 4.0, 8.0, 4.0, 8.0, 4.0, 4.0]
    entries = {"blk.3.attn_q.weight": _entry([10 * value for value in values] + [7] * 8, [10, 0])}
    (one,) = statistics(entries)
    shares = np.array(values[1:]) / sum(values)
    assert (one.layer, one.short, one.n) == (3, "attn_q", 8)
    assert (one.minimum, one.maximum, one.active) == (0.0, 8.0, 0.75)
    assert one.total == pytest.approx(32, rel=1e-6)
    assert one.std == pytest.approx(np.std(values), rel=1e-6)
    assert one.entropy == pytest.approx(-(shares * np.log2(shares)).sum(), rel=1e-6)
    assert one.evenness == pytest.approx(one.entropy / 3, rel=1e-6)
    assert one.outliers == 0.25
    assert one.similarity == 0.0


def test_statistics_compare_with_the_layer_before() -> None:
    entries = {
        "blk.9.a.weight": _entry([3, 4], [1]),
        "blk.10.a.weight": _entry([4, 3], [1]),
        "blk.11.a.weight": _entry([8, 6], [2]),
        "blk.12.a.weight": _entry([8, 6, 1], [1]),
        "output.weight": _entry([1, 1], [1]),
        "blk.0.empty.weight": _entry([0, 0], [0]),
    }
    found = {one.name: one for one in statistics(entries)}
    names = [f"blk.{layer}.a.weight" for layer in (12, 10, 11, 9)]  # the largest first; equal ones by name
    assert list(found) == [*names, "output.weight"]
    assert found["blk.10.a.weight"].similarity == pytest.approx(24 / 25)
    assert found["blk.11.a.weight"].similarity == pytest.approx(1)
    assert found["blk.12.a.weight"].similarity == 0
    assert found["output.weight"].layer is None


def test_statistics_of_layers_are_weighted_by_size() -> None:
    entries = {
        "blk.0.a.weight": _entry([1, 1], [1]),
        "blk.0.b.weight": _entry([3, 3, 3, 3, 3, 3], [1]),
        "output.weight": _entry([9, 9], [1]),
    }
    (one,) = by_layer(statistics(entries))
    assert (one.layer, one.total, one.similarity) == (0, (2 * 2 + 6 * 18) / 8, 0.0)
    assert by_layer(statistics({})) == []
    (empty,) = statistics({"a.weight": _entry([0, 0], [1])})
    assert (empty.entropy, empty.outliers, empty.active) == (0.0, 0.0, 0.0)
