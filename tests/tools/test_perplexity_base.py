from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from minka.errors import MinkaError, UsageError
from minka.params import ContextParams
from minka.tools.perplexity_base import BaseReader, BaseWriter, scored_rows
from minka.tools.perplexity_text import TextOptions, perplexity
from minka.tools.scoring_math import row_width
from tests.tiny_fixtures import TinyModels
from tests.tools.oracle import Oracle, log_softmax
from tests.tools.texts import story

N_CTX, N_VOCAB = 8, 10
TOKENS = np.arange(3 * N_CTX, dtype=np.int32) % N_VOCAB


def rows(chunk: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    return np.full((scored_rows(N_CTX), row_width(N_VOCAB)), chunk + 1, np.uint16)


def write_until(path: Path, n_complete: int, error: type[BaseException]) -> None:
    """Write some chunks and a part of the next, then fail."""
    with BaseWriter(path, N_CTX, TOKENS, N_VOCAB) as writer:
        for chunk in range(n_complete):
            writer.write(rows(chunk), complete=True)
        writer.write(rows(n_complete)[:1], complete=False)
        raise error


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "base"
    with BaseWriter(path, N_CTX, TOKENS, N_VOCAB) as writer:
        for chunk in range(3):
            assert not path.exists()
            writer.write(rows(chunk)[:1], complete=False)
            writer.write(rows(chunk)[1:], complete=True)
    with BaseReader(path) as reader:
        assert (reader.head.n_ctx, reader.head.n_vocab, reader.head.n_chunks) == (N_CTX, N_VOCAB, 3)
        assert (reader.head.tokens == TOKENS).all()
        for chunk in range(3):
            assert (reader.read(scored_rows(N_CTX)) == rows(chunk)).all()
        with pytest.raises(UsageError, match="ends before the last"):
            reader.read(1)


def test_the_file_has_llama_perplexitys_form(tiny_models: TinyModels, tmp_path: Path) -> None:
    path, n_ctx = tmp_path / "base", 64
    options = TextOptions(n_ctx, 2, base_file=path)
    perplexity(tiny_models("llama"), story(), options, context=ContextParams(threads=1, warmup=False))
    data = path.read_bytes()
    assert data[:20] == struct.pack("<8siii", b"_logits_", n_ctx, 512, 2)
    tokens = np.frombuffer(data, np.int32, 2 * n_ctx, 20)
    table = np.frombuffer(data, np.uint16, -1, 20 + 8 * n_ctx).reshape(2, n_ctx - 1 - n_ctx // 2, 512 + 4)
    with Oracle(tiny_models("llama")) as oracle:
        assert tokens.tolist() == oracle.tokens(story().encode())[: 2 * n_ctx]  # and not BOS at the second window
        window = [oracle.bos, *tokens[n_ctx + 1 :].tolist()]
        expected = log_softmax(oracle.logits(window))[n_ctx // 2 : n_ctx - 1]
    head = table[1, :, :4].copy().view(np.float32)
    decoded = head[:, :1] * table[1, :, 4:].astype(np.float64) + head[:, 1:]
    likely = expected > expected.max(axis=1, keepdims=True) - 15
    assert decoded[likely] == pytest.approx(expected[likely], abs=0.02)  # half precision in flash attention


def test_after_an_interrupt_it_has_the_chunks_that_were_complete(tmp_path: Path) -> None:
    path = tmp_path / "base"
    with pytest.raises(KeyboardInterrupt):
        write_until(path, 2, KeyboardInterrupt)
    with BaseReader(path) as reader:
        assert reader.head.n_chunks == 2
        assert (reader.head.tokens == TOKENS[: 2 * N_CTX]).all()
        for chunk in range(2):
            assert (reader.read(scored_rows(N_CTX)) == rows(chunk)).all()
    assert path.stat().st_size == 20 + 4 * 2 * N_CTX + 2 * rows(0).nbytes
    assert [entry.name for entry in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_without_a_complete_chunk_an_older_file_stays(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "base"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write_until(path, 0, error)
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no file of log-probabilities"),
        (b"GGUF" * 20, "no file of log-probabilities"),
        (struct.pack("<8siii", b"_logits_", 8, 10, 3), "broken or cut short"),
        (struct.pack("<8siii", b"_logits_", -8, 10, 3) + bytes(200), "broken or cut short"),
        (struct.pack("<8siii4i", b"_logits_", 4, 10, 1, 1, 2, 3, 99), "outside 0 to 9"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "base"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        BaseReader(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the base file .*missing"):
        BaseReader(tmp_path / "missing")
    with pytest.raises(UsageError, match="is a folder"), BaseWriter(tmp_path, N_CTX, TOKENS, N_VOCAB):
        pass


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "base"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    many = np.zeros(1 << 16, np.int32)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with (
            pytest.raises(MinkaError, match=r"cannot write .*base: File too large"),
            BaseWriter(path, 8, many, N_VOCAB),
        ):
            pytest.fail("must not be entered")
        with (
            pytest.raises(MinkaError, match=r"cannot write .*base: File too large"),
            BaseWriter(path, N_CTX, TOKENS, N_VOCAB) as writer,
        ):
            writer.write(np.zeros((1, 1 << 16), np.uint16), complete=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("base", b"old")]


@pytest.mark.timeout(20)
def test_a_pipe_is_no_base_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is a pipe"):
        BaseReader(tmp_path / "pipe")


def test_the_model_is_not_overwritten(tiny_models: TinyModels, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(before := tiny_models("llama").read_bytes())
    with pytest.raises(UsageError, match="is the input"):
        perplexity(model, story(), TextOptions(64, 2, base_file=model), context=ContextParams(threads=1, warmup=False))
    assert model.read_bytes() == before
