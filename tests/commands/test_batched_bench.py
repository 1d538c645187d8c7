from __future__ import annotations

import json
import re

import pytest

from minka.commands.batched_bench import INTERRUPTED
from minka.native.raw import RawBatch, RawContext
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka

__all__ = ["minka"]

# What llama-batched-bench prints, but for its name.
HEAD = """
batched-bench: n_kv_max = 768, n_batch = 2048, n_ubatch = 512, flash_attn = -1, is_pp_shared = 0, is_tg_separate = 0, n_gpu_layers = -1, n_threads = 1, n_threads_batch = 1

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
"""  # noqa: E501


def test_a_table_with_a_row_for_each_combination(minka: Minka, tiny_models: TinyModels) -> None:
    words = (
        "batched-bench",
        "-m",
        tiny_models("llama"),
        "-c",
        256,
        "-t",
        1,
        "-npp",
        "16,32",
        "-ntg",
        "4",
        "-npl",
        "1,2,3",
    )
    result = minka(*words)
    assert result.code == 0
    assert result.out.startswith(HEAD)
    rows = result.out.removeprefix(HEAD).splitlines()
    counts = [(16, 4, 1, 20), (16, 4, 2, 40), (16, 4, 3, 60), (32, 4, 1, 36), (32, 4, 2, 72), (32, 4, 3, 108)]
    assert [tuple(int(word) for word in row.split("|")[1:5]) for row in rows] == counts
    pattern = r"\|    16 \|      4 \|    1 \|     20 (\| +\d+\.\d{3} \| +\d+\.\d{2} ){3}\|"
    assert re.fullmatch(pattern, rows[0])
    assert {len(row) for row in rows} == {len(HEAD.splitlines()[-1])}


def test_json_lines(minka: Minka, tiny_models: TinyModels) -> None:
    result = minka(
        "batched-bench", "-m", tiny_models("llama"), "-c", 256, "-t", 1, "-npp", 16, "-ntg", 4, "-npl", 4,
        "--output-format", "jsonl", "-pps", "-kvu", "-fa", "off",
    )  # fmt: skip
    found = json.loads(result.out)
    assert tuple(found) == (
        "n_kv_max", "n_batch", "n_ubatch", "flash_attn", "is_pp_shared", "n_gpu_layers", "n_threads", "n_threads_batch",
        "pp", "tg", "pl", "n_kv", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed",
    )  # fmt: skip
    expected = {"n_kv_max": 256, "flash_attn": 0, "is_pp_shared": 1, "pp": 16, "tg": 4, "pl": 4, "n_kv": 32}
    assert {name: found[name] for name in expected} == expected
    assert found["speed_pp"] == pytest.approx(16 / found["t_pp"], rel=0.01)


def test_what_does_not_fit_is_left_out_and_named(minka: Minka, tiny_models: TinyModels) -> None:
    result = minka(
        "batched-bench", "-m", tiny_models("llama"), "-c", 256, "-kvu", "-t", 1, "-npp", "8,300", "-ntg", 1, "-npl", 1,
        "--output-format", "jsonl",
    )  # fmt: skip
    assert len(result.out.splitlines()) == 1
    assert "does not fit 256 cells: PP 300, TG 1, B 1" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "-npp"),
        (("-npp", "8", "-ntg", "x", "-npl", "1"), "-ntg: 'x'"),
        (("-npp", "8", "-ntg", "1", "-npl", "0"), "-npp"),
        (("-npp", "8", "-ntg", "1", "-npl", "1", "--output-format", "xml"), "invalid choice"),
    ],
)
def test_a_bad_command_line_is_one_line(
    minka: Minka, tiny_models: TinyModels, words: tuple[str, ...], message: str
) -> None:
    result = minka("batched-bench", "-m", tiny_models("llama"), *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_an_interrupt_leaves_the_rows_that_were_measured(
    minka: Minka, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, count = RawContext.decode, [0]

    def decode_or_not(context: RawContext, batch: RawBatch) -> None:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        decode(context, batch)

    monkeypatch.setattr(RawContext, "decode", decode_or_not)
    result = minka(
        "batched-bench", "-m", tiny_models("llama"), "-c", 256, "-t", 1, "-npp", "8,16", "-ntg", 1, "-npl", 1,
        "--output-format", "jsonl",
    )  # fmt: skip
    assert result.code == INTERRUPTED
    assert [json.loads(line)["pp"] for line in result.out.splitlines()] == [8]
    assert "interrupted" in result.err
