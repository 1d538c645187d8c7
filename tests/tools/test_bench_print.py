"""The expected texts are llama-bench's own outputs for these numbers, but for the build and the machine."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from minka.tools.bench_matrix import Matrix
from minka.tools.bench_matrix import Test as BenchTest
from minka.tools.bench_print import FIELDS, FORMATS, Printer, printer, values
from minka.tools.bench_run import Machine, Measured

MACHINE = Machine("0c1e570", "Intel(R) Xeon(R) Processor", "", "CPU")
FILE = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def measured(test: BenchTest, machine: Machine = MACHINE) -> Measured:
    when = datetime(2026, 11, 29, 19, 20, 17, tzinfo=UTC)
    return Measured(test, machine, "llama 256M Q4_1", 96576768, 134515008, when, (1625680438, 668069523))


def matrix(**options: object) -> Matrix:
    return Matrix(**{"model": (FILE,), "n_threads": (2,), "n_prompt": (32,), "n_gen": (0,), **options})  # type: ignore[arg-type]


def whole(out: Printer, wanted: Matrix, machine: Machine = MACHINE) -> str:
    header = out.header(wanted, machine)
    tests = "".join(out.test(measured(test, machine)) for test in wanted.tests())
    return header + tests + out.footer(machine)


def test_markdown_has_the_columns_that_matter() -> None:
    assert whole(printer("md"), matrix()) == (
        "| model                          |       size |     params | backend    | threads |            test |"
        "                  t/s |\n"
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: |"
        " -------------------: |\n"
        "| llama 256M Q4_1                |  92.10 MiB |   134.52 M | CPU        |       2 |            pp32 |"
        "        33.79 ± 19.95 |\n"
        "\nbuild: 0c1e570 (0)\n"
    )


def test_markdown_has_a_column_for_each_parameter_that_varies() -> None:
    # llama-bench -p 32 -n 0 -d 8 -t 2 -ctk q8_0,f16 -fa on -b 256 -ub 64 --poll 0 -mg 1 -sm row -nkvo 1 -embd 1
    # -lm none -nopo 1 --no-host 1 --repack 0 -dev none -ts 3/1 -C 0x3 --cpu-strict 1 -ot exps=CPU -lzm off -ncmoe 2
    wanted = matrix(
        n_depth=(8,), type_k=("q8_0", "f16"), flash_attn=("on",), n_batch=(256,), n_ubatch=(64,), poll=(0,),
        main_gpu=(1,), split_mode=("row",), no_kv_offload=(True,), embeddings=(True,), load_mode=("none",),
        no_op_offload=(True,), no_host=(True,), repack=(False,), devices=((),), tensor_split=((3.0, 1.0),),
        cpu_mask=("0x3",), cpu_strict=(True,), tensor_buft_overrides=((("exps", "CPU"),),), lazy_mode=("off",),
        n_cpu_moe=(2,),
    )  # fmt: skip
    titles, rule, first, second, *_ = whole(printer("md"), wanted).splitlines()
    assert titles == (
        "| model                          |       size |     params | backend    |  n_cpu_moe | threads | cpu_mask   "
        "| cpu_strict |       poll | n_batch | n_ubatch | type_k |   main_gpu |     sm |          nkvo |  fa "
        "| dev          | ts           | ot                    |         lm | lazy_mode  |       embd | nopo |  noh "
        "| rpk |            test |                  t/s |"
    )
    assert rule == (
        "| ------------------------------ | ---------: | ---------: | ---------- | ---------: | ------: | ---------- "
        "| ---------: | ---------: | ------: | -------: | -----: | ---------: | -----: | ------------: | --: "
        "| ------------ | ------------ | --------------------- | ---------: | ---------- | ---------: | ---: | ---: "
        "| --: | --------------: | -------------------: |"
    )
    assert "|   q8_0 |          1 |    row |             1 |   1 | none         | 3.00/1.00    | exps=CPU" in first
    assert "pp32 @ d8 |        33.79 ± 19.95 |" in second


def test_a_gpu_shows_the_layers_and_not_the_threads() -> None:
    gpu = replace(MACHINE, backends="CUDA", gpu_info="NVIDIA H200")
    titles = whole(printer("md"), Matrix(model=(FILE,), n_prompt=(32,), n_gen=(0,)), gpu).splitlines()[0]
    assert titles == (
        "| model                          |       size |     params | backend    | ngl |            test |"
        "                  t/s |"
    )


def test_large_models_are_in_gib_and_billions() -> None:
    out = printer("md")
    out.header(matrix(), MACHINE)
    row = out.test(replace(measured(matrix().tests()[0]), model_size=5 * 2**30, model_n_params=8_030_261_248))
    assert "|   5.00 GiB |     8.03 B |" in row


JSONL = (
    '{"build_commit": "0c1e570", "build_number": 0, "cpu_info": "Intel(R) Xeon(R) Processor", "gpu_info": "", '
    '"backends": "CPU", "model_filename": "/models/SmolLM2-135M-Instruct.Q4_1.gguf", "model_type": "llama 256M Q4_1", '
    '"model_size": 96576768, "model_n_params": 134515008, "n_batch": 2048, "n_ubatch": 512, "n_threads": 2, '
    '"cpu_mask": "0x0", "cpu_strict": false, "poll": 50, "type_k": "f16", "type_v": "f16", "n_gpu_layers": -1, '
    '"n_cpu_moe": 0, "split_mode": "layer", "main_gpu": 0, "no_kv_offload": false, "flash_attn": -1, '
    '"devices": "auto", "tensor_split": "0.00", "tensor_buft_overrides": "none", "load_mode": "auto", '
    '"lazy_mode": "auto", "embeddings": false, "no_op_offload": 0, "no_host": false, "repack": true, "fit_target": 0, '
    '"fit_min_ctx": 0, "n_prompt": 32, "n_gen": 0, "n_depth": 0, "test_time": "2026-11-29T19:20:17Z", '
    '"avg_ns": 1146874980, "stddev_ns": 677133171, "avg_ts": 33.791636, "stddev_ts": 19.951118, '
    '"samples_ns": [ 1625680438, 668069523 ],"samples_ts": [ 19.6841, 47.8992 ]}\n'
)


def test_json_lines_are_llama_benchs() -> None:
    assert whole(printer("jsonl"), matrix()) == JSONL


def test_json_is_one_array_with_the_same_objects() -> None:
    text = whole(printer("json"), matrix(n_batch=(64, 2048)))
    first, second = json.loads(text)
    assert first["n_batch"] == 64
    assert second == json.loads(JSONL)
    assert text.startswith('[\n  {\n    "build_commit": "0c1e570",\n    "build_number": 0,\n')
    assert text.endswith('    "samples_ts": [ 19.6841, 47.8992 ]\n  }\n]\n')


def test_csv_has_a_header_and_quotes() -> None:
    wanted = Matrix(model=('a "b".gguf',), n_threads=(2,), n_prompt=(32,), n_gen=(0,))
    text = whole(printer("csv"), wanted)
    header, row = csv.reader(io.StringIO(text))
    assert tuple(header) == tuple(FIELDS)
    assert row[header.index("model_filename")] == 'a "b".gguf'
    assert text.splitlines()[1].startswith('"0c1e570","0","Intel(R) Xeon(R) Processor","","CPU","a ""b"".gguf",')


def test_sql_can_be_read_by_a_database() -> None:
    text = whole(printer("sql"), matrix(model=("it's.gguf",)))
    assert text.startswith("CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n  build_number INTEGER,\n")
    with sqlite3.connect(":memory:") as base:
        base.executescript(text)
        assert base.execute("SELECT model_filename, n_prompt, avg_ts, repack FROM llama_bench").fetchall() == [
            ("it's.gguf", 32, 33.791636, 1)
        ]
    base.close()


@pytest.mark.parametrize("name", FORMATS)
def test_an_interrupted_run_is_still_a_whole_output(name: str) -> None:
    out = printer(name)
    text = out.header(matrix(), MACHINE) + out.footer(MACHINE)
    assert name != "json" or json.loads(text) == []


def test_every_field_has_a_value() -> None:
    (test,) = matrix(devices=(("CUDA0", "CUDA1"),), tensor_split=((1.0, 0.0, 2.0, 0.0),)).tests()
    found = values(replace(measured(test), samples_ns=(5,)))
    assert tuple(found) == tuple(FIELDS)
    assert (found["devices"], found["tensor_split"], found["stddev_ns"]) == ("CUDA0/CUDA1", "1.00/0.00/2.00", "0")
    assert found["stddev_ts"] == "0.000000"
