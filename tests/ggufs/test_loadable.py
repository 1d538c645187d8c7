from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import pytest

from minka.errors import ModelError, RequestError
from minka.ggufs.check import check
from minka.ggufs.loadable import faults, require_loadable
from minka.ggufs.metadata import parse_setting, rewrite
from minka.ggufs.read import open_gguf
from minka.native.model import Model
from minka.native.raw import tokenize
from minka.params import ModelParams
from tests.ggufs.files import write_raw
from tests.tiny_fixtures import TinyModels


def _changed(model: Path, out: Path, *settings: str) -> Path:
    with open_gguf(model) as source:
        rewrite(source, out, dict(map(parse_setting, settings)))
    return out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["llama.block_count=u32:0"], "llama.block_count is 0, libllama takes 1 to 512"),
        (["llama.block_count=u32:600"], "llama.block_count is 600"),
        (["llama.attention.layer_norm_rms_epsilon=f32:nan"], "layer_norm_rms_epsilon is nan"),
        (["llama.attention.layer_norm_rms_epsilon=f32:-1"], r"layer_norm_rms_epsilon is -1\.0"),
        (["llama.expert_count=u32:2"], "expert_used_count is 0 of 2 experts"),
        (["llama.expert_used_count=u32:1"], "expert_used_count is 1 of 0 experts"),
        (["llama.expert_count=u32:2", "llama.expert_used_count=[u32]:[1,3]"], "expert_used_count is 3 of 2 experts"),
        (["llama.expert_count=u32:2000", "llama.expert_used_count=u32:1"], "expert_count is 2000"),
        (
            ["llama.expert_count=u32:4", "llama.expert_used_count=u32:1", "llama.expert_group_count=u32:4"],
            "expert_group_count is 4, must be less than the 4 experts",
        ),
        (
            ["llama.expert_count=u32:4", "llama.expert_used_count=u32:1", "llama.expert_group_count=u32:2"],
            "expert_group_used_count is 0 of 2 groups of 4 experts",
        ),
        (['tokenizer.ggml.tokens=[str]:["a","b","a"]'], "has the token 'a' twice, the second time at 2"),
        (['tokenizer.ggml.tokens=[str]:["","[EMPTY_0]"]'], "has the token .* twice"),
        (["tokenizer.ggml.model=str:bert"], "has byte tokens"),
    ],
)
def test_what_would_end_the_process_is_refused(
    tiny_models: TinyModels, tmp_path: Path, settings: list[str], message: str
) -> None:
    path = _changed(tiny_models("llama"), tmp_path / "m.gguf", *settings)
    with pytest.raises(ModelError, match=f"cannot load the model .*{message}"):
        Model.load(path, ModelParams(model=str(path)))
    with open_gguf(path) as source:
        assert [problem for problem in check(source) if any(problem.what == what for _, what in faults(source))]


@pytest.mark.parametrize("name", ["llama", "bpe", "bert", "reranker", "swa", "recurrent", "hybrid"])
def test_sound_models_have_no_fault(tiny_models: TinyModels, name: str) -> None:
    with open_gguf(tiny_models(name)) as source:
        assert list(faults(source)) == []


def test_what_cannot_be_read_is_left_to_libllama(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 9, 0, 0))
    require_loadable(tmp_path / "m.gguf")
    require_loadable(write_raw(tmp_path / "empty.gguf"))


def test_a_model_without_a_tokenizer_is_loaded_but_reads_no_text(tiny_models: TinyModels, tmp_path: Path) -> None:
    path = _changed(tiny_models("llama"), tmp_path / "m.gguf", "tokenizer.ggml.model=str:no_vocab")
    with closing(Model.load(path, ModelParams(model=str(path)))) as model:
        with pytest.raises(RequestError, match="has no tokenizer"):
            model.vocab.tokenize("text", add_special=False, parse_special=False)
        with pytest.raises(RequestError, match="has no tokenizer"):
            tokenize(model.vocab, b"text")
