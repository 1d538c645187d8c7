from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native import observer
from minka.native.model import Model
from minka.native.observer import ObservedContext, Product, weight_name
from minka.native.protocol import Decoded
from minka.params import ContextParams, ModelParams
from tests.tiny_fixtures import TinyModels
from tests.tools.llama_reference import Llama
from tests.tools.tiny_moe import write_moe

PARAMS = ContextParams(
    n_ctx=256, parallel=1, kv_unified=False, warmup=False, threads=1, flash_attn="off", cache_type_k="f32",
    cache_type_v="f32",
)  # fmt: skip
TOKENS = np.arange(300, 330, dtype=np.int32)


class Recorder:
    """Keeps copies of what it is shown."""

    def __init__(self, on_see: Callable[[Product], None] = lambda product: None) -> None:
        self.seen: list[Product] = []
        self.asked: list[tuple[str, bool, int]] = []
        self._on_see = on_see

    def wants(self, weight: str, *, routed: bool, n_rows: int) -> bool:
        self.asked.append((weight, routed, n_rows))
        return weight.endswith(".weight")

    def see(self, product: Product) -> None:
        self._on_see(product)
        experts = None if product.experts is None else product.experts.copy()
        self.seen.append(product._replace(x=product.x.copy(), experts=experts))

    def rows(self) -> dict[str, NDArray[np.float32]]:
        return {product.weight: product.x for product in self.seen}


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> Iterator[Model]:
    loaded = Model.load(tiny_models("llama"), ModelParams())
    yield loaded
    loaded.close()


def _decode(context: ObservedContext) -> Decoded:
    context.clear()
    context.add(0, TOKENS.tolist(), 0, logits=len(TOKENS))
    return context.decode()


def _watch(model: Model, recorder: Recorder) -> ObservedContext:
    return ObservedContext(model, PARAMS, recorder)


def test_every_weight_is_shown_with_what_it_meets(model: Model, tiny_models: TinyModels) -> None:
    recorder = Recorder()
    context = _watch(model, recorder)
    assert _decode(context) is Decoded.OK
    reference = Llama(tiny_models("llama"))
    logits = reference.evaluate(TOKENS)
    assert {product.weight for product in recorder.seen} == set(reference.seen)
    for product in recorder.seen:
        (wanted,) = reference.seen[product.weight][0]
        assert product.x.shape == (1, 1, *wanted.shape)
        assert product.shape[:2] == reference.w[product.weight].shape[::-1]
        np.testing.assert_allclose(product.x[0, 0], wanted, rtol=1e-4, atol=1e-5)
    # Nobody's view of the graph changes what it computes.
    np.testing.assert_allclose(context.logits(29), logits[29], rtol=1e-4, atol=1e-4)
    assert ("blk.0.attn_q.weight", False, 30) in recorder.asked
    context.close()


def test_the_same_activations_are_told(model: Model) -> None:
    recorder = Recorder()
    context = _watch(model, recorder)
    for _ in range(2):  # the second decode uses the first one's graph again
        recorder.seen.clear()
        _decode(context)
        by_name = {product.weight.removesuffix(".weight"): product.repeats for product in recorder.seen}
        assert sorted(name for name, repeats in by_name.items() if name.startswith("blk.0.") and not repeats) == [
            "blk.0.attn_output", "blk.0.attn_q", "blk.0.ffn_down", "blk.0.ffn_gate"
        ]  # fmt: skip
        before = np.empty(0, np.float32)
        for product in recorder.seen:
            assert not product.repeats or np.array_equal(product.x, before)
            before = product.x
    context.close()


def test_experts_are_told_by_token(tmp_path: Path) -> None:
    path = write_moe(tmp_path / "moe.gguf")
    loaded = Model.load(path, ModelParams())
    recorder = Recorder()
    context = _watch(loaded, recorder)
    _decode(context)
    reference = Llama(path)
    reference.evaluate(TOKENS)
    shown = {product.weight: product for product in recorder.seen}
    up, down = shown["blk.0.ffn_up_exps.weight"], shown["blk.0.ffn_down_exps.weight"]
    assert (up.shape, up.x.shape, down.x.shape) == ((64, 128, 4, 1), (1, 30, 1, 64), (1, 30, 2, 128))
    assert up.experts is not None
    assert up.experts.shape == (30, 2)
    for expert in range(4):
        tokens, _ = np.nonzero(up.experts == expert)
        np.testing.assert_allclose(
            up.x[0, tokens, 0], reference.seen["blk.0.ffn_up_exps.weight"][expert][0], rtol=1e-4, atol=1e-5
        )
    context.close()
    loaded.close()


def test_memory_of_a_device_is_copied(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, copied = Recorder(), Recorder()
    for recorder, is_host in ((direct, True), (copied, False)):
        monkeypatch.setattr(observer.Hook, "_is_host", lambda self, tensor, answer=is_host: answer)
        context = _watch(model, recorder)
        _decode(context)
        context.close()
    assert direct.rows().keys() == copied.rows().keys()
    for weight, rows in direct.rows().items():
        np.testing.assert_array_equal(rows, copied.rows()[weight])


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_exception_stops_the_decode_and_comes_out_of_it(model: Model, error: BaseException) -> None:
    def refuse(product: Product) -> None:
        if product.weight == "blk.0.attn_output.weight":
            raise error

    recorder = Recorder(refuse)
    context = _watch(model, recorder)
    with pytest.raises(type(error)) as caught:
        _decode(context)
    assert caught.value is error
    assert [product.weight for product in recorder.seen] == [f"blk.0.attn_{part}.weight" for part in "qvk"]
    recorder._on_see = lambda product: None
    assert _decode(context) is Decoded.OK
    assert len(recorder.seen) == 3 + 15
    context.close()


def test_names_lose_what_backends_add() -> None:
    assert weight_name(b"CUDA0#blk.0.attn_k.weight#0") == "blk.0.attn_k.weight"
    assert weight_name(b"CUDA0#blk.0.attn_k.weight") == "blk.0.attn_k.weight"
    assert weight_name(b"output.weight") == "output.weight"


def test_another_layout_of_tensors_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_OBJECT_SIZE", 16)
    with pytest.raises(NativeError, match="lays tensors out in a way"):
        _watch(model, Recorder())
    monkeypatch.undo()
    monkeypatch.setattr(observer, "_N_OPS", 3)
    with pytest.raises(NativeError, match="no operation MUL_MAT"):
        _watch(model, Recorder())
