from __future__ import annotations

import hashlib
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from minka.errors import ModelError, UsageError
from minka.ggufs.hashes import (
    UUID_NAMESPACE,
    Entry,
    algorithms_of,
    has_xxhash,
    hash_file,
    read_manifest,
    verify,
)
from minka.ggufs.layout import ValueType
from minka.ggufs.metadata import rewrite
from minka.ggufs.read import open_gguf
from minka.ggufs.write import NewValue
from tests.ggufs.files import Raw, write_raw
from tests.ggufs.test_split import write_golden


def test_hashes_are_of_the_tensor_bytes_alone_and_of_all_together(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.gguf", [Raw("a", (3,), 0, b"A" * 12), Raw("b", (2,), 0, b"B" * 8)])
    with open_gguf(path) as source:
        entries = list(hash_file(source, ("sha1", "sha256"), label="m"))
    assert entries == [
        Entry("sha1", hashlib.sha1(b"A" * 12).hexdigest(), "m", "a"),
        Entry("sha256", hashlib.sha256(b"A" * 12).hexdigest(), "m", "a"),
        Entry("sha1", hashlib.sha1(b"B" * 8).hexdigest(), "m", "b"),
        Entry("sha256", hashlib.sha256(b"B" * 8).hexdigest(), "m", "b"),
        Entry("sha1", hashlib.sha1(b"A" * 12 + b"B" * 8).hexdigest(), "m"),
        Entry("sha256", hashlib.sha256(b"A" * 12 + b"B" * 8).hexdigest(), "m"),
    ]


def test_the_lines_and_the_uuid_are_those_of_gguf_hash(tmp_path: Path) -> None:
    assert uuid.uuid5(uuid.NAMESPACE_URL, "en.wikipedia.org/wiki/Llama.cpp") == UUID_NAMESPACE
    with open_gguf(write_golden(tmp_path / "g.gguf")) as source:
        lines = [str(entry) for entry in hash_file(source, ("sha1", "uuid"), label="g.gguf", layers=False)]
    # Printed by llama.cpp's gguf-hash (0.5.0-dev) for the same file.
    assert lines == [
        "sha1      3ac86132b5a2a131219a5b0101424e243de79c55  g.gguf",
        "uuid      c506af6a-fdf6-5fab-a279-425af621d80e  g.gguf",
    ]


@pytest.mark.skipif(not has_xxhash(), reason="the package xxhash is not installed")
def test_xxh64_is_that_of_gguf_hash(tmp_path: Path) -> None:
    with open_gguf(write_golden(tmp_path / "g.gguf")) as source:
        assert [entry.digest for entry in hash_file(source, ("xxh64",), layers=False)] == ["b3aee8b0de324b5c"]


def test_xxh64_without_its_package_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "xxhash" else find_spec(name))
    with open_gguf(model) as source, pytest.raises(UsageError, match="pip install xxhash"):
        list(hash_file(source, ("xxh64",)))


def test_metadata_does_not_enter_a_hash(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as source:
        rewrite(source, tmp_path / "o.gguf", {"general.name": NewValue(ValueType.STRING, "other " * 50)})
        before = list(hash_file(source, ("sha256",), label="x"))
    with open_gguf(tmp_path / "o.gguf") as copy:
        assert list(hash_file(copy, ("sha256",), label="x")) == before


def test_an_unknown_type_and_a_truncated_file_have_no_hash(model: Path, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "u.gguf", [Raw("a", (8,), 77, b"A" * 40)])
    with open_gguf(path) as source, pytest.raises(ModelError, match="tensor a is of the unknown type 77"):
        list(hash_file(source, ("sha1",)))
    model.write_bytes(model.read_bytes()[:-100])
    with open_gguf(model) as source, pytest.raises(ModelError, match="truncated"):
        list(hash_file(source, ("sha1",)))


def test_a_manifest_is_read_and_checked(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text("# note\n\nsha1      AB  dir/m.gguf:a\nsha256  cd  dir/m.gguf:a b\nmd5  ef  dir/m.gguf\n")
    entries = read_manifest(manifest)
    assert algorithms_of(entries) == ("sha256", "sha1")
    ours = [
        Entry("sha1", "ab", "m.gguf", "a"),
        Entry("sha256", "ce", "/elsewhere/m.gguf", "a b"),
        Entry("sha1", "ab", "n.gguf", "a"),
        Entry("sha1", "ab", "m.gguf"),
    ]
    assert [verdict for _, verdict in verify(ours, entries)] == ["Ok", "Mismatch", "Not Found", "Not Found"]


def test_the_entry_of_the_same_path_goes_before_that_of_the_same_name() -> None:
    manifest = {("sha1", "a/m.gguf"): "1", ("sha1", "b/m.gguf"): "2"}
    entries = [Entry("sha1", "2", "b/m.gguf"), Entry("sha1", "1", "a/m.gguf")]
    assert [verdict for _, verdict in verify(entries, manifest)] == ["Ok", "Ok"]


def test_what_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the manifest"):
        read_manifest(tmp_path / "no")
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(UsageError, match="is no manifest"):
        read_manifest(tmp_path / "text")
