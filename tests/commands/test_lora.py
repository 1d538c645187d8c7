from __future__ import annotations

import json
from pathlib import Path

import pytest

from minka.tools import lora_export
from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka

__all__ = ["minka"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_export_writes_what_the_function_writes(minka: Minka, tiny_models: TinyModels, here: Path) -> None:
    base, lora = tiny_models("llama"), tiny_models("lora")
    outcome = minka("lora", "export", "-m", base, "--lora", lora, "--lora-scaled", f"{lora}:-0.5", "-t", "2", "-o", "o")
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "wrote o")
    assert "merged 6 of 21 tensors" in outcome.out
    lora_export(base, [(lora, 1.0), (lora, -0.5)], "p", threads=2)
    assert (here / "o").read_bytes() == (here / "p").read_bytes()


def test_export_has_a_name_for_its_output(minka: Minka, tiny_models: TinyModels, here: Path) -> None:
    assert minka("lora", "export", "-m", tiny_models("llama"), "--lora", tiny_models("lora")).code == 0
    assert [path.name for path in here.iterdir()] == ["ggml-lora-merged-f16.gguf"]


def test_inspect(minka: Minka, tiny_models: TinyModels) -> None:
    outcome = minka("lora", "inspect", tiny_models("lora"))
    assert "rank 4, alpha 8: 6 weights are changed" in outcome.out
    assert "blk.1.ffn_down.weight  128 x 64  F32   4     2" in outcome.out


def test_inspect_json(minka: Minka, tiny_models: TinyModels) -> None:
    found = json.loads(minka("lora", "inspect", tiny_models("lora"), "--json").out)
    assert (found["architecture"], found["alpha"], found["ranks"]) == ("llama", 8.0, [4])
    first = {"name": "blk.0.attn_q.weight", "shape": [64, 64], "types": ["F32", "F32"], "rank": 4, "factor": 2.0}
    assert found["weights"][0] == first


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("export",), 2, "there is no adapter to merge"),
        (("export", "--lora-scaled", "a.gguf"), 2, "--lora-scaled must be FILE:SCALE"),
        (("export", "--lora", "none.gguf"), 1, "none.gguf does not exist"),
        (("inspect", "none.gguf"), 1, "none.gguf does not exist"),
    ],
)
def test_bad_input_is_one_line(
    minka: Minka, tiny_models: TinyModels, here: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    model = ("-m", str(tiny_models("llama"))) if words[0] == "export" else ()
    outcome = minka("lora", *words, *model)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert outcome.err.startswith(f"minka lora: {says}")
