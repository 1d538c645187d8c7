from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from minka.cli import main
from minka.commands.gguf import COMMAND
from minka.ggufs.dump import human_size
from tests.ggufs.files import Raw, write_model, write_raw


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf")


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["gguf", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def _ok(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code, out, err = _run(capsys, *words)
    assert (code, err) == (0, "")
    return out


def _fails(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    found, _, err = _run(capsys, *words)
    assert found == code
    assert err.startswith("minka gguf: ")
    assert err.count("\n") == 1
    return err


def test_help_lists_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    out = _ok(capsys, "--help")
    for name in ("dump", "metadata", "split", "merge", "hash", "diff", "convert-endian", "check", "report"):
        assert f"    {name}" in out
    assert "--drop-split-keys" in _ok(capsys, "merge", "--help")
    assert "--special-token-by-id NAME ID" in _ok(capsys, "metadata", "new", "--help")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        for sub in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield sub
            yield from _parsers(sub)


def test_every_action_and_flag_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools" / "gguf.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(prog="minka gguf")
    COMMAND.configure(parser)
    flags = set()
    for sub in _parsers(parser):
        assert sub.prog in page or sub.prog.endswith("metadata"), sub.prog
        flags |= {flag for action in sub._actions for flag in action.option_strings if flag.startswith("--")}
    missing = sorted(flag for flag in flags - {"--help", "--output"} if f"`{flag}" not in page)
    assert missing == []


def test_importing_the_command_is_cheap() -> None:
    import subprocess

    code = "import sys, minka.commands.gguf; print([m for m in ('numpy', 'gguf', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_action_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ACTION" in _fails(capsys, 2)
    assert "ACTION" in _fails(capsys, 2, "metadata")


@pytest.mark.parametrize(
    "words",
    [
        ("dump",),
        ("metadata", "set", "x.u8", "1"),
        ("split", "out"),
        ("merge", "out"),
        ("hash",),
        ("diff", "other"),
        ("convert-endian", "big"),
        ("check",),
        ("report", "-o", "out.html"),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    n = 2 if words[0] == "metadata" else 1
    bad = (("no", None, "not exist"), ("text", b"hello", "no GGUF"), ("cut", b"GGUF\3", "truncated"))
    for name, content, message in bad:
        if content is not None:
            Path(name).write_bytes(content)
        assert message in _fails(capsys, 1, *words[:n], name, *words[n:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "text"]


# -- dump


def test_dump_shows_metadata_and_tensors(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = _ok(capsys, "dump", model)
    assert (
        out.splitlines()[0]
        == f"{model}: GGUF version 3, little-endian, alignment 32, {human_size(model.stat().st_size)}"
    )
    assert "x.i16                         int16      -3000" in out
    assert " 1  blk.0.attn_norm.weight  33      F32   132 B" in out
    assert "attn_norm" not in _ok(capsys, "dump", model, "--no-tensors")
    assert "NaN/Inf" in _ok(capsys, "dump", model, "--data")


def test_dump_for_programs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(_ok(capsys, "dump", model, "--json", "--json-array", "--data"))
    assert found["metadata"]["x.longs"]["value"] == [1, 2**40]
    assert found["tensors"]["positions"]["data"]["max"] == 4.0
    reader = GGUFReader(model)
    assert _ok(capsys, "dump", model, "--data-offset") == f"{reader.data_offset}\n"
    assert _ok(capsys, "dump", model, "--data-alignment") == "32\n"
    assert _ok(capsys, "dump", model, "--markdown").startswith("# model.gguf\n")


def test_dump_of_a_type_that_nobody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("t", (8,), 77, b"A" * 40)])
    assert "t       8      type_77  64 B" in _ok(capsys, "dump", path)
    assert "?" in _ok(capsys, "dump", path, "--data")


# -- metadata


def test_set_in_place(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _ok(capsys, "metadata", "set", model, "x.i8", "-9", "--dry-run") == "x.i8 (int8): -5 -> -9\n"
    assert GGUFReader(model).fields["x.i8"].contents() == -5
    _ok(capsys, "metadata", "set", model, "x.i8", "-9", "--force")
    assert GGUFReader(model).fields["x.i8"].contents() == -9
    assert "-9 -> -9" in _ok(capsys, "metadata", "set", model, "x.i8", "-9")


def test_set_asks_before_it_writes(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.read_bytes()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert "--force" in _fails(capsys, 2, "metadata", "set", model, "x.u8", "1")
    monkeypatch.setattr("minka.ggufs.terminal.confirm", lambda risk: False)
    assert _run(capsys, "metadata", "set", model, "x.u8", "1")[0] == 1
    assert model.read_bytes() == before
    monkeypatch.setattr("minka.ggufs.terminal.confirm", lambda risk: "in place" in risk)
    assert _run(capsys, "metadata", "set", model, "x.u8", "1")[0] == 0
    assert GGUFReader(model).fields["x.u8"].contents() == 1


def test_new_writes_a_copy_with_all_edits(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.gguf"
    monkeypatch.setattr(sys, "stdin", io.StringIO("{{ from stdin }}"))
    words = ("metadata", "new", model, out, "--set", "x.u8=u8:3", "--remove", "x.bools", "--general-name", "New",
             "--general-description", "D", "--pre-tokenizer", "llama-bpe", "--chat-template", "-",
             "--special-token", "eos", "</s>", "--special-token-by-id", "unknown", "0")  # fmt: skip
    dry = _ok(capsys, *words, "--dry-run")
    assert not out.exists()
    monkeypatch.setattr(sys, "stdin", io.StringIO("{{ from stdin }}"))
    assert _ok(capsys, *words) == f"{dry}wrote {out}\n"
    fields = {name: field.contents() for name, field in GGUFReader(out).fields.items()}
    assert fields["x.u8"] == 3
    assert "x.bools" not in fields
    assert (fields["general.name"], fields["general.description"]) == ("New", "D")
    assert fields["tokenizer.ggml.pre"] == "llama-bpe"
    assert fields["tokenizer.chat_template"] == "{{ from stdin }}"
    assert (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.unknown_token_id"]) == (2, 0)


def test_new_takes_a_template_in_four_ways(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, config = tmp_path / "t.jinja", tmp_path / "tokenizer_config.json"
    file.write_text("{{ file }}")
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "{{ config }}"}]}))
    for words, expected in (
        (("--chat-template", file), "{{ file }}"),
        (("--chat-template", "{{ text }}"), "{{ text }}"),
        (("--chat-template-file", file), "{{ file }}"),
        (("--chat-template-config", config), "{{ config }}"),
    ):
        _ok(capsys, "metadata", "new", model, tmp_path / "o.gguf", "--force", *words)
        assert GGUFReader(tmp_path / "o.gguf").fields["tokenizer.chat_template"].contents() == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to change"),
        (("--set", "x"), "KEY=TYPE:VALUE"),
        (("--remove", "nope"), "no key nope"),
        (("--special-token", "bos", "nope"), "no token 'nope'"),
        (("--special-token-by-id", "bos", "x"), "'x' is no token id"),
        (("--chat-template-file", "no.jinja"), "cannot read no.jinja"),
        (("--chat-template", "x", "--chat-template-file", "y"), "not allowed with"),
    ],
)
def test_edits_that_cannot_be(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert message in _fails(capsys, 2, "metadata", "new", model, tmp_path / "o.gguf", *words)
    assert not (tmp_path / "o.gguf").exists()


# -- split and merge


def test_split_and_merge(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = "n_split: 3\n" + "".join(
        f"split {i:05d}: n_tensors = {n}, total_size = 0M\n" for i, n in ((1, 5), (2, 5), (3, 2))
    )
    assert _ok(capsys, "split", model, tmp_path / "s", "--split-max-tensors", 5, "--dry-run") == plan
    assert list(tmp_path.iterdir()) == [model]
    first = tmp_path / "s-00001-of-00003.gguf"
    assert _ok(capsys, "split", model, tmp_path / "s", "--split-max-tensors", 5) == f"{plan}wrote {first} and 2 more\n"

    out = tmp_path / "o.gguf"
    lines = _ok(capsys, "merge", first, out, "--dry-run")
    assert lines.splitlines()[2] == f"shard 00003: {tmp_path / 's-00003-of-00003.gguf'}, 2 tensors"
    assert not out.exists()
    _ok(capsys, "merge", first, out, "--drop-split-keys")
    assert out.read_bytes() == model.read_bytes()
    assert "exists" in _fails(capsys, 2, "merge", first, out)
    assert "deleted the shards" in _ok(capsys, "merge", first, out, "--force", "--delete-splits")
    assert sorted(tmp_path.iterdir()) == sorted([model, out])


def test_split_by_size_and_without_tensors_in_the_first(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _ok(capsys, "split", model, tmp_path / "s", "--split-max-size", "1M", "--no-tensor-first-split")
    assert out.splitlines()[:3] == [
        "n_split: 2",
        "split 00001: n_tensors = 0, total_size = 0M",
        "split 00002: n_tensors = 12, total_size = 0M",
    ]
    both = ("--split-max-size", "1M", "--split-max-tensors", "2")
    assert "not allowed with" in _fails(capsys, 2, "split", model, tmp_path / "t", *both)
    assert "M or G" in _fails(capsys, 2, "split", model, tmp_path / "t", "--split-max-size", "1K")


# -- hash


def test_hash_prints_and_checks(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _ok(capsys, "hash", model).splitlines()
    assert len(lines) == 13
    assert lines[0].startswith("sha256    ")
    assert lines[0].endswith(f"  {model}:token_embd.weight")
    assert len(_ok(capsys, "hash", model, "--sha1", "--uuid", "--no-layer").splitlines()) == 2

    manifest = tmp_path / "m.manifest"
    assert _ok(capsys, "hash", model, "--sha256", "--sha1", "--manifest", manifest) == f"wrote {manifest}\n"
    out = _ok(capsys, "hash", model, "--check", manifest)
    assert out.splitlines()[0] == f"manifest  {manifest}  sha256  sha1"
    assert out.count("  -  Ok") == 13
    assert out.endswith(f"\nVerification results for {manifest} - Success\n")
    assert "exists" in _fails(capsys, 2, "hash", model, "--manifest", manifest)


def test_hash_tells_damage_from_another_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "m.manifest"
    _ok(capsys, "hash", model, "--sha1", "--manifest", manifest)
    damaged = bytearray(model.read_bytes())
    damaged[GGUFReader(model).data_offset] ^= 1
    model.write_bytes(damaged)
    code, out, _ = _run(capsys, "hash", model, "-c", manifest)
    assert (code, out.count("Mismatch"), out.count("  -  Ok")) == (1, 2, 11)
    assert out.endswith("- Failure\n")
    code, out, _ = _run(capsys, "hash", write_model(tmp_path / "other.gguf"), "-c", manifest)
    assert (code, out.splitlines()[-1]) == (3, f"Verification results for {manifest} - Manifest Missing Entry")
    assert "cannot read the manifest" in _fails(capsys, 2, "hash", model, "-c", tmp_path / "no")


# -- diff, convert-endian, check, report


def test_diff_exits_as_diff_does(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _ok(capsys, "diff", model, model) == "no difference\n"
    assert _ok(capsys, "diff", model, model, "--data") == "no difference, the data of 12 tensors is equal\n"
    other = write_model(tmp_path / "o.gguf", n_layer=3, seed=1)
    code, out, _ = _run(capsys, "diff", model, other, "--data")
    assert code == 1
    assert "blk.2.attn_norm.weight  added        F32 33" in out
    assert "data of 1 tensors equal, of 11 different" in out
    code, out, _ = _run(capsys, "diff", model, other, "--json")
    assert (code, len(json.loads(out)["tensors"])) == (1, 5)


def test_convert_endian(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, copy = model.read_bytes(), tmp_path / "big.gguf"
    assert "already" in _ok(capsys, "convert-endian", model, "little")
    assert "can be converted" in _ok(capsys, "convert-endian", model, "big", "--dry-run")
    _ok(capsys, "convert-endian", model, "big", "-o", copy)
    assert GGUFReader(copy).endianess.name == "BIG"
    assert "exists" in _fails(capsys, 2, "convert-endian", model, "big", "-o", copy)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert "--force" in _fails(capsys, 2, "convert-endian", model, "big")
    assert model.read_bytes() == before
    _ok(capsys, "convert-endian", model, "big", "--force")
    assert model.read_bytes() == copy.read_bytes()
    monkeypatch.setattr("minka.ggufs.terminal.confirm", lambda risk: False)
    assert _run(capsys, "convert-endian", model, "little")[0] == 1
    assert model.read_bytes() == copy.read_bytes()


def test_check_lists_problems_and_exits_1(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _ok(capsys, "check", model, model).count("no problem found") == 2
    bad = write_raw(tmp_path / "bad.gguf", [Raw("t", (2,), 0, b"\0\0\xc0\x7f" * 2)])
    code, out, _ = _run(capsys, "check", model, bad)
    assert code == 1
    assert "tensor t: 2 of 2 values are NaN or infinite, the first at index 0\n" in out
    assert out.endswith("1 tensors, 1 problem found\n")
    assert _run(capsys, "check", bad, "--no-data")[0] == 0
    code, out, _ = _run(capsys, "check", bad, "--json")
    assert code == 1
    assert json.loads(out)[str(bad)][0]["where"] == "tensor t"


def test_report(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.html"
    assert _ok(capsys, "report", model, "-o", out) == f"wrote {out}\n"
    assert out.read_text().startswith("<!doctype html>")
    assert "exists" in _fails(capsys, 2, "report", model, "-o", out)
    assert "is the input" in _fails(capsys, 2, "report", model, "-o", model)
