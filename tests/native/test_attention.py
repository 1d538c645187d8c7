"""The attention kernel of a context: what the user names, else the plain one where that is faster and fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minka.native import attention
from minka.native.attention import SHORT_UBATCH, prefers_plain
from minka.native.context import Context
from minka.params import ContextParams


def plain(n_kv: int = 4096, *, on_cpu: bool = True, **params: object) -> bool:
    return prefers_plain(ContextParams(**params), on_cpu=on_cpu, n_head=32, n_kv=n_kv)  # type: ignore[arg-type]


def test_on_a_cpu_the_plain_kernel_is_chosen() -> None:
    assert plain()


def test_many_sequences_in_one_pool_of_cells_keep_the_flash_kernel() -> None:
    assert prefers_plain(ContextParams(), on_cpu=True, n_head=9, n_kv=8192, n_sharing=4)
    assert not prefers_plain(ContextParams(), on_cpu=True, n_head=9, n_kv=8192, n_sharing=5)


def test_not_against_the_user_and_not_on_a_gpu() -> None:
    assert not plain(flash_attn="on")
    assert not plain(flash_attn="off")  # libllama does that by itself
    assert not plain(on_cpu=False)


@pytest.mark.parametrize("type_v", ["q8_0", "q4_0", "iq4_nl"])
def test_quantized_values_need_flash_attention(type_v: str) -> None:
    assert not plain(cache_type_v=type_v)
    assert plain(cache_type_k=type_v)


def test_the_scores_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "total_memory", lambda: 16 << 30)
    assert plain(65536)  # 32 heads x 128 tokens x 65,536 cells x 4 bytes = 1 GiB
    assert not plain(65537)
    assert plain(65537, n_ubatch=64)
    monkeypatch.setattr(attention, "total_memory", lambda: None)
    assert plain(16384)
    assert not plain(16385)


@pytest.mark.parametrize(("flash_attn", "n_ubatch"), [("auto", SHORT_UBATCH), ("on", 512), ("off", 512)])
def test_micro_batches_are_short_only_where_we_chose(
    context: Callable[..., Context], flash_attn: str, n_ubatch: int
) -> None:
    assert context(flash_attn=flash_attn).n_ubatch == n_ubatch


def test_both_kernels_see_the_same_model(context: Callable[..., Context]) -> None:
    tokens = list(range(3, 300))
    rows = []
    for kind in ("auto", "on"):
        made = context(flash_attn=kind)
        row = made.add(0, tokens, 0, logits=1)
        made.decode()
        rows.append(made.logits(row).copy())
    assert np.abs(rows[0] - rows[1]).max() < 0.05
    assert rows[0].argmax() == rows[1].argmax()
