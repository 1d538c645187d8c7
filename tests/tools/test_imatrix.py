from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from minka.cli import main
from minka.commands.imatrix import COMMAND
from minka.errors import MinkaError, ModelError, UsageError
from minka.native.model import Model
from minka.native.observer import Product
from minka.params import ContextParams, ModelParams
from minka.tools import ImatrixOptions, imatrix
from minka.tools.imatrix_collect import Collector
from minka.tools.imatrix_file import Imatrix, read_imatrix
from tests.tiny_fixtures import TinyModels
from tests.tools import imatrix_golden as golden
from tests.tools.llama_reference import Llama

EXACT = ContextParams(threads=1, flash_attn="off", cache_type_k="f32", cache_type_v="f32")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    golden.write_sources(folder)
    return folder


@pytest.fixture(autouse=True)
def quiet_root() -> Iterator[None]:
    """The command sets logging up for the process; undo it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def _collect(
    folder: Path, options: ImatrixOptions, *, name: str = "llama", context: ContextParams = EXACT, size: int = 64
) -> Imatrix:
    imatrix(options, ModelParams(model=str(folder / f"{name}.gguf")), replace(context, n_ctx=size))
    return read_imatrix(options.output)


def _text(folder: Path, output: Path, **more: object) -> ImatrixOptions:
    return replace(ImatrixOptions(file=folder / "text.txt", output=output, perplexity=False), **more)  # type: ignore[arg-type]


def _assert_close(left: Imatrix, right: Imatrix, rtol: float) -> None:
    assert left.entries.keys() == right.entries.keys()
    for weight, entry in left.entries.items():
        np.testing.assert_array_equal(entry.counts, right.entries[weight].counts)
        np.testing.assert_allclose(entry.sums, right.entries[weight].sums, rtol=rtol)


# -- values


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_values_and_perplexity_are_those_of_numpy(sources: Path, tmp_path: Path, name: str) -> None:
    text = golden.words(150)
    params = ModelParams(model=str(sources / f"{name}.gguf"))
    options = ImatrixOptions(text=text, output=tmp_path / "out.gguf", process_output=True)
    report = imatrix(options, params, replace(EXACT, n_ctx=96))
    loaded = Model.load(sources / f"{name}.gguf", params)
    tokens = np.array(loaded.vocab.tokenize(text, add_special=True, parse_special=False), np.int32)
    bos = loaded.vocab.bos
    loaded.close()
    reference, losses = Llama(sources / f"{name}.gguf"), []
    chunks = tokens[: len(tokens) // 96 * 96].reshape(-1, 96)
    for chunk in chunks:
        logits = reference.evaluate(np.array([bos, *chunk[1:]], np.int32))
        shifted = logits - logits.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        losses += [-logs[i, chunk[i + 1]] for i in range(48, 95)]
    found = read_imatrix(options.output)
    assert set(found.entries) == set(reference.seen)
    for weight, entry in found.entries.items():
        sums, counts = reference.sums(weight)
        assert entry.counts.tolist() == counts
        np.testing.assert_allclose(entry.sums, sums, rtol=1e-4)
    assert report.perplexity is not None
    assert report.perplexity.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    error = np.exp(np.mean(losses)) * np.std(losses) / np.sqrt(len(losses) - 1)
    assert report.perplexity.error == pytest.approx(error, rel=1e-4)
    assert (report.n_chunks, report.chunk_count, report.chunk_size) == (len(chunks), len(chunks), 96)


@pytest.mark.parametrize("name", golden.COLLECTED)
def test_values_and_perplexity_are_those_of_llama_imatrix(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(sources)
    options = ImatrixOptions(file="text.txt", output=tmp_path / "out.gguf", process_output=True)
    report = imatrix(options, ModelParams(model=f"{name}.gguf"), ContextParams(n_ctx=64, n_batch=128, threads=1))
    found = read_imatrix(options.output)
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("text.txt",), 14, 64)
    values, perplexity, error = golden.COLLECTED[name]
    for weight, (total, counts) in values.items():
        sums = found.entries[weight].sums.astype(np.float64)
        assert sums @ np.arange(sums.size) == pytest.approx(total, rel=1e-4)
        assert found.entries[weight].counts.tolist() == counts
    assert report.perplexity is not None
    assert report.perplexity.value == pytest.approx(perplexity, rel=1e-3)
    assert report.perplexity.error == pytest.approx(error, rel=1e-3)


def test_batches_do_not_change_the_values(sources: Path, tmp_path: Path) -> None:
    whole = _collect(sources, _text(sources, tmp_path / "a.gguf"), context=replace(EXACT, n_batch=64))
    pieces = _collect(sources, _text(sources, tmp_path / "b.gguf"), context=replace(EXACT, n_batch=24))
    together = _collect(sources, _text(sources, tmp_path / "c.gguf"), context=replace(EXACT, n_batch=512))
    _assert_close(whole, together, 1e-4)
    # 64 tokens are pieces of 24, 24 and 16.
    _assert_close(whole, pieces, 1e-4)


def test_perplexity_of_pieces_is_that_of_the_whole(sources: Path, tmp_path: Path) -> None:
    params = ModelParams(model=str(sources / "llama.gguf"))
    options = _text(sources, tmp_path / "out.gguf", perplexity=True)
    found = [imatrix(options, params, replace(EXACT, n_ctx=64, n_batch=n)).perplexity for n in (64, 24, 512)]
    assert all(one is not None and one.value == pytest.approx(found[0].value, rel=1e-5) for one in found if found[0])
    assert found[0] is not None


def test_a_sliding_window_takes_one_part_at_a_time(tiny_models: TinyModels, sources: Path, tmp_path: Path) -> None:
    text = ImatrixOptions(file=sources / "text.txt", output=tmp_path / "out.gguf", chunks=4)
    params = ModelParams(model=str(tiny_models("swa")))
    context = replace(EXACT, n_ctx=64, n_ubatch=128)
    report = imatrix(text, params, context)
    assert report.n_entries == 14
    small = imatrix(text, params, replace(context, n_batch=64, n_ubatch=64))
    assert report.perplexity is not None
    assert small.perplexity is not None
    assert report.perplexity.value == pytest.approx(small.perplexity.value, rel=1e-4)


def test_recurrent_models(tiny_models: TinyModels, sources: Path, tmp_path: Path) -> None:
    options = _text(sources, tmp_path / "out.gguf", chunks=2)
    imatrix(options, ModelParams(model=str(tiny_models("recurrent"))), replace(EXACT, n_ctx=64))
    found = read_imatrix(options.output)
    assert {"blk.0.ssm_in.weight", "blk.1.ssm_out.weight"} <= set(found.entries)
    assert all(entry.counts.tolist() == [128] for entry in found.entries.values())


# -- which text


def test_chunks_of_the_text(sources: Path, tmp_path: Path) -> None:
    def counts(**more: object) -> int:
        found = _collect(sources, _text(sources, tmp_path / "out.gguf", **more))
        return found.entries["blk.0.attn_q.weight"].n_rows // 64

    assert (counts(), counts(chunks=3), counts(from_chunk=12), counts(from_chunk=3, chunks=4)) == (14, 3, 2, 4)
    first = _collect(sources, _text(sources, tmp_path / "1.gguf", chunks=2))
    rest = _collect(sources, _text(sources, tmp_path / "2.gguf", from_chunk=2, in_files=(tmp_path / "1.gguf",)))
    whole = _collect(sources, _text(sources, tmp_path / "3.gguf"))
    _assert_close(rest, whole, 1e-4)
    assert first.chunk_count == 2
    assert rest.datasets == (str(sources / "text.txt"),) * 2


def test_control_tokens_in_the_text(sources: Path, tmp_path: Path) -> None:
    text = "<|im_end|> " * 60
    rows = []
    for parse_special in (False, True):
        options = ImatrixOptions(text=text, output=tmp_path / "out.gguf", parse_special=parse_special, perplexity=False)
        rows.append(_collect(sources, options, size=32).chunk_count)
    assert rows[0] > 3 * rows[1] > 0


def test_output_is_collected_on_request(sources: Path, tmp_path: Path) -> None:
    options = _text(sources, tmp_path / "out.gguf", chunks=1)
    assert "output.weight" not in _collect(sources, options).entries
    assert "output.weight" in _collect(sources, replace(options, process_output=True)).entries


# -- saving


def test_the_file_is_what_llama_cpp_reads(sources: Path, tmp_path: Path) -> None:
    options = _text(sources, tmp_path / "out.gguf", chunks=2)
    _collect(sources, options, name="moe")
    reader = GGUFReader(options.output)
    assert [name for name in reader.fields if "." in name and not name.startswith("GGUF.")] == [
        "general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
    ]  # fmt: skip
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert list(shapes) == sorted(shapes, key=lambda name: (name.rpartition(".")[0], name.endswith(".counts")))
    assert shapes["blk.0.ffn_up_exps.weight.in_sum2"] == [64, 4]
    assert shapes["blk.0.ffn_up_exps.weight.counts"] == [1, 4]
    assert shapes["blk.0.attn_q.weight.in_sum2"] == [64]


def test_resuming_makes_the_file_that_would_have_been_made(sources: Path, tmp_path: Path) -> None:
    one_at_a_time = replace(EXACT, n_batch=64)
    whole = _text(sources, tmp_path / "whole.gguf", chunks=9)
    _collect(sources, whole, context=one_at_a_time)
    part = _text(sources, tmp_path / "part.gguf", chunks=4, resume=True)
    _collect(sources, part, context=one_at_a_time)
    report = imatrix(
        replace(part, chunks=9), ModelParams(model=str(sources / "llama.gguf")), replace(one_at_a_time, n_ctx=64)
    )
    assert (report.n_chunks, report.chunk_count) == (5, 9)
    assert part.output.read_bytes() == whole.output.read_bytes()
    again = imatrix(
        replace(part, chunks=9), ModelParams(model=str(sources / "llama.gguf")), replace(one_at_a_time, n_ctx=64)
    )
    assert (again.n_chunks, part.output.read_bytes()) == (0, whole.output.read_bytes())


def test_what_cannot_be_resumed(sources: Path, tmp_path: Path) -> None:
    done = _text(sources, tmp_path / "out.gguf", chunks=2, resume=True)
    _collect(sources, done)
    other = tmp_path / "other.txt"
    other.write_text(golden.words(400))
    for options, size, message in (
        (replace(done, file=other), 64, "does not come from this --file alone"),
        (replace(done, in_files=(done.output,)), 64, "does not come from this --file alone"),
        (done, 32, r"chunks of 64 tokens, so it cannot be resumed with chunks of 32"),
    ):
        with pytest.raises(UsageError, match=message):
            _collect(sources, options, size=size)


def test_copies_and_an_interrupt(sources: Path, tmp_path: Path) -> None:
    options = _text(sources, tmp_path / "out.gguf", output_frequency=3, save_frequency=2)

    def interrupt(done: int, total: int, perplexity: float | None) -> None:
        assert total == 14
        if done == 5:
            raise KeyboardInterrupt

    params, context = ModelParams(model=str(sources / "llama.gguf")), replace(EXACT, n_ctx=64, n_batch=64)
    with pytest.raises(KeyboardInterrupt):
        imatrix(options, params, context, progress=interrupt)
    counts = {path.name: read_imatrix(path).chunk_count for path in tmp_path.iterdir()}
    assert counts == {"out.gguf": 3, "out.gguf.at_2": 2, "out.gguf.at_4": 4}


def test_an_interrupt_inside_a_decode(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def interrupt(self: Collector, product: Product) -> None:
        seen.append(product.weight)
        raise KeyboardInterrupt

    monkeypatch.setattr(Collector, "see", interrupt)
    (tmp_path / "out.gguf").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        _collect(sources, _text(sources, tmp_path / "out.gguf"))
    assert len(seen) == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.gguf", b"old")]


# -- what is refused


def test_what_cannot_be_done_is_said(sources: Path, tiny_models: TinyModels, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    text = _text(sources, output)

    def refused(options: ImatrixOptions, name: str = "llama", size: int = 64) -> str:
        path = sources / f"{name}.gguf" if name == "llama" else tiny_models(name)
        with pytest.raises(MinkaError) as caught:
            imatrix(options, ModelParams(model=str(path)), replace(EXACT, n_ctx=size))
        return str(caught.value)

    assert "no text to evaluate" in refused(ImatrixOptions())
    assert "chunks of 512 need at least 1024" in refused(text, size=512)
    assert "cannot begin at 14" in refused(replace(text, from_chunk=14))
    assert "longer than the 2048" in refused(replace(text, text=golden.words(3000), file=None), size=2100)
    assert "cannot read the text" in refused(replace(text, file=tmp_path / "none.txt"))
    assert "does not exist; create it first" in refused(replace(text, output=tmp_path / "none" / "x.gguf"))
    assert "is a folder" in refused(replace(text, output=tmp_path))
    assert "is the input" in refused(replace(text, output=sources / "text.txt"))
    assert "is the input" in refused(replace(text, output=sources / "llama.gguf"))
    assert "nothing to save" in refused(replace(text, chunks=1), size=8)  # products of fewer than 16 rows do not count
    assert "embeddings" in refused(text, name="bert")
    assert "logits are NaN" in refused(replace(text, perplexity=True), name="nan")
    assert list(tmp_path.iterdir()) == []


def test_activations_that_are_no_numbers(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes((sources / "llama.gguf").read_bytes())
    reader = GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.weight").data[:] = np.inf
    reader.data.flush()
    options = _text(sources, tmp_path / "out.gguf")
    with pytest.raises(ModelError, match=r"activations at blk.0.ffn_down.weight are not finite"):
        imatrix(options, ModelParams(model=str(path)), replace(EXACT, n_ctx=64))
    assert not options.output.exists()


def test_files_of_another_model(sources: Path, tmp_path: Path) -> None:
    options = _text(sources, tmp_path / "out.gguf", in_files=(sources / "a.gguf",))
    with pytest.raises(ModelError, match=r"blk.0.attn_q.weight has 64 values in this model, but 8 in the merged files"):
        _collect(sources, options)


# -- the command


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["imatrix", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.gguf"
    words = ("-m", sources / "llama.gguf", "-f", sources / "text.txt", "-o", output, "-c", "64", "-b", "64", "-t", "1")
    code, out, err = _run(capsys, *words, "--chunks", "3", "-ctk", "f32", "-ctv", "f32", "-fa", "off")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.startswith("3 chunks of 64 tokens in ")
    assert second.startswith("Final estimate: PPL = ")
    assert third == f"wrote {output}: 14 entries, from 3 chunks"
    options = _text(sources, tmp_path / "again.gguf", chunks=3)
    _collect(sources, options, context=replace(EXACT, n_batch=64))
    assert output.read_bytes() == options.output.read_bytes()
    assert "PPL" not in _run(capsys, *words, "--chunks", "1", "--no-ppl")[1]


def test_the_command_reports_progress_in_a_log(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minka.commands.imatrix.LINE_SECONDS", 0.0)
    files = ("-m", sources / "llama.gguf", "-f", sources / "text.txt", "-o", tmp_path / "out.gguf")
    lines = _run(capsys, *files, "-c", "64", "-b", "64", "--chunks", "2")[2].splitlines()
    assert [line.partition(", PPL")[0] for line in lines] == ["chunk 1 of 2", "chunk 2 of 2"]
    assert lines[1].endswith(", 0 s left")


@pytest.mark.parametrize("words", golden.MERGED)
def test_merging_makes_the_bytes_of_llama_imatrix(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.chdir(sources)
    code, _, err = _run(capsys, *words.split(), "-o", tmp_path / "out.gguf")
    assert (code, err) == (0, "output.weight: no token met it\n")
    assert hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()[:32] == golden.MERGED[words]


def test_the_command_prints_statistics(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--in-file", sources / "a.gguf", "--show-statistics")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"{sources / 'a.gguf'}: statistics of 2 tensors"
    assert [line.split()[:2] for line in lines[3:5]] == [["0", "attn_q"], ["0", "ffn_up_exps"]]
    assert lines[-2].split() == ["Layer", "μΣ(Act²)", "μZD", "μCosSim"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--show-statistics",), "about one file"),
        (("--in-file", "a.gguf,b.gguf", "--show-statistics"), "about one file"),
        (("--in-file", "none.gguf"), "none.gguf does not exist"),
        (("--output-frequency", "-1"), "--output-frequency must be at least 0"),
        (("--chunks", "x"), "--chunks"),
        (("-c", "0"), "--ctx-size must be at least 1"),
        (("-f", "a", "-bf", "b"), "not both"),
        (("-f", "a", "-m", "none.gguf"), "cannot read the text a"),
    ],
)
def test_bad_command_lines_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = _run(capsys, *words)
    assert (code in (1, 2), out) == (True, "")
    assert message in err
    assert (err.startswith("minka imatrix: "), err.count("\n")) == (True, 1)


def test_every_flag_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools" / "imatrix.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    own = [
        a
        for group in parser._action_groups
        if group.title in ("Text", "Importance matrix")
        for a in group._group_actions
    ]
    flags = {flag for action in own for flag in action.option_strings if flag.startswith("--")}
    assert len(flags) > 20
    assert sorted(flag for flag in flags if f"`{flag}" not in page) == []


def test_help_is_cheap() -> None:
    code = (
        "import sys; from minka.cli import main; main(['imatrix', '--help']); "
        "print([m for m in ('numpy', 'llama_cpp', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
