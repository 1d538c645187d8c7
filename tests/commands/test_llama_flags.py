"""The command lines of llama.cpp's programs are known: each flag is accepted, or refused with what to do instead."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from minka.commands.arguments import resolve
from minka.commands.bash_completion import script
from minka.commands.llama_flags import Refuse
from minka.errors import UsageError
from minka.params import NOT_YET, ContextParams, HardwareParams, LoraParams, ModelParams, SamplingParams
from tests.commands.llama_flags import FLAGS, parser_of

ENGINE = ("serve", "chat", "complete", "batch")


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_of_the_upstream_tool_is_known(command: str) -> None:
    assert set(FLAGS[command].split()) - set(parser_of(command)._option_string_actions) == set()


def refused(command: str) -> Iterator[Refuse]:
    known = parser_of(command)._option_string_actions
    yield from {
        id(action): action for flag in FLAGS[command].split() if isinstance(action := known[flag], Refuse)
    }.values()


@pytest.mark.parametrize("command", FLAGS)
def test_what_is_refused_says_what_to_do(command: str) -> None:
    for action in refused(command):
        words = [action.option_strings[0], *["x"] * action.foreign.values]
        with pytest.raises(UsageError) as caught:
            parser_of(command).parse_args(words)
        assert str(caught.value).startswith(f"{words[0]} is a llama.cpp flag that ")
        assert action.foreign.note != NOT_YET


@pytest.mark.parametrize("command", ["perplexity", "imatrix", "batched-bench", "tokenize", "fit", "lora export"])
def test_flags_that_mean_nothing_to_a_tool_are_taken(command: str) -> None:
    line = (
        "--temp 0.5 --ignore-eos --sampler-seq kt -l 3-1 -n -1 --keep 4 --grammar x --spec-draft-type-k q8_0 -fit on "
        "--control-vector-layer-range 1 2 -dt 0.1"
    )
    parser = parser_of(command)
    parser.parse_args(shlex.split(line))
    with pytest.raises(UsageError, match="needs a value"):
        parser.parse_args(["--temp"])


def test_a_tool_knows_no_flag_of_the_server() -> None:
    for flag in ("--port", "--alias", "--cache-ram", "--mmproj"):
        with pytest.raises(UsageError, match=f"there is no flag {flag}"):
            parser_of("perplexity").parse_args([flag, "1"])


@pytest.mark.parametrize("command", [*ENGINE, "perplexity", "imatrix", "batched-bench", "cvector generate", "fit"])
def test_hardware_flags_are_the_same_everywhere(command: str) -> None:
    parser = parser_of(command)
    line = (
        "-ot exps=CPU,a=CPU -cmoe -ncmoe 2 -ncffn 1 -dev none -lzm off --override-kv a.b=int:4 --numa isolate "
        "-C 3 -Cr 0-1 --cpu-strict 1 --prio 1 --poll 0 "
        "-Cb 1 -Crb 1-2 --cpu-strict-batch 1 --prio-batch 0 --poll-batch 9"
    )
    words = ["in.jsonl", *shlex.split(line)] if command == "batch" else shlex.split(line)
    assert resolve(parser.parse_args(words), HardwareParams, {}) == HardwareParams(
        device=("none",),
        override_tensor=("exps=CPU", "a=CPU"),
        cpu_moe=True,
        n_cpu_moe=2,
        n_cpu_ffn=1,
        lazy_mode="off",
        override_kv=("a.b=int:4",),
        numa="isolate",
        cpu_mask="3",
        cpu_range="0-1",
        cpu_strict=1,
        prio=1,
        poll=0,
        cpu_mask_batch="1",
        cpu_range_batch="1-2",
        cpu_strict_batch=1,
        prio_batch=0,
        poll_batch=9,
    )


def test_a_command_line_of_llama_completion_works_unchanged() -> None:
    line = (
        "-m m.gguf -c 512 -b 1024 -n 256 --keep 48 --repeat-penalty 1.0 --color auto -i -r User: -f chat.txt "
        "--in-prefix ' ' --in-suffix 'AI:' -np 1 -gan 1 -gaw 512 -t 8 -ngl 99 --no-warmup -fa on --lora a.gguf"
    )
    parsed = parser_of("complete").parse_args(shlex.split(line))
    assert resolve(parsed, ModelParams, {}) == ModelParams(model="m.gguf", n_gpu_layers=99)
    assert resolve(parsed, ContextParams, {}).threads == 8
    assert resolve(parsed, SamplingParams, {}) == SamplingParams()
    assert resolve(parsed, LoraParams, {}).files == (("a.gguf", 1.0),)
    with pytest.raises(UsageError, match=r"-gan is a llama.cpp flag that .*: give --rope-scaling yarn"):
        parser_of("complete").parse_args(["-gan", "4"])


@pytest.mark.parametrize("command", [*ENGINE, "perplexity", "tokenize", "bench"])
def test_devices_are_listed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("minka.commands.llama_flags.device_list", lambda: "the devices")
    with pytest.raises(SystemExit) as end:
        parser_of(command).parse_args(["--list-devices"])
    assert (end.value.code, capsys.readouterr().out) == (0, "the devices\n")


# -- completion


def complete(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    given = shlex.join(words)
    run = f"{script()}\nCOMP_WORDS=({given}) COMP_CWORD={len(words) - 1}\n_minka\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_actions_and_flags() -> None:
    assert complete("minka", "imat") == ["imatrix"]
    assert complete("minka", "serve", "--override-") == ["--override-kv", "--override-tensor"]
    assert complete("minka", "lora", "ex") == ["export"]
    assert complete("minka", "lora", "export", "--lora") == ["--lora", "--lora-scaled"]
    assert complete("minka", "complete", "-m", "x.gguf", "--in-p") == ["--in-prefix", "--in-prefix-bos"]
    assert complete("minka", "serve", "-m", "mod") == [], "names of files are bash's"


def test_completion_leaves_out_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of("perplexity").parse_args(["--completion-bash"])
    text = capsys.readouterr().out
    assert text == f"{script()}\n"
    offered = set(re.findall(r"--?[\w.-]+", text))
    assert {"--override-tensor", "--hellaswag", "--system-prompt"} <= offered
    assert offered & {"--mmproj", "--model-url", "--grp-attn-n", "--defrag-thold"} == set()
