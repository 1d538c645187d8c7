from __future__ import annotations

import stat
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from minka.errors import MinkaError, UsageError
from minka.native.context import Context
from minka.native.model import Model
from minka.native.raw import RawContext
from minka.native.session_file import MAGIC, VERSION, Session, SessionFiles
from minka.params import ContextParams

PARAMS = ContextParams(n_ctx=256, parallel=1, kv_unified=True, threads=1, warmup=False, flash_attn="off")
TOKENS = (1, 20, 300, 4, 50, 60, 70)


def computed(model: Model, n: int) -> tuple[bytes, bytes]:
    """The state of the first `n` tokens, and the logits that follow one more."""
    with closing(Context(model, PARAMS)) as context:
        context.add(0, TOKENS[:n], 0, logits=0)
        context.decode()
        state = context.save(0)
        row = context.add(0, TOKENS[n : n + 1], n, logits=1)
        context.decode()
        return state, context.logits(row).tobytes()


@pytest.mark.parametrize("name", ["llama", "swa", "recurrent", "hybrid"])
def test_a_text_goes_on_from_a_file(load: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    model, path = load(name), tmp_path / "cache"
    state, logits = computed(model, 6)
    files = SessionFiles(model, PARAMS)
    files.write(path, Session(TOKENS, state, 6))
    session = files.read(path)
    assert (session.tokens, session.n_state) == (TOKENS, 6)
    with closing(Context(model, PARAMS)) as context:
        assert context.restore(0, session.state)
        row = context.add(0, TOKENS[6:], 6, logits=1)
        context.decode()
        assert context.logits(row).tobytes() == logits


def test_the_frame_is_llama_completions(load: Callable[[str], Model], tmp_path: Path) -> None:
    path = tmp_path / "cache"
    SessionFiles(load("llama"), PARAMS).write(path, Session(TOKENS, computed(load("llama"), 6)[0], 6))
    raw = path.read_bytes()
    assert struct.unpack_from("=III7i", raw) == (MAGIC, VERSION, 7, *TOKENS)
    assert raw[40:49] == b"\x05\x00\x00\x00llama"  # the architecture, then the memory
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_state_of_all_tokens_is_written_without_the_last_one(load: Callable[[str], Model], tmp_path: Path) -> None:
    # llama-completion computes the last token again, at its place.
    files = SessionFiles(load("llama"), PARAMS)
    files.write(tmp_path / "cache", Session(TOKENS[:6], computed(load("llama"), 6)[0], 6))
    assert (files.read(tmp_path / "cache").tokens, files.read(tmp_path / "cache").n_state) == (TOKENS[:6], 5)


def test_a_file_that_is_not_there_or_empty_has_no_tokens(load: Callable[[str], Model], tmp_path: Path) -> None:
    files = SessionFiles(load("llama"), PARAMS)
    (tmp_path / "empty").touch()
    assert files.read(tmp_path / "none") == files.read(tmp_path / "empty") == Session((), b"", 0)


def test_files_that_do_not_fit(load: Callable[[str], Model], tmp_path: Path) -> None:
    path = tmp_path / "cache"
    files = SessionFiles(load("llama"), PARAMS)
    files.write(path, Session(TOKENS, computed(load("llama"), 6)[0], 6))
    whole = path.read_bytes()
    for raw, says in (
        (b"GGUF" + whole[4:], "is no prompt cache"),
        (whole[:8], "is no prompt cache"),
        (whole[:30], "is cut short"),
        (whole[:-9], "does not fit this model and these flags"),
        (whole[:12] + struct.pack("=i", 10**6) + whole[16:], "is damaged, or of another model"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UsageError, match=says):
            files.read(path)
    path.write_bytes(whole)
    with pytest.raises(UsageError, match="does not fit this model and these flags"):
        SessionFiles(load("recurrent"), PARAMS).read(path)
    with pytest.raises(UsageError, match="cannot read"):
        files.read(tmp_path)


def test_a_failure_leaves_the_old_file(
    load: Callable[[str], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = SessionFiles(load("llama"), PARAMS), tmp_path / "cache"
    path.write_text("old")
    session = Session(TOKENS, computed(load("llama"), 6)[0], 6)
    with pytest.raises(MinkaError, match="cannot write the prompt cache"):
        files.write(tmp_path / "none" / "cache", session)
    monkeypatch.setattr(RawContext, "restore", lambda *_: False)
    with pytest.raises(MinkaError):
        files.write(path, session)
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]
    assert path.read_text() == "old"
