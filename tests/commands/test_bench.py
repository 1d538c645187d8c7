from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.commands.bench import INTERRUPTED, PARAMETERS
from minka.native.raw import RawBatch, RawContext
from minka.tools.bench_serve import LoadTest
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka
from tests.tools.servers import openai, serving

__all__ = ["minka"]

SMALL = ("-t", "1", "-p", "8", "-r", "2")


def test_a_table_of_the_standard_tests(minka: Minka, tiny_models: TinyModels) -> None:
    result = minka("bench", "-m", tiny_models("llama"), *SMALL, "-n", 2)
    assert (result.code, result.err) == (0, "")
    titles, _, first, second, _, build = result.out.splitlines()
    assert titles.endswith("| threads |            test |                  t/s |")
    assert "|             pp8 |" in first
    assert "|             tg2 |" in second
    assert build.startswith("build: minka-")


def test_lists_ranges_and_repeated_flags_make_a_matrix(minka: Minka, tiny_models: TinyModels) -> None:
    result = minka(
        "bench", "-m", tiny_models("llama"), "-t", 1, "-r", 1, "--no-warmup", "-p", "4-8+4", "-p", "16", "-n", 0,
        "-pg", "4,2", "-d", "0,8", "-b", "8,64", "-fa", "on,off", "-o", "jsonl",
    )  # fmt: skip
    found = [json.loads(line) for line in result.out.splitlines()]
    shapes = [(4, 0), (8, 0), (16, 0), (4, 2)]
    assert [(one["n_batch"], one["flash_attn"], one["n_depth"], (one["n_prompt"], one["n_gen"])) for one in found] == [
        (n_batch, flash, depth, shape)
        for n_batch in (8, 64)
        for flash in (1, 0)
        for depth in (0, 8)
        for shape in shapes
    ]
    assert all(len(one["samples_ns"]) == 1 for one in found)


def test_models_between_commas_and_both_outputs(minka: Minka, tiny_models: TinyModels) -> None:
    models = f"{tiny_models('llama')},{tiny_models('bpe')}"
    result = minka("bench", "-m", models, *SMALL, "-n", 0, "-o", "json", "-oe", "csv")
    assert [one["model_filename"] for one in json.loads(result.out)] == models.split(",")
    assert len(result.err.splitlines()) == 3
    assert minka("bench", "-m", models, *SMALL, "-n", 2, "-o", "none").out == ""


def test_progress_is_a_line_a_step(minka: Minka, tiny_models: TinyModels) -> None:
    err = minka("bench", "-m", tiny_models("llama"), *SMALL, "-n", 0, "--progress").err.splitlines()
    assert err == [
        f"minka bench: benchmark 1/1: {text}" for text in ("starting", "warmup run", "pp8 run 1/2", "pp8 run 2/2")
    ]


def test_every_parameter_reaches_the_results(minka: Minka, tiny_models: TinyModels) -> None:
    given = {
        "-C": "0x1", "--cpu-strict": "1", "--poll": "0", "-ctk": "bf16", "-ngl": "5", "-sm": "none", "-mg": "0",
        "-nkvo": "1", "-lm": "none", "-lzm": "off", "-embd": "1", "-ts": "2/1", "-ot": "ffn.*=CPU", "-nopo": "1",
        "--no-host": "1", "--repack": "0", "-dev": "none", "-ncmoe": "1", "-ub": "4",
    }  # fmt: skip
    words = [word for pair in given.items() for word in pair]
    result = minka("bench", "-m", tiny_models("llama"), *SMALL, "-n", 0, "-o", "jsonl", *words)
    found = json.loads(result.out)
    expected = {
        "cpu_mask": "0x1", "cpu_strict": True, "poll": 0, "type_k": "bf16", "n_gpu_layers": 5, "split_mode": "none",
        "no_kv_offload": True, "load_mode": "none", "lazy_mode": "off", "embeddings": True, "tensor_split": "2.00/1.00",
        "tensor_buft_overrides": "ffn.*=CPU", "no_op_offload": 1, "no_host": True, "repack": False, "devices": "none",
        "n_cpu_moe": 1, "n_ubatch": 4,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-p", "x"), "--n-prompt: 'x' is no number"),
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("-fa", "maybe"), "--flash-attn: 'maybe'"),
        (("-ctk", "q3_k"), "--cache-type-k: 'q3_k' is not one of"),
        (("-t", "0"), "--threads: 0 is outside"),
        (("-ot", "x"), "--override-tensor: 'x' puts no tensor anywhere"),
        (("-ot", "x=GPU"), "no buffer type 'GPU'"),
        (("-dev", "GPU"), "--device: there is no device 'GPU'"),
        (("--poll", "101"), "--poll: 101 is outside"),
        (("-fitt", "512"), "--fit-target"),
        (("-r", "0"), "--repetitions"),
        (("--delay", "-1"), "--delay"),
        (("--rpc", "host:1"), "--rpc is not supported"),
        (("-o", "xml"), "invalid choice"),
    ],
)
def test_a_bad_command_line_is_one_line(
    minka: Minka, tiny_models: TinyModels, words: tuple[str, ...], message: str
) -> None:
    result = minka("bench", "-m", tiny_models("llama"), *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_missing_model_is_one_line(minka: Minka, tmp_path: Path) -> None:
    result = minka("bench", "-m", tmp_path / "none.gguf")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "none.gguf" in result.err


def test_an_interrupt_prints_what_was_measured(
    minka: Minka, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, decode = [0], RawContext.decode

    def decode_or_not(context: RawContext, batch: RawBatch) -> None:
        count[0] += 1
        if count[0] == 6:  # a warm-up and two runs of pp8, a warm-up and a run of pp4, and the second one
            raise KeyboardInterrupt
        decode(context, batch)

    monkeypatch.setattr(RawContext, "decode", decode_or_not)
    result = minka("bench", "-m", tiny_models("llama"), *SMALL, "-p", "4", "-n", 0)
    assert result.code == INTERRUPTED
    rows = [line for line in result.out.splitlines() if "pp" in line]
    assert [row.split("|")[6].strip() for row in rows] == ["pp8", "pp4"]
    assert rows[1].endswith("± 0.00 |")
    assert result.out.splitlines()[-1].startswith("build: ")
    assert "1 runs only" in result.err


def test_every_parameter_is_documented(minka: Minka) -> None:
    text = minka("bench", "--help").out
    assert all(flag in text for parameter in PARAMETERS for flag in parameter.flags)
    page = (Path(__file__).parents[2] / "docs/tools/bench.md").read_text()
    assert all(f"`{parameter.flags[0]}`" in page for parameter in PARAMETERS)


def test_devices_are_listed(minka: Minka) -> None:
    result = minka("bench", "--list-devices")
    assert result.code == 0
    assert result.out.startswith("Available devices:\n  ")


# -- bench serve


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers at once, on a loop of its own."""
    ready, stop, urls = threading.Event(), asyncio.Event(), list[str]()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(openai) as served:
            urls.append(served.url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    yield urls[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


def test_a_server_is_measured(minka: Minka, server: str, tmp_path: Path) -> None:
    result = minka(
        "bench", "serve", server, "--clients", "1,2", "-n", 3, "--input-tokens", 8, "--output-tokens", 4,
        "-o", tmp_path / "load.json", "--plot", tmp_path / "load.svg",
    )  # fmt: skip
    assert result.code == 0
    assert result.out.startswith("random, 8 tokens in, 4 out")
    assert json.loads((tmp_path / "load.json").read_text())["levels"][1]["clients"] == 2
    assert (tmp_path / "load.svg").read_text().startswith("<svg")
    assert result.err.splitlines() == [f"wrote {tmp_path / 'load.json'}", f"wrote {tmp_path / 'load.svg'}"]


@pytest.mark.parametrize(
    ("words", "dataset"),
    [
        (("--dataset", "shared-prefix", "--prefix-tokens", "9"), "shared prefix of 9 + 128 tokens in"),
        (("--dataset", "multi-turn", "--turns", "2"), "2 turns of 128 tokens in"),
        (("--file", "prompts.txt"), "prompts.txt, 1 conversations"),
        (("--dataset", "file", "--file", "prompts.txt", "--api", "completions"), "prompts.txt, 1 conversations"),
    ],
)
def test_datasets_can_be_chosen(
    minka: Minka, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], dataset: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("Tell me a story.\n")
    result = minka("bench", "serve", server, "--clients", 1, "-n", 2, "--json", *words)
    found = json.loads(result.out)
    assert found["dataset"] == dataset
    assert found["levels"][0]["requests"] == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("ftp://x",), 2, "no URL of a server"),
        (("http://127.0.0.1:1",), 1, "does not answer"),
        (("http://a", "--vs", "http://a"), 2, "are the same"),
        (("http://a", "--plot", "a.pdf"), 2, "an .svg or a .png"),
        (("http://a", "--clients", "0"), 2, "outside of 1"),
        (("http://a", "--extra-body", "[1]"), 2, "must be a JSON object"),
        (("http://a", "--extra-body", "{"), 2, "must be a JSON object"),
        (("http://a", "--dataset", "file"), 2, "belong together"),
        (("http://a", "--dataset", "random", "--file", "x"), 2, "belong together"),
        (("http://a", "--input-tokens", "0"), 2, "at least 1"),
        (("http://a", "-n", "-1"), 2, "greater than 0"),
        ((), 2, "URL"),
    ],
)
def test_a_bad_load_test_is_one_line(minka: Minka, words: tuple[str, ...], code: int, message: str) -> None:
    result = minka("bench", "serve", *words)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_an_interrupted_load_test_prints_its_levels(minka: Minka, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LoadTest.run

    async def until_level_two(test: LoadTest) -> object:
        await run(test)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoadTest, "run", until_level_two)
    result = minka("bench", "serve", server, "--clients", 1, "-n", 2)
    assert result.code == INTERRUPTED
    assert "random, 128 tokens in" in result.out
    assert "interrupted" in result.err
