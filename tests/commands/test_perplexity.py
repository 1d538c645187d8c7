from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.commands.perplexity import INTERRUPTED
from minka.native.raw import RawBatch, RawContext
from minka.tools.perplexity_base import BaseReader
from tests.tiny import write_llama
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka
from tests.tools.texts import choice_file, hellaswag_file, story, winogrande_file

__all__ = ["minka"]

QUIET = ("-t", "1", "--no-warmup")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(story())
    return path


@pytest.fixture
def interrupt_decode(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A Ctrl-C comes at the decode whose number is put into the list."""
    at, count, decode = [10**9], [0], RawContext.decode

    def decode_or_not(context: RawContext, batch: RawBatch) -> None:
        count[0] += 1
        if count[0] == at[0]:
            raise KeyboardInterrupt
        decode(context, batch)

    monkeypatch.setattr(RawContext, "decode", decode_or_not)
    yield at
    assert count[0] == at[0]


def test_a_plain_run_prints_entries_and_an_estimate(minka: Minka, tiny_models: TinyModels, text: Path) -> None:
    result = minka("perplexity", "-m", tiny_models("llama"), "-f", text, "-c", 128, "--chunks", 6, *QUIET)
    assert result.code == 0
    entries, estimate = result.out.splitlines()
    numbers = [float(number) for number in re.findall(r"\[\d\]([\d.]+),", entries)]
    assert numbers == pytest.approx([31083.8340, 26745.0701, 30309.7662, 27146.0560, 31028.9604, 31329.7969], rel=5e-4)
    assert re.fullmatch(r"Final estimate: PPL = 313\d\d\.\d{4} \+/- 59\d\d\.\d{5}", estimate)
    assert re.search(r"6 chunks, n_ctx=128, n_batch=2048, n_seq=16", result.err)
    assert re.search(r"^\d+\.\d\d seconds per pass - ETA 0\.0\d minutes$", result.err, re.MULTILINE)


def test_lines_for_plotting_with_and_without_a_stride(minka: Minka, tiny_models: TinyModels, text: Path) -> None:
    words = ("perplexity", "-m", tiny_models("llama"), "-f", text, "-c", 64, "-b", 64, "--chunks", 3, *QUIET)
    plain = minka(*words, "--ppl-output-type", 1).out.splitlines()
    assert [line.split()[0] for line in plain[:3]] == ["0", "64", "128"]
    assert plain[-1].startswith("Final estimate")
    strided = minka(*words, "--ppl-output-type", "1", "--ppl-stride", 16).out.splitlines()
    assert [line.split()[0] for line in strided if line] == ["0", "16", "32"]
    entries = minka(*words, "--ppl-stride", 16).out
    assert re.fullmatch(r"\[1\][\d.]+,\[2\][\d.]+,\[3\][\d.]+,\n", entries)


def test_one_line_end_of_a_text_file_is_dropped_and_none_of_a_binary(
    minka: Minka, tiny_models: TinyModels, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a b c\n" * 3)
    counts = []
    for flag in ("-f", "-bf"):
        result = minka("perplexity", "-m", tiny_models("llama"), flag, tmp_path / "a", "-c", 4, *QUIET)
        counts.append(int(re.findall(r"(\d+) tokens", result.err)[0]))
    assert counts[1] == counts[0] + 1


def test_the_text_may_be_on_the_command_line(minka: Minka, tiny_models: TinyModels) -> None:
    words = ("perplexity", "-m", tiny_models("llama"), "-c", 4, *QUIET, "-p", "a\\tb " * 4)
    errs = [minka(*words, *more).err for more in ((), ("-e",), ("--no-escape",))]
    tokens = [int(re.findall(r"(\d+) tokens", err)[0]) for err in errs]
    assert tokens[0] == tokens[2] > tokens[1]


def test_a_base_file_is_written_and_compared_with(
    minka: Minka, tiny_models: TinyModels, text: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    result = minka(
        "perplexity", "-m", tiny_models("llama"), "-f", text, "-c", 64, "--chunks", 5, *QUIET,
        "--kl-divergence-base", base,
    )  # fmt: skip
    assert result.code == 0
    other = write_llama(tmp_path / "other.gguf", seed=1)
    compared = minka("perplexity", "-m", other, "--kl-divergence", "--save-all-logits", base, *QUIET)
    lines = compared.out.splitlines()
    assert lines[0].startswith("chunk             PPL")
    assert [line.split()[0] for line in lines[1:6]] == ["1", "2", "3", "4", "5"]
    assert "====== KL divergence statistics ======" in lines
    assert lines[-1].startswith("Same top p: ")


@pytest.mark.parametrize(
    ("name", "data", "flag", "n_lines", "last"),
    [
        ("hellaswag", hellaswag_file(), "-f", 9, r"8\t62\.50000000%\t\[30\.5742%, 86\.3156%\]"),
        ("winogrande", winogrande_file(), "-bf", 10, r"10\t40\.0000\t-1\d\.\d{6}  -1\d\.\d{6}  1  2"),
        ("multiple-choice", choice_file(), "-bf", 12, r"Random chance: 33\.3333 \+/- 17\.8174"),
    ],
)
def test_tasks_are_scored(
    minka: Minka, tiny_models: TinyModels, tmp_path: Path, name: str, data: bytes, flag: str, n_lines: int, last: str
) -> None:
    (tmp_path / "tasks").write_bytes(data)
    words = ("perplexity", "-m", tiny_models("llama"), f"--{name}", flag, tmp_path / "tasks", *QUIET)
    result = minka(*words)
    lines = result.out.splitlines()
    assert (result.code, len(lines)) == (0, n_lines)
    assert re.fullmatch(last, lines[-1])
    some = [line for line in minka(*words, f"--{name}-tasks", 2).out.splitlines() if re.match(r"\d+\t", line)]
    assert [line.split("\t")[0] for line in some] == ["1", "2"]


def test_an_interrupt_prints_what_was_scored(
    minka: Minka, tiny_models: TinyModels, text: Path, tmp_path: Path, interrupt_decode: list[int]
) -> None:
    interrupt_decode[0] = 4
    result = minka(
        "perplexity", "-m", tiny_models("llama"), "-f", text, "-c", 64, "-b", 64, "--chunks", 9,
        "--kl-divergence-base", tmp_path / "base", *QUIET,
    )  # fmt: skip
    assert result.code == INTERRUPTED
    assert result.out.count("[") == 3
    assert "Final estimate: PPL = " in result.out
    assert "interrupted after 3 of 9 chunks" in result.err
    with BaseReader(tmp_path / "base") as base:
        assert base.head.n_chunks == 3


def test_an_interrupt_before_the_first_result_prints_none(
    minka: Minka, tiny_models: TinyModels, text: Path, interrupt_decode: list[int]
) -> None:
    interrupt_decode[0] = 1
    result = minka("perplexity", "-m", tiny_models("llama"), "-f", text, "-c", 64, *QUIET)
    assert (result.code, result.out.strip()) == (INTERRUPTED, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no text"),
        (("-f", "missing.txt"), "cannot read missing.txt: No such file"),
        (("-p", "hello"), "has only"),
        (("-p", "x", "-c", "0"), "--ctx-size must be"),
        (("-p", "x", "-c", "x"), "--ctx-size must be"),
        (("--kl-divergence",), "needs a base file"),
        (("--kl-divergence", "--kl-divergence-base", "missing"), "cannot read the base file missing"),
        (("--hellaswag", "-p", "x", "--hellaswag-tasks", "0"), "leaves no task"),
        (("--hellaswag", "--winogrande", "-p", "x"), "not allowed with"),
        (("-p", "x", "-f", "y"), "not allowed with"),
        (("-p", "x", "-dev", "CUDA9"), "no device 'CUDA9'"),
        (("-p", "x", "--ppl-output-type", "2"), "invalid choice"),
        (("--no-such-flag",), "there is no flag --no-such-flag"),
    ],
)
def test_a_bad_command_line_is_one_line(
    minka: Minka, tiny_models: TinyModels, words: tuple[str, ...], message: str
) -> None:
    result = minka("perplexity", "-m", tiny_models("llama"), *QUIET, *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_the_flags_of_llama_cpps_other_tools_are_taken(minka: Minka, tiny_models: TinyModels, text: Path) -> None:
    sampling = ("--temp", 0, "-s", 1, "--ignore-eos", "-l", "5-1")
    threads = ("-C", "0x1", "--prio", 0, "-np", 2)
    weights = ("-lzm", "off", "--override-kv", "llama.context_length=int:99")
    words = ("perplexity", "-m", tiny_models("llama"), "-f", text, "--chunks", 1, *QUIET)
    result = minka(*words, *sampling, *threads, *weights)
    assert result.code == 0
    assert "trained on 99 tokens" in result.err


def test_the_size_may_come_from_the_environment(
    minka: Minka, tiny_models: TinyModels, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "32")
    result = minka("perplexity", "-m", tiny_models("llama"), "-f", text, "--chunks", 2, *QUIET)
    assert "n_ctx=32" in result.err
