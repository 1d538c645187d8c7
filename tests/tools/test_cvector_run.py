from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

from minka.errors import ModelError, UsageError
from minka.native.control_vector import read
from minka.native.model import Model
from minka.params import ContextParams, ModelParams
from minka.tools import CvectorOptions, cvector
from minka.tools.cvector_run import _differences, describe, principal, read_prompts, write
from minka.tools.scoring_context import Hardware
from tests import tiny
from tests.tiny_fixtures import TinyModels

F32 = NDArray[np.float32]
POSITIVE = ("I am happy today", "What a lovely day it is", "All is well")
NEGATIVE = ("I am sad", "What a terrible day it has become", "Nothing is well")
CONTEXT = ContextParams(threads=1, warmup=False, flash_attn="off")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("cv") / "four.gguf", n_layer=4)


@pytest.fixture(scope="module")
def differences(path: Path) -> list[F32]:
    pairs = [(a.encode(), b.encode()) for a, b in zip(POSITIVE, NEGATIVE, strict=True)]
    model = Model.load(path, ModelParams(n_gpu_layers=0))
    try:
        return _differences(model, CONTEXT, Hardware(), pairs, lambda done, total: None)
    finally:
        model.close()


def made(path: Path, output: Path, **options: object) -> dict[str, F32]:
    report = cvector(
        POSITIVE, NEGATIVE, CvectorOptions(output, **options), ModelParams(model=str(path)), CONTEXT  # type: ignore[arg-type]
    )  # fmt: skip
    assert report.path == output
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(output).tensors}


def test_the_first_principal_component(path: Path, tmp_path: Path, differences: list[F32]) -> None:
    found = made(path, tmp_path / "c.gguf")
    assert list(found) == ["direction.1", "direction.2", "direction.3"]
    for direction, rows in zip(found.values(), differences, strict=True):
        expected = np.linalg.svd(rows.astype(np.float64))[2][0]
        assert abs(expected @ direction) > 1 - 1e-6
        assert rows.mean(axis=0) @ direction > 0  # it leads to the positive texts
        np.testing.assert_allclose(np.linalg.norm(direction), 1, atol=1e-6)


def test_the_mean(path: Path, tmp_path: Path, differences: list[F32]) -> None:
    found = made(path, tmp_path / "c.gguf", method="mean")
    for direction, rows in zip(found.values(), differences, strict=True):
        mean = rows.mean(axis=0)
        np.testing.assert_allclose(direction, mean / np.linalg.norm(mean), atol=1e-5)


def test_the_file_is_the_one_of_llama_cvector_generator(path: Path, tmp_path: Path) -> None:
    made(path, tmp_path / "c.gguf")
    fields = {f.name: f.contents() for f in GGUFReader(tmp_path / "c.gguf").fields.values() if "." in f.name}
    assert {key: fields[key] for key in fields if not key.startswith("GGUF.")} == {
        "general.architecture": "controlvector",
        "controlvector.model_hint": "llama",
        "controlvector.layer_count": 3,
    }


def test_states_are_those_of_the_layers(path: Path, differences: list[F32]) -> None:
    # The first layer adds attention and feed-forward to the embeddings, so embeddings of equal tokens cancel out.
    assert len(differences) == 3
    assert all(rows.shape[1] == 64 and (rows > 1e-6).any(axis=1).all() for rows in differences)


def test_steering_with_a_direction_moves_the_text_along_it(path: Path, tmp_path: Path, differences: list[F32]) -> None:
    made(path, tmp_path / "c.gguf")
    steered = ContextParams(
        threads=1, warmup=False, flash_attn="off", control_vectors=((str(tmp_path / "c.gguf"), 3.0),)
    )
    model = Model.load(path, ModelParams(n_gpu_layers=0))
    try:
        pairs = [(POSITIVE[0].encode(), NEGATIVE[0].encode())]
        moved = _differences(model, steered, Hardware(), pairs, lambda done, total: None)
        plain = _differences(model, CONTEXT, Hardware(), pairs, lambda done, total: None)
    finally:
        model.close()
    np.testing.assert_allclose(moved[0], plain[0], atol=1e-5)  # nothing is added to layer 0
    np.testing.assert_allclose(moved[1], plain[1], atol=1e-4)  # the same is added to both texts
    assert not np.allclose(moved[2], plain[2], atol=1e-2)


def test_power_iteration_needs_no_many_steps_for_one_row() -> None:
    row = np.array([[3.0, 0.0, -4.0]], np.float32)
    np.testing.assert_allclose(principal(row, 2, 1), row[0] / 5, atol=1e-6)


def test_any_architecture(tiny_models: TinyModels, tmp_path: Path) -> None:
    for name in ("swa", "recurrent", "hybrid"):
        assert set(made(tiny_models(name), tmp_path / name, method="mean")) == {"direction.1"}


def test_prompts_are_lines_with_escapes(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"one\\ntwo\n\nthree \xff\n")
    assert read_prompts(tmp_path / "p") == (b"one\ntwo", b"three \xff")
    with pytest.raises(UsageError, match="cannot read the prompts"):
        read_prompts(tmp_path / "none")


def test_described(tmp_path: Path) -> None:
    one, two = np.array([1, 0, 0, 0], np.float32), np.array([3, 4, 0, 0], np.float32)
    write(tmp_path / "c.gguf", [one, two], "llama")
    first, second = describe(read(tmp_path / "c.gguf"))
    assert (first.layer, first.norm, first.similarity) == (1, 1.0, None)
    assert (second.layer, second.norm, round(second.similarity or 0, 6)) == (2, 5.0, 0.6)


@pytest.mark.parametrize(
    ("positive", "negative", "options", "says"),
    [
        (("a",), ("b", "c"), {}, "there are 1 positive and 2 negative prompts"),
        ((), (), {}, "there is no pair"),
        (("a",), ("b",), {"iterations": 150}, r"the iterations \(150\) must be a multiple of the batch \(100\)"),
        (("same",), ("same",), {}, "the prompts of pair 1 are the same"),
    ],
)
def test_what_makes_no_vector(
    path: Path,
    tmp_path: Path,
    positive: tuple[str, ...],
    negative: tuple[str, ...],
    options: dict[str, int],
    says: str,
) -> None:
    wanted = CvectorOptions(tmp_path / "c.gguf", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=says):
        cvector(positive, negative, wanted, ModelParams(model=str(path)), CONTEXT)
    assert not list(tmp_path.iterdir())


def test_models_that_cannot(tiny_models: TinyModels, tmp_path: Path) -> None:
    one = tiny.write_llama(tmp_path / "one.gguf", n_layer=1)
    for model, says in ((one, "has one layer only"), (tiny_models("bert"), "only makes embeddings")):
        with pytest.raises(ModelError, match=says):
            cvector(POSITIVE, NEGATIVE, CvectorOptions(tmp_path / "c"), ModelParams(model=str(model)), CONTEXT)
