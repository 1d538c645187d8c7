"""The tools that watch a model compute take the hardware and the adapters of the command line as the others do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minka.native.control_vector import read
from minka.native.threadpool import Pinning, Threadpool
from minka.tools.imatrix_file import read_imatrix
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka

__all__ = ["minka"]

TEXT = "The quick brown fox jumps over the lazy dog. " * 8


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, Pinning]]:
    """The thread pools that are made, in a folder with prompts."""
    monkeypatch.chdir(tmp_path)
    Path("pos").write_text("I am happy\nAll is well\n")
    Path("neg").write_text("I am sad\nNothing is well\n")
    found: list[tuple[int, Pinning]] = []
    original = Threadpool.__init__

    def note(self: Threadpool, n_threads: int, pinning: Pinning) -> None:
        found.append((n_threads, pinning))
        original(self, n_threads, pinning)

    monkeypatch.setattr(Threadpool, "__init__", note)
    return found


def test_an_importance_matrix(minka: Minka, tiny_models: TinyModels, made: list[tuple[int, Pinning]]) -> None:
    words = ("imatrix", "-m", tiny_models("llama"), "-p", TEXT, "-c", "32", "-t", "1", "-o")
    assert minka(*words, "plain.gguf").code == 0
    assert minka(*words, "placed.gguf", "-ot", "ffn=CPU", "-lzm", "off", "--poll", "0", "--temp", "0").code == 0
    assert made == [(1, Pinning(poll=0))]
    assert minka(*words, "adapted.gguf", "--lora", tiny_models("lora")).code == 0
    plain, placed, adapted = (read_imatrix(Path(f"{name}.gguf")).entries for name in ("plain", "placed", "adapted"))
    name = "blk.1.ffn_up.weight"
    assert np.array_equal(plain[name].sums, placed[name].sums)
    assert not np.allclose(plain[name].sums, adapted[name].sums)
    outcome = minka(*words, "x.gguf", "-ot", "ffn=GPU9")
    assert (outcome.code, "there is no buffer type 'GPU9'" in outcome.err) == (2, True)
    assert minka(*words, "x.gguf", "--lora", "none.gguf").code == 1


def test_a_control_vector(minka: Minka, tiny_models: TinyModels, made: list[tuple[int, Pinning]]) -> None:
    files = ("--positive-file", "pos", "--negative-file", "neg", "-t", "1")
    words = ("cvector", "generate", "-m", tiny_models("llama"), *files, "-o")
    assert minka(*words, "plain").code == 0
    assert minka(*words, "placed", "-ncffn", "1", "-Cr", "0-0", "--ignore-eos").code == 0
    assert made == [(1, Pinning(frozenset({0})))]
    assert minka(*words, "adapted", "--lora-scaled", f"{tiny_models('lora')}:2").code == 0
    plain, placed, adapted = (read(Path(name)).directions[1] for name in ("plain", "placed", "adapted"))
    assert np.allclose(plain, placed)
    assert not np.allclose(plain, adapted)


def test_a_binary_file_is_tokenized(minka: Minka, tiny_models: TinyModels, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"Once upon\n")
    words = ("tokenize", "-m", tiny_models("llama"), "--ids")
    outcome = minka(*words, "-bf", tmp_path / "f", "-c", "512", "-ngl", "0", "-dev", "none")
    assert outcome.out == minka(*words, "-f", tmp_path / "f").out != "[]\n"


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_help_is_not_wider_than_the_terminal(minka: Minka, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = minka("quantize", "--help").out.splitlines()
    text = lines[: lines.index("types, by name or number:")]
    assert max(map(len, text)) <= columns
    assert "  COPY       change no tensor: only metadata, layers and shards" in lines[-1]
