from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from minka.errors import MinkaError, ModelError, UsageError
from minka.ggufs.read import open_gguf
from minka.ggufs.split import SplitRule, split
from minka.native.model import Model
from minka.native.raw import Adapter, RawContext, TokenList
from minka.params import ContextParams, ModelParams
from minka.tools import lora_export
from minka.tools import lora_merge as module
from minka.tools.lora_file import open_lora
from tests import tiny
from tests.tiny_fixtures import TinyModels

F32 = NDArray[np.float32]


def floats(path: Path) -> dict[str, F32]:
    return {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in GGUFReader(path).tensors}


def expected(base: Path, *adapters: tuple[Path, float, float]) -> dict[str, F32]:
    """What merging (adapter, alpha, scale) must give."""
    weights = floats(base)
    for path, alpha, scale in adapters:
        parts = floats(path)
        for name in [name.removesuffix(".lora_a") for name in parts if name.endswith(".lora_a")]:
            a, b = parts[f"{name}.lora_a"], parts[f"{name}.lora_b"]
            weights[name] = weights[name] + scale * alpha / b.shape[1] * (b @ a)
    return weights


@pytest.mark.parametrize(("name", "tolerance"), [("llama", 1e-5), ("llama-f16", 2e-3)])
def test_weights_get_the_product_times_alpha_by_rank(
    tiny_models: TinyModels, tmp_path: Path, name: str, tolerance: float
) -> None:
    base, out = tiny_models(name), tmp_path / "out.gguf"
    lora = tiny.write_lora(tmp_path / "lora.gguf", base=base)
    report = lora_export(base, [(lora, 0.5)], out)
    assert (len(report.merged), report.n_tensors) == (6, len(GGUFReader(base).tensors))
    wanted, merged = expected(base, (lora, 8.0, 0.5)), floats(out)
    assert list(merged) == list(wanted)
    for tensor in wanted:
        np.testing.assert_allclose(merged[tensor], wanted[tensor], atol=tolerance, err_msg=tensor)
    assert not np.allclose(merged["blk.0.attn_q.weight"], floats(base)["blk.0.attn_q.weight"], atol=0.01)


def test_what_is_not_changed_is_copied_and_the_metadata_too(tiny_models: TinyModels, tmp_path: Path) -> None:
    base, out = tiny_models("llama"), tmp_path / "out.gguf"
    lora_export(base, [(tiny_models("lora"), 1.0)], out)
    before, after = GGUFReader(base), GGUFReader(out)
    assert set(before.fields) == set(after.fields)
    assert after.fields["general.file_type"].contents() == 1
    by_name = {tensor.name: tensor for tensor in after.tensors}
    for tensor in before.tensors:
        assert (by_name[tensor.name].shape == tensor.shape).all()
        if tensor.name not in ("blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight") and (
            "attn_k" in tensor.name or "norm" in tensor.name
        ):
            assert (by_name[tensor.name].data == tensor.data).all()


def test_a_quantized_weight_becomes_f16(tiny_models: TinyModels, tmp_path: Path) -> None:
    base = requantized(tiny_models("llama"), tmp_path / "q8.gguf", GGMLQuantizationType.Q8_0)
    out = tmp_path / "out.gguf"
    lora_export(base, [(tiny_models("lora"), 1.0)], out)
    types = {tensor.name: tensor.tensor_type for tensor in GGUFReader(out).tensors}
    assert types["blk.0.attn_q.weight"] is GGMLQuantizationType.F16
    assert types["blk.0.attn_k.weight"] is GGMLQuantizationType.Q8_0
    wanted, merged = expected(base, (tiny_models("lora"), 8.0, 1.0)), floats(out)
    for tensor in wanted:
        np.testing.assert_allclose(merged[tensor], wanted[tensor], atol=4e-3, err_msg=tensor)


def requantized(base: Path, path: Path, kind: GGMLQuantizationType) -> Path:
    reader, writer = GGUFReader(base), GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) == 2 and tensor.name.startswith("blk.")
        data = quantize(tensor.data, kind) if is_matrix else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=kind if is_matrix else tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_several_adapters_add_up_even_if_they_change_different_weights(tiny_models: TinyModels, tmp_path: Path) -> None:
    base, out = tiny_models("llama"), tmp_path / "out.gguf"
    first, second = tiny_models("lora"), write_adapter(tmp_path / "two.gguf", ["blk.1.attn_k.weight"], alpha=0.0)
    lora_export(base, [(first, 1.0), (second, 2.0)], out)
    wanted, merged = expected(base, (first, 8.0, 1.0)), floats(out)
    parts = floats(second)
    # Without alpha, a product counts as it is.
    wanted["blk.1.attn_k.weight"] += 2 * (parts["blk.1.attn_k.weight.lora_b"] @ parts["blk.1.attn_k.weight.lora_a"])
    for tensor in wanted:
        np.testing.assert_allclose(merged[tensor], wanted[tensor], atol=1e-5, err_msg=tensor)


def test_the_first_matrix_of_embeddings_is_stored_the_other_way_round(tiny_models: TinyModels, tmp_path: Path) -> None:
    base, out = tiny_models("llama"), tmp_path / "out.gguf"
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(512, 4)).astype(np.float32), rng.normal(size=(64, 4)).astype(np.float32)
    lora = write_pairs(tmp_path / "e.gguf", {"token_embd.weight": (a, b)}, alpha=2.0)
    lora_export(base, [(lora, 1.0)], out)
    wanted = floats(base)["token_embd.weight"] + 0.5 * (a @ b.T)
    np.testing.assert_allclose(floats(out)["token_embd.weight"], wanted, atol=1e-5)


def write_adapter(path: Path, weights: list[str], *, alpha: float = 8.0, n_in: int = 64, n_out: int = 32) -> Path:
    rng = np.random.default_rng(5)
    pairs = {
        name: (rng.normal(size=(4, n_in)).astype(np.float32), rng.normal(size=(n_out, 4)).astype(np.float32))
        for name in weights
    }
    return write_pairs(path, pairs, alpha=alpha)


def write_pairs(
    path: Path,
    pairs: dict[str, tuple[F32, F32]],
    *,
    alpha: float = 8.0,
    arch: str = "llama",
    kind: str = "adapter",
    lone: tuple[str, ...] = (),
) -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_type(kind)
    writer.add_string("adapter.type", "lora")
    if alpha:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    for name in lone:
        writer.add_tensor(name, np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_split_model_is_merged_into_one_file(tiny_models: TinyModels, tmp_path: Path) -> None:
    base, whole, out = tiny_models("llama"), tmp_path / "whole.gguf", tmp_path / "out.gguf"
    with open_gguf(base) as source:
        shards = split(source, tmp_path / "part", SplitRule(5, None))
    assert len(shards) > 2
    lora_export(base, [(tiny_models("lora"), 1.0)], whole)
    lora_export(shards[0], [(tiny_models("lora"), 1.0)], out)
    assert out.read_bytes() == whole.read_bytes()


def test_the_size_of_the_pieces_and_the_threads_do_not_show(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, whole, out = tiny_models("llama"), tmp_path / "whole.gguf", tmp_path / "out.gguf"
    lora_export(base, [(tiny_models("lora"), 1.0)], whole, threads=1)
    monkeypatch.setattr(module, "PIECE", 64 * 5)
    seen: list[tuple[int, int]] = []
    lora_export(
        base, [(tiny_models("lora"), 1.0)], out, threads=3, progress=lambda done, total: seen.append((done, total))
    )
    np.testing.assert_allclose(floats(out)["blk.0.ffn_down.weight"], floats(whole)["blk.0.ffn_down.weight"], atol=1e-6)
    assert seen[-1][0] == seen[-1][1] > 0


def test_libllama_computes_the_same_with_the_adapter_apart(
    tiny_models: TinyModels, tmp_path: Path, logits: Callable[..., F32]
) -> None:
    base, out = tiny_models("llama"), tmp_path / "out.gguf"
    lora_export(base, [(tiny_models("lora"), 0.5)], out)
    apart = logits(base, Adapter(tiny_models("lora"), 0.5))
    np.testing.assert_allclose(logits(out), apart, atol=0.02)
    assert not np.allclose(logits(base), apart, atol=0.5)


@pytest.fixture
def logits() -> Callable[..., F32]:
    def compute(path: Path, *adapters: Adapter) -> F32:
        params = ContextParams(n_ctx=64, threads=1, flash_attn="off")
        with (
            closing(Model.load(path, ModelParams(n_gpu_layers=0))) as model,
            closing(RawContext(model, params)) as context,
        ):
            context.adapt(adapters)
            tokens = TokenList()
            tokens.add([1, 20, 300, 4], 0, [0], slice(0, 4))
            batch = context.prepare(tokens.tokens())
            context.decode(batch)
            return context.logits(4).copy()

    return compute


# -- what cannot be merged


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": ["blk.9.attn_k.weight"]}, "this one has no blk.9.attn_k.weight"),
        (
            {"weights": ["blk.0.attn_k.weight"], "n_out": 16},
            "it changes blk.0.attn_k.weight of 64 x 16, and here it is",
        ),
    ],
)
def test_an_adapter_of_another_model(
    tiny_models: TinyModels, tmp_path: Path, options: dict[str, object], says: str
) -> None:
    lora, out = write_adapter(tmp_path / "l.gguf", **options), tmp_path / "out.gguf"  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=says):
        lora_export(tiny_models("llama"), [(lora, 1.0)], out)
    assert not out.exists()


def test_files_that_are_no_adapters(tiny_models: TinyModels, tmp_path: Path) -> None:
    pair = (np.zeros((4, 64), np.float32), np.zeros((32, 4), np.float32))
    other = write_pairs(tmp_path / "o.gguf", {"blk.0.attn_k.weight": pair}, arch="gemma3")
    model = write_pairs(tmp_path / "m.gguf", {"blk.0.attn_k.weight": pair}, kind="model")
    half = write_pairs(tmp_path / "h.gguf", {}, lone=("blk.0.attn_k.weight.lora_a",))
    wrong = write_pairs(tmp_path / "w.gguf", {"blk.0.attn_k.weight": (pair[0], np.zeros((32, 5), np.float32))})
    for lora, says in (
        (other, "is for gemma3 models"),
        (model, "its general.type is model, not adapter"),
        (half, "has only one of its two tensors"),
        (wrong, "cannot be multiplied"),
        (tiny_models("llama"), "is no LoRA adapter"),
        (tmp_path / "none.gguf", "does not exist"),
    ):
        with pytest.raises(ModelError, match=says):
            lora_export(tiny_models("llama"), [(lora, 1.0)], tmp_path / "out.gguf")


def test_the_output_is_no_input_and_a_failure_leaves_the_old_one(tiny_models: TinyModels, tmp_path: Path) -> None:
    base = tmp_path / "base.gguf"
    base.write_bytes(tiny_models("llama").read_bytes())
    with pytest.raises(UsageError, match="is the input"):
        lora_export(base, [(tiny_models("lora"), 1.0)], base)
    with pytest.raises(UsageError, match="there is no adapter"):
        lora_export(base, [], tmp_path / "out.gguf")
    old = tmp_path / "old.gguf"
    old.write_text("old")

    def stop(done: int, total: int) -> None:
        if done:
            raise MinkaError("stopped")

    with pytest.raises(MinkaError, match="stopped"):
        lora_export(base, [(tiny_models("lora"), 1.0)], old, progress=stop)
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gguf", "old.gguf"]


def test_tensors_that_are_no_pair_are_named(tiny_models: TinyModels, tmp_path: Path) -> None:
    lora = write_pairs(
        tmp_path / "l.gguf",
        {"blk.0.attn_k.weight": (np.zeros((4, 64), np.float32), np.zeros((32, 4), np.float32))},
        lone=("blk.0.attn_norm.weight",),
    )
    report = lora_export(tiny_models("llama"), [(lora, 1.0)], tmp_path / "out.gguf")
    assert report.ignored == ((lora, "blk.0.attn_norm.weight"),)
    with open_lora(lora) as opened:
        assert opened.others == ("blk.0.attn_norm.weight",)
        assert opened.ranks == (4,)
