from __future__ import annotations

from dataclasses import fields

from minka.native.context_params import KV_TYPES, context_params
from minka.native.library import library
from minka.params import CACHE_TYPES, ContextParams


def test_defaults_are_libllamas_but_for_what_llama_server_sets() -> None:
    native = context_params(library(), ContextParams(threads=3))
    standard = library().slow.llama_context_default_params()
    other = {"n_ctx", "n_threads", "n_threads_batch", "swa_full"}
    for name, *_ in native._fields_:
        if name not in other and isinstance(getattr(standard, name), int | float | bool):
            assert getattr(native, name) == getattr(standard, name), name
    assert (native.n_threads, native.n_threads_batch) == (3, 3)


def test_every_value_arrives() -> None:
    params = ContextParams(
        n_ctx=1, n_batch=2, n_ubatch=3, threads=4, threads_batch=5, flash_attn="on", cache_type_k="q8_0",
        cache_type_v="bf16", kv_offload=False, swa_full=True, rope_scaling="yarn", rope_freq_base=6.0,
        rope_freq_scale=7.0, yarn_orig_ctx=8, yarn_ext_factor=9.0, yarn_attn_factor=10.0, yarn_beta_slow=11.0,
        yarn_beta_fast=12.0, perf=True,
    )  # fmt: skip
    native = context_params(library(), params)
    assert (native.n_ctx, native.n_batch, native.n_ubatch, native.n_threads, native.n_threads_batch) == (1, 2, 3, 4, 5)
    assert (native.flash_attn_type, native.type_k, native.type_v, native.rope_scaling_type) == (1, 8, 30, 2)
    assert (native.offload_kqv, native.swa_full, native.no_perf) == (False, True, False)
    found = [getattr(native, name) for name in ("rope_freq_base", "rope_freq_scale", "yarn_orig_ctx")]
    found += [getattr(native, f"yarn_{name}") for name in ("ext_factor", "attn_factor", "beta_slow", "beta_fast")]
    assert found == [6, 7, 8, 9, 10, 11, 12]


def test_every_cache_type_has_a_number() -> None:
    assert set(KV_TYPES) == set(CACHE_TYPES)
    assert {field.name for field in fields(ContextParams)} >= {"cache_type_k", "cache_type_v"}
