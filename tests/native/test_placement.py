from __future__ import annotations

import pytest

from minka.errors import ModelError, UsageError
from minka.native.library import library
from minka.native.model import Model
from minka.native.placement import (
    EXPERTS,
    KvOverride,
    Placement,
    block_overrides,
    check_buffer_type,
    check_device,
    cpu_buffer_type,
)
from minka.params import ModelParams
from tests.tiny_fixtures import TinyModels


def load(tiny_models: TinyModels, placement: Placement) -> Model:
    return Model.load(tiny_models("llama"), ModelParams(), placement=placement)


def test_metadata_is_changed_before_the_model_is_loaded(tiny_models: TinyModels) -> None:
    placement = Placement(
        metadata=(
            KvOverride("llama.context_length", 77),
            KvOverride("tokenizer.ggml.add_bos_token", value=False),
            KvOverride("general.name", "another"),
            KvOverride("llama.attention.layer_norm_rms_epsilon", 0.5),
        )
    )
    model = load(tiny_models, placement)
    assert model.n_ctx_train == 77
    assert not model.vocab.add_bos
    model.close()


def test_tensors_can_be_put_into_a_buffer_type(tiny_models: TinyModels) -> None:
    model = load(tiny_models, Placement(overrides=((r"ffn_.*", "CPU"),), lazy_mode="off", devices=()))
    assert model.n_params > 0
    model.close()


def test_the_patterns_name_the_experts_of_the_first_layers() -> None:
    assert block_overrides(2, EXPERTS) == (
        (r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps", cpu_buffer_type()),
        (r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps", cpu_buffer_type()),
    )
    assert block_overrides(0, EXPERTS) == ()


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement(devices=("CUDA99",)), "no device 'CUDA99'"),
        (Placement(devices=("CPU",)), "no device 'CPU'"),
        (Placement(overrides=(("x", "GPU99"),)), "no buffer type 'GPU99'; there are .*CPU"),
    ],
)
def test_what_does_not_exist_is_named(tiny_models: TinyModels, placement: Placement, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tiny_models, placement)


def test_names_can_be_checked_beforehand() -> None:
    assert check_buffer_type("CPU") == "CPU"
    with pytest.raises(UsageError, match="no buffer type"):
        check_buffer_type("nowhere")
    with pytest.raises(UsageError, match="no device"):
        check_device("nowhere")


def test_metadata_of_another_type_is_libllamas_error(tiny_models: TinyModels) -> None:
    library()
    with pytest.raises(ModelError, match="cannot load the model"):
        load(tiny_models, Placement(metadata=(KvOverride("llama.block_count", 99),)))
