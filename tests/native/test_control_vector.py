"""Control vectors against numpy: what is added to a layer must be what its own result then differs by."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray

from minka.errors import ModelError, UsageError
from minka.native.context import Context
from minka.native.control_vector import layer_range, load, read
from minka.native.model import Model
from minka.native.observer import ResultContext
from minka.native.raw import RawContext, TokenList
from minka.params import ContextParams
from tests import tiny

F32 = NDArray[np.float32]
TOKENS = [1, 20, 300, 4]
SMALL = {"n_ctx": 64, "parallel": 1, "kv_unified": False, "threads": 1, "warmup": False, "flash_attn": "off"}


def write(path: Path, directions: dict[str, F32], **keys: str) -> Path:
    writer = GGUFWriter(path, "controlvector")
    for key, value in keys.items():
        writer.add_string(f"controlvector.{key}", value)
    for name, values in directions.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ones(scale: float = 1.0, n: int = 64) -> F32:
    return np.random.default_rng(2).normal(size=n).astype(np.float32) * np.float32(scale)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    from minka.params import ModelParams

    path = tiny.write_llama(tmp_path_factory.mktemp("cv") / "four.gguf", n_layer=4)
    return Model.load(path, ModelParams(n_gpu_layers=0))


def layers(model: Model, **params: object) -> dict[int, F32]:
    """What each layer gives to the next, shape (n_tokens, n_embd)."""
    seen: dict[int, F32] = {}

    def see(name: str, values: F32) -> None:
        seen[int(name.removeprefix("l_out-"))] = values[0, 0].copy()

    context = ResultContext(model, ContextParams(**{**SMALL, **params}), "l_out-", see)  # type: ignore[arg-type]
    with closing(context):
        context.add(0, TOKENS, 0, logits=len(TOKENS))
        context.decode()
    return seen


def test_a_direction_is_added_behind_its_layer(model: Model, tmp_path: Path) -> None:
    path = write(tmp_path / "c.gguf", {"direction.2": ones()})
    plain, steered = layers(model), layers(model, control_vectors=((str(path), 0.5),))
    assert (plain[0] == steered[0]).all()
    assert (plain[1] == steered[1]).all()
    np.testing.assert_allclose(steered[2], plain[2] + 0.5 * ones(), atol=1e-5)
    assert not np.allclose(steered[3], plain[3], atol=0.1)


def test_only_layers_of_the_range_are_steered(model: Model, tmp_path: Path) -> None:
    path = str(write(tmp_path / "c.gguf", {"direction.1": ones(), "direction.3": ones()}))
    plain = layers(model)
    late = layers(model, control_vectors=((path, 1.0),), control_vector_layers=(2, 3))
    assert (late[1] == plain[1]).all()
    np.testing.assert_allclose(late[3], plain[3] + ones(), atol=1e-5)
    early = layers(model, control_vectors=((path, 1.0),), control_vector_layers=(0, 2))
    np.testing.assert_allclose(early[1], plain[1] + ones(), atol=1e-5)


def test_both_kinds_of_contexts_steer(model: Model, tmp_path: Path) -> None:
    path = str(write(tmp_path / "c.gguf", {"direction.3": ones()}))
    params = ContextParams(**SMALL, control_vectors=((path, 1.0),))  # type: ignore[arg-type]
    with closing(RawContext(model, params)) as raw:
        tokens = TokenList()
        tokens.add(TOKENS, 0, [0], slice(0, 4))
        batch = raw.prepare(tokens.tokens())
        raw.decode(batch)
        expected = raw.logits(4)[3].copy()
    with closing(Context(model, params)) as context:
        row = context.add(0, TOKENS, 0, logits=1)
        context.decode()
        np.testing.assert_allclose(context.logits(row), expected, atol=1e-4)
        steered = context.logits(row).copy()
    with closing(Context(model, ContextParams(**SMALL))) as context:  # type: ignore[arg-type]
        row = context.add(0, TOKENS, 0, logits=1)
        context.decode()
        assert not np.allclose(context.logits(row), steered, atol=0.1)


def test_what_was_steered_is_kept_apart_on_disk(model: Model, tmp_path: Path) -> None:
    path = str(write(tmp_path / "c.gguf", {"direction.3": ones()}))

    def fingerprint(**params: object) -> str:
        with closing(Context(model, ContextParams(**{**SMALL, **params}))) as context:  # type: ignore[arg-type]
            return context.fingerprint

    found = [
        fingerprint(),
        fingerprint(control_vectors=((path, 1.0),)),
        fingerprint(control_vectors=((path, 2.0),)),
        fingerprint(control_vectors=((path, 2.0),), control_vector_layers=(3, 3)),
    ]
    assert len(set(found)) == 4
    assert fingerprint(control_vectors=((path, 1.0),)) == found[1]


def test_files_add_up_times_their_factors(tmp_path: Path) -> None:
    a = str(write(tmp_path / "a.gguf", {"direction.1": ones(), "direction.2": ones()}))
    b = str(write(tmp_path / "b.gguf", {"direction.2": ones(2.0)}))
    total = load(((a, 1.0), (b, -0.25)), n_layer=4, n_embd=64)
    np.testing.assert_allclose(total, [ones(), 0.5 * ones(), 0 * ones()], atol=1e-6)


def test_layers_that_the_model_lacks_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(write(tmp_path / "c.gguf", {"direction.1": ones(), "direction.9": ones()}))
    assert load(((path, 1.0),), n_layer=3, n_embd=64).shape == (2, 64)
    assert "a direction for layer 9, which the model does not have" in caplog.text


@pytest.mark.parametrize(("given", "expected"), [((), (1, 4)), ((-1, -1), (1, 4)), ((2, 3), (2, 3)), ((0, 2), (1, 2))])
def test_layer_range(given: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert layer_range(ContextParams(control_vector_layers=given), 4) == expected


def test_a_range_of_no_layers(model: Model, tmp_path: Path) -> None:
    path = str(write(tmp_path / "c.gguf", {"direction.1": ones()}))
    with pytest.raises(UsageError, match="--control-vector-layer-range 3 2 has no layer in it"):
        layers(model, control_vectors=((path, 1.0),), control_vector_layers=(3, 2))


@pytest.mark.parametrize(
    ("directions", "says"),
    [
        ({"direction.0": ones()}, "tensor direction.0 is not direction.N"),
        ({"other": ones()}, "tensor other is not direction.N"),
        ({"direction.1": ones().astype(np.float16)}, "tensor direction.1 is not direction.N"),
        ({"direction.1": ones().reshape(8, 8)}, "tensor direction.1 is not direction.N"),
        ({"direction.1": ones(), "direction.2": ones(n=32)}, "its directions are of different sizes"),
        ({"direction.1": ones(n=32)}, "its directions have 32 values, and the layers of this model compute 64"),
    ],
)
def test_files_that_do_not_fit(
    model: Model, tmp_path: Path, directions: dict[str, NDArray[np.generic]], says: str
) -> None:
    path = write(tmp_path / "c.gguf", directions)  # type: ignore[arg-type]
    for make in (Context, RawContext):
        with pytest.raises(ModelError, match=says):
            make(model, ContextParams(**SMALL, control_vectors=((str(path), 1.0),)))  # type: ignore[arg-type]


def test_a_file_says_what_it_was_made_with(tmp_path: Path) -> None:
    vector = read(write(tmp_path / "c.gguf", {"direction.1": ones()}, model_hint="llama"))
    assert (vector.model_hint, vector.n_embd, list(vector.directions)) == ("llama", 64, [1])
