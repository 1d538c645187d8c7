from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_fixtures import TinyModels
from tests.tools.running import Minka, minka

__all__ = ["minka"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pos").write_text("I am happy\nAll is well\n")
    Path("neg").write_text("I am sad\n\nNothing is well\n")
    return tmp_path


FILES = ("--positive-file", "pos", "--negative-file", "neg")


@pytest.mark.parametrize("method", ["pca", "mean"])
def test_generate_and_inspect(minka: Minka, tiny_models: TinyModels, here: Path, method: str) -> None:
    outcome = minka("cvector", "generate", "-m", tiny_models("llama"), *FILES, "--method", method, "-t", "1", "-o", "c")
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "wrote c: directions of 1 layers")
    assert outcome.out.startswith("2 pairs, ")
    assert minka("cvector", "inspect", "c").out.splitlines() == [
        "c: control vector for llama, 64 values a layer",
        "",
        "layer     norm  cosine with the layer before",
        "    1   1.0000",
    ]
    found = json.loads(minka("cvector", "inspect", "c", "--json").out)
    assert (found["model_hint"], found["n_embd"], [one["layer"] for one in found["layers"]]) == ("llama", 64, [1])


def test_generate_has_a_name_for_its_output(minka: Minka, tiny_models: TinyModels, here: Path) -> None:
    steps = ("--pca-iter", "20", "--pca-batch", "5")
    assert minka("cvector", "generate", "-m", tiny_models("llama"), *FILES, *steps).code == 0
    assert (here / "control_vector.gguf").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("generate",), 2, "give the prompts with --positive-file and --negative-file"),
        (("generate", "--positive-file", "none", "--negative-file", "neg"), 2, "cannot read the prompts none"),
        (("generate", *FILES, "--pca-iter", "7"), 2, "the iterations (7) must be a multiple of the batch (100)"),
        (("generate", *FILES, "-o", "none/c"), 2, "folder none does not exist"),
        (("inspect", "pos"), 1, "pos is no GGUF file"),
    ],
)
def test_bad_input_is_one_line(
    minka: Minka, tiny_models: TinyModels, here: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    model = ("-m", str(tiny_models("llama"))) if words[0] == "generate" else ()
    outcome = minka("cvector", *words, *model)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)
    assert outcome.err.startswith(f"minka cvector: {says}")
