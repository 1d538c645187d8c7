from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from minka.cli import main
from minka.commands.quantize import COMMAND
from minka.errors import MinkaError, ModelError, NativeError, UsageError
from minka.ggufs.layout import TENSOR_TYPES
from minka.ggufs.read import open_gguf
from minka.ggufs.split import SplitRule, split
from minka.native.library import library
from minka.tools import QuantizeOptions, quantize
from minka.tools import quantize_child as child
from minka.tools.imatrix_file import Entry, Imatrix, write_dat, write_gguf
from minka.tools.quantize_types import FILE_TYPES
from minka.tools.quantize_worker import Job, work
from tests.tiny_fixtures import TinyModels
from tests.tools import quantize_golden as golden
from tests.tools.tiny_moe import write_moe

SLOW_TYPES = {"IQ1_S", "IQ1_M", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ2_XXS", "IQ3_XXS"}
BY_NAME = {row.name: row for row in TENSOR_TYPES.values()}
same_rounding = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or library().version != "0.5.0-dev",
    reason="the hashes were made on x86-64 with llama.cpp 0.5.0-dev",
)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the work be done here: it is what the child process does, without half a second for its start."""

    def follow(self: child.Child, process: subprocess.Popen[str], job: Job) -> int:
        try:
            work(Job.from_json(job.to_json()), self._on_event)
        except MinkaError as error:
            raise self._error(type(error).__name__, str(error)) from None
        return 0

    idle = [sys.executable, "-c", ""]
    monkeypatch.setattr(child, "_start", lambda remarks: subprocess.Popen(idle, text=True))
    monkeypatch.setattr(child.Child, "_follow", follow)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    golden.write_sources(folder)
    return folder


@pytest.fixture
def model(tiny_models: TinyModels, tmp_path: Path) -> Path:
    """A model in a folder of its own."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_models("llama").read_bytes())
    return path


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _types(path: Path) -> dict[str, str]:
    with open_gguf(path) as source:
        return {tensor.name: tensor.type.name for tensor in source.tensors}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# -- the very bytes of llama-quantize


def test_golden_covers_every_type() -> None:
    assert list(golden.BY_TYPE) == [row.name for row in FILE_TYPES]


@same_rounding
@pytest.mark.parametrize("name", golden.BY_TYPE)
@pytest.mark.usefixtures("in_process")
def test_types_match_llama_quantize(sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    if name in SLOW_TYPES and not os.environ.get("MINKA_ALL_TYPES"):
        pytest.skip("ggml takes seconds to build the tables of this type; set MINKA_ALL_TYPES to test it")
    monkeypatch.chdir(sources)
    options = QuantizeOptions(imatrix="imatrix.gguf", token_embedding_type="f16", output_tensor_type="f16")
    quantize("one.gguf", name, tmp_path / "out.gguf", options)
    assert _sha(tmp_path / "out.gguf") == golden.BY_TYPE[name]


@same_rounding
@pytest.mark.parametrize("words", golden.BY_OPTIONS)
@pytest.mark.usefixtures("in_process")
def test_options_match_llama_quantize(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.chdir(sources)
    *options, name = shlex.split(words)
    assert main(["quantize", *options, "two.gguf", str(tmp_path / "out.gguf"), name, "2"]) == 0
    assert _sha(tmp_path / "out.gguf") == golden.BY_OPTIONS[words]


@same_rounding
def test_the_child_process_does_the_same(sources: Path, tmp_path: Path) -> None:
    quantize(sources / "two.gguf", "15", tmp_path / "out.gguf", QuantizeOptions(threads=1))
    assert _sha(tmp_path / "out.gguf") == golden.BY_OPTIONS["Q4_K_M"]


# -- what llama-quantize has no hashes for


@pytest.mark.usefixtures("in_process")
def test_shards_are_kept(tiny_models: TinyModels, tmp_path: Path) -> None:
    with open_gguf(tiny_models("llama")) as source:
        shards = split(source, tmp_path / "in", SplitRule(max_tensors=8))
    whole = quantize(tiny_models("llama"), "q4_0", tmp_path / "whole.gguf")
    report = quantize(shards[0], "q4_0", tmp_path / "out.gguf", QuantizeOptions(keep_split=True))
    assert [path.name for path in report.paths] == [f"out-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    kept = {name: kind for path in report.paths for name, kind in _types(path).items()}
    assert kept == _types(whole.paths[0])
    assert GGUFReader(report.paths[2]).fields["split.no"].contents() == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "whole.gguf", *(path.name for path in shards), *(path.name for path in report.paths)
    }  # fmt: skip
    assert _sha(quantize(shards[0], "q4_0", tmp_path / "again.gguf").paths[0]) == _sha(whole.paths[0])


@pytest.mark.usefixtures("in_process")
def test_pruning_can_drop_a_shard_at_the_end_but_none_between(tiny_models: TinyModels, tmp_path: Path) -> None:
    with open_gguf(tiny_models("llama")) as source:
        shards = split(source, tmp_path / "in", SplitRule(max_tensors=5))
    kept = QuantizeOptions(keep_split=True, prune_layers=(1,))
    assert len(quantize(shards[0], "q4_0", tmp_path / "out", kept).paths) == 3
    with pytest.raises(UsageError, match=r"pruning would leave .*in-00002-of-00005.gguf without tensors"):
        quantize(shards[0], "q4_0", tmp_path / "out", replace(kept, prune_layers=(0,)))


@pytest.mark.usefixtures("in_process")
def test_pruned_layers_take_their_own_importance(tmp_path: Path, sources: Path) -> None:
    values = np.geomspace(1e-3, 1, 256, dtype=np.float32)
    for name, layer in (("own", 1), ("other", 0)):
        entry = {f"blk.{layer}.ffn_up.weight": Entry(values * 10, np.array([10]))}
        write_gguf(tmp_path / f"{name}.im", Imatrix(entry, (), 1, 10))

    def pruned(imatrix: str | None) -> Sequence[int]:
        options = QuantizeOptions(prune_layers=(0,), imatrix=imatrix and str(tmp_path / imatrix))
        path = quantize(sources / "two.gguf", "q4_0", tmp_path / "out.gguf", options).paths[0]
        tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
        assert "blk.1.ffn_up.weight" not in tensors
        return tensors["blk.0.ffn_up.weight"].data.tobytes()

    assert pruned("own.im") != pruned("other.im") == pruned(None)


@pytest.mark.usefixtures("in_process")
def test_both_forms_of_an_importance_matrix_do_the_same(tmp_path: Path, sources: Path) -> None:
    values = np.geomspace(0.5, 2, 256).astype(np.float32)
    found = Imatrix({"blk.0.ffn_up.weight": Entry(values * 64, np.array([64]))}, ("text.txt",), 2, 32)
    write_gguf(tmp_path / "im.gguf", found)
    write_dat(tmp_path / "im.dat", found)
    made = []
    for name in ("im.gguf", "im.dat"):
        report = quantize(sources / "one.gguf", "q4_0", tmp_path / name, QuantizeOptions(imatrix=tmp_path / name))
        made.append(GGUFReader(report.paths[0]))
        assert report.imatrix == (1, 2, ["text.txt"])
        tmp_path.joinpath(name).rename(tmp_path / f"{name}.quantized")
    assert [t.data.tobytes() for t in made[0].tensors] == [t.data.tobytes() for t in made[1].tensors]
    fields = made[1].fields
    assert fields["quantize.imatrix.file"].contents() == str(tmp_path / "im.dat")[:127]
    assert fields["quantize.imatrix.dataset"].contents() == "text.txt"
    assert fields["quantize.imatrix.entries_count"].contents() == 1
    assert fields["quantize.imatrix.chunks_count"].contents() == 2


@pytest.mark.usefixtures("in_process")
def test_experts(tmp_path: Path) -> None:
    source = write_moe(tmp_path / "moe.gguf")
    quantize(source, "MXFP4_MOE", tmp_path / "out.gguf")
    types = _types(tmp_path / "out.gguf")
    assert types["blk.0.ffn_up_exps.weight"] == "MXFP4"
    assert types["blk.0.ffn_gate_inp.weight"] == "F32"
    assert types["blk.0.attn_q.weight"] == "Q8_0"


@pytest.mark.usefixtures("in_process")
def test_a_dry_run_tells_the_very_sizes(model: Path) -> None:
    planned = quantize(model, "q5_k_m", options=QuantizeOptions(dry_run=True))
    assert planned.paths == ()
    assert _names(model.parent) == {"model.gguf"}
    done = quantize(model, "q5_k_m")
    assert done.paths == (model.with_name("ggml-model-Q5_K_M.gguf"),)
    assert planned.tensors == done.tensors
    with open_gguf(done.paths[0]) as made:
        assert done.after == sum(made.n_bytes(tensor) for tensor in made.tensors)
        assert done.n_elements == sum(tensor.n_elements for tensor in made.tensors)
        assert {tensor.name: tensor.type.name for tensor in made.tensors} == {
            tensor.name: tensor.target.name for tensor in done.tensors
        }
    with open_gguf(model) as source:
        assert done.before == sum(source.n_bytes(tensor) for tensor in source.tensors)


# -- the output appears whole or not at all


def test_an_interrupt_leaves_everything_as_it_was(model: Path) -> None:
    output = model.with_name("out.gguf")
    output.write_bytes(b"old")
    seen = []

    def interrupt(done: int, total: int) -> None:
        seen.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, "q4_0", output, progress=interrupt)
    assert len(seen) == 2
    assert output.read_bytes() == b"old"
    assert _names(model.parent) == {"model.gguf", "out.gguf"}


@pytest.mark.usefixtures("in_process")
def test_a_failure_leaves_everything_as_it_was(tiny_models: TinyModels, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"old")
    with pytest.raises(NativeError, match=r"cannot quantize .*nan.gguf: tensor 'output.weight' has invalid data"):
        quantize(tiny_models("nan"), "q4_0", output)
    with pytest.raises(NativeError, match="not within the file bounds"):
        quantize(tiny_models("truncated"), "q4_0", output)
    assert output.read_bytes() == b"old"
    assert _names(tmp_path) == {"out.gguf"}


@pytest.mark.usefixtures("in_process")
def test_an_output_is_replaced_and_keeps_its_mode(model: Path) -> None:
    output = model.with_name("out.gguf")
    output.write_bytes(b"old")
    output.chmod(0o640)
    quantize(model, "q8_0", output)
    assert output.stat().st_mode & 0o777 == 0o640
    assert _types(output)["output.weight"] == "Q8_0"


def test_a_process_that_dies_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, os; sys.stderr.write('ggml.c:1: GGML_ASSERT(x) failed\\n\\n'); sys.stderr.flush(); os.abort()"
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    start = subprocess.Popen
    monkeypatch.setattr(
        child, "_start", lambda remarks: start(command, stdin=pipe, stdout=pipe, stderr=remarks, text=True)
    )
    with pytest.raises(NativeError, match=r"was killed by signal 6: ggml.c:1: GGML_ASSERT\(x\) failed$"):
        quantize(model, "q4_0")
    assert _names(model.parent) == {"model.gguf"}


@pytest.mark.usefixtures("in_process")
def test_a_full_disk_is_seen_before_the_work(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(MinkaError, match=r"has 1000 B left, and the result needs .* KiB"):
        quantize(model, "q8_0")
    assert _names(model.parent) == {"model.gguf"}


@pytest.mark.usefixtures("in_process")
def test_a_write_that_fails_is_explained(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    real = child.Child.run
    monkeypatch.setattr(child.Child, "run", lambda self, target, folder: real(self, "/dev/full", folder))
    with pytest.raises(MinkaError, match=r"cannot write to .*: the disk is full"):
        quantize(model, "q8_0")
    assert _names(model.parent) == {"model.gguf"}


def test_progress_counts_the_bytes_of_the_source(model: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = quantize(model, "q4_0", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 22  # at the beginning, and after each of 21 tensors
    assert {total for _, total in seen} == {report.before}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == report.before


# -- what is refused


@pytest.mark.usefixtures("in_process")
def test_the_source_is_never_the_output(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    for output in (model, link, tmp_path / ".." / tmp_path.name / "model.gguf"):
        with pytest.raises(UsageError, match=r"output .* is the input"):
            quantize(model, "q4_0", output)
    with open_gguf(model) as source:
        shards = split(source, tmp_path / "in", SplitRule(max_tensors=8))
    with pytest.raises(UsageError, match="is the input"):
        quantize(shards[0], "q4_0", shards[1])
    with pytest.raises(UsageError, match="is the input"):
        quantize(shards[0], "q4_0", tmp_path / "in", QuantizeOptions(keep_split=True))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (QuantizeOptions(include_weights=("a",), exclude_weights=("b",)), UsageError, "cannot be used together"),
        (QuantizeOptions(max_buffer_size=0), UsageError, "at least 1"),
        (QuantizeOptions(prune_layers=(2,)), UsageError, "no layer 2 to prune: .* layers 0 to 1"),
        (QuantizeOptions(prune_layers=(0, 1)), UsageError, "leave no layer"),
        (QuantizeOptions(override_kv=(("general.alignment", "int", 64),)), UsageError, "cannot be overridden"),
        (QuantizeOptions(override_kv=(("k" * 128, "int", 64),)), UsageError, "1 to 127 bytes"),
        (QuantizeOptions(override_kv=(("k", "str", "é" * 64),)), UsageError, "more than the 127 bytes"),
        (QuantizeOptions(token_embedding_type="q4_k"), UsageError, "token_embd.weight has rows of 64 values"),
        (QuantizeOptions(output_tensor_type="q8_k"), UsageError, "no tensor type 'q8_k'"),
        (QuantizeOptions(tensor_types=(("attn_(v", "q8_0"),)), UsageError, "pattern of --tensor-type cannot be used"),
        (QuantizeOptions(imatrix="missing.gguf"), ModelError, "missing.gguf does not exist"),
    ],
)
def test_options_that_cannot_be(model: Path, options: QuantizeOptions, error: type[MinkaError], message: str) -> None:
    with pytest.raises(error, match=message):
        quantize(model, "q4_0", options=options)
    assert _names(model.parent) == {"model.gguf"}


@pytest.mark.usefixtures("in_process")
def test_importance_is_asked_for_where_libllama_would_abort(sources: Path, tmp_path: Path) -> None:
    def refused(name: str, options: QuantizeOptions) -> str:
        with pytest.raises(ModelError) as caught:
            quantize(sources / "one.gguf", name, tmp_path / "out.gguf", options)
        return str(caught.value)

    assert "blk.0.attn_k.weight cannot be IQ2_XXS" in refused("IQ2_XXS", QuantizeOptions())
    assert "give one with --imatrix" in refused("q4_0", QuantizeOptions(token_embedding_type="iq2_xxs"))
    pure = QuantizeOptions(pure=True, imatrix=sources / "imatrix.gguf")
    assert "output.weight cannot be IQ2_XXS" in refused("IQ2_XXS", pure)
    write_gguf(
        tmp_path / "im.gguf",
        Imatrix({"blk.0.attn_q.weight": Entry(np.ones(64, np.float32), np.ones(1, int))}, (), 1, 1),
    )
    other = refused("q4_0", QuantizeOptions(imatrix=tmp_path / "im.gguf"))
    assert "has 64 values for blk.0.attn_q.weight, which needs 256" in other


@pytest.mark.usefixtures("in_process")
def test_quantized_sources_need_a_yes(model: Path) -> None:
    once = quantize(model, "q8_0").paths[0]
    with pytest.raises(UsageError, match=r"is quantized already \(Q8_0\).*--allow-requantize"):
        quantize(once, "q4_0")
    quantize(once, "q4_0", options=QuantizeOptions(allow_requantize=True))
    quantize(once, "copy")


@pytest.mark.usefixtures("in_process")
def test_files_that_are_no_models(tiny_models: TinyModels, tmp_path: Path, sources: Path) -> None:
    for path, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (tiny_models("not-gguf"), "no GGUF file"),
        (sources / "imatrix.gguf", "is an importance matrix"),
        (tiny_models("lora"), "key not found"),
    ):
        with pytest.raises(MinkaError, match=message):
            quantize(path, "q4_0", tmp_path / "out.gguf")
    assert _names(tmp_path) == set()


def test_an_alignment_that_libllama_would_spoil(tiny_models: TinyModels, tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    words = ["gguf", "metadata", "new", str(tiny_models("llama")), str(path), "--set", "general.alignment=u32:64"]
    assert main(words) == 0
    with pytest.raises(ModelError, match="alignment of 64"):
        quantize(path, "q4_0")


# -- the command


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["quantize", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("in_process")
def test_the_command_prints_a_summary(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, model, "Q4_K_M")
    assert code == 0
    assert out.splitlines()[:5] == [
        "type  tensors    before     after  bits/weight",
        "Q5_0       13   376 KiB  64.6 KiB         5.50",
        "Q8_0        3   168 KiB  44.6 KiB         8.50",
        "F32         5  1.25 KiB  1.25 KiB        32.00",
        "all        21   545 KiB   110 KiB         6.49",
    ]
    assert re.fullmatch(r"wrote .*/ggml-model-Q4_K_M.gguf in [\d.]+ s", out.splitlines()[-1])
    assert err.splitlines()[0] == "12 tensors with rows of 64 values cannot be q4_K: q5_0 instead"


@pytest.mark.usefixtures("in_process")
def test_the_command_plans(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--dry-run", "--tensor-type", "attn_v=f16", model, "--pure", "q8_0")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["tensor", "shape", "from", "to", "before", "after"]
    assert "blk.0.attn_v.weight       64 x 32   F32   F16     8 KiB     4 KiB" in lines
    assert lines[-1] == "Q8_0: nothing was written"
    assert _names(model.parent) == {"model.gguf"}


@pytest.mark.usefixtures("in_process")
def test_the_first_pattern_decides_wherever_it_comes_from(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = model.with_name("types.txt")
    listed.write_text("attn_k=q5_1 attn_q=q4_1")
    flags = ("--tensor-type", "attn_q=f32", "--tensor-type-file", listed, "--tensor-type", "attn_k=f32")
    assert _run(capsys, *flags, model, model.with_name("out.gguf"), "q8_0")[0] == 0
    types = _types(model.with_name("out.gguf"))
    assert (types["blk.1.attn_q.weight"], types["blk.1.attn_k.weight"]) == ("F32", "Q5_1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("m.gguf",), "required"),
        (("m.gguf", "q9"), "there is no type 'q9'"),
        (("m.gguf", "out.gguf", "q9"), "there is no type 'q9'"),
        (("m.gguf", "out.gguf", "q4_0", "two"), "number of threads"),
        (("m.gguf", "q4_0", "2", "3"), "one word too many: 3"),
        (("m.gguf", "q4_0", "--prune-layers", "1,x"), "--prune-layers must be numbers"),
        (("m.gguf", "q4_0", "--tensor-type", "x"), "is not NAME=TYPE"),
        (("m.gguf", "q4_0", "--max-buffer-size", "0"), "at least 1"),
        (("m.gguf", "q4_0", "--no-such-flag"), "no flag --no-such-flag"),
    ],
)
def test_bad_command_lines_are_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = _run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert (err.startswith("minka quantize: "), err.count("\n")) == (True, 1)


def _flags() -> Iterator[str]:
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    for action in parser._actions:
        yield from (flag for flag in action.option_strings if flag.startswith("--"))


def test_every_flag_and_type_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools" / "quantize.md").read_text(encoding="utf-8")
    assert sorted(flag for flag in set(_flags()) - {"--help"} if f"`{flag}" not in page) == []
    assert sorted(row.name for row in FILE_TYPES if f"`{row.name}`" not in page) == []
    _, out, _ = _run(capsys, "--help")
    assert "usage: minka quantize [options] IN [OUT] TYPE [NTHREADS]\n" in out
    assert "  15  Q4_K_M     4.89 bits per weight" in out


def test_help_is_cheap() -> None:
    code = (
        "import sys; from minka.cli import main; main(['quantize', '--help']); "
        "print([m for m in ('numpy', 'llama_cpp', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
