from __future__ import annotations

from pathlib import Path

import pytest

from minka import SamplingParams
from minka.api.settings import GROUPS, keyword_settings
from minka.errors import UsageError
from minka.params import UNSUPPORTED_FIELDS, GenerationParams, rows
from minka.params import SamplingParams as Table


def test_parameters_have_the_names_of_the_table() -> None:
    made = keyword_settings(
        Path("m.gguf"),
        {
            "n_ctx": 512,
            "n_gpu_layers": "all",
            "cache_ram": 0,
            "temperature": 0,
            "stop": ["x"],
            "tensor_split": [1, 2],
            "chat_template_kwargs": {"enable_thinking": False},
            "context_shift": True,
            "kv_unified": None,
            "n_cpu_moe": 3,
            "override_tensor": ["exps=CPU"],
            "cpu_range": "0-1",
        },
    )
    hardware = made.hardware
    assert (hardware.n_cpu_moe, hardware.override_tensor, hardware.cpu_range) == (3, ("exps=CPU",), "0-1")
    assert (made.model.model, made.model.n_gpu_layers, made.model.tensor_split) == ("m.gguf", -2, (1, 2))
    assert (made.context.n_ctx, made.sampling.temperature, made.generation.stop) == (512, 0, ("x",))
    assert (made.engine.memory.limit, made.engine.shifts) == (0, True)
    assert made.chat.chat_template_kwargs == '{"enable_thinking": false}'


def test_every_default_of_the_table_is_taken() -> None:
    for group in GROUPS:
        for row in rows(group):
            keyword_settings(None, {row.name: row.default})


def test_deterministic_gives_each_slot_a_buffer() -> None:
    assert keyword_settings(None, {"deterministic": True}).context.kv_unified is False
    with pytest.raises(UsageError, match="exclude each other"):
        keyword_settings(None, {"deterministic": True, "kv_unified": True})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n_ctxx", 1, "there is no parameter n_ctxx; did you mean n_ctx?"),
        ("n_ctx", -1, "n_ctx must be between"),
        ("n_ctx", "many", "n_ctx must be of type int"),
        ("n_ctx", True, "n_ctx must be of type int"),
        ("parallel", 10**6, "parallel must be"),
        ("cache_type_k", "f99", "cache_type_k must be one of"),
        ("jinja", 1, "jinja must be of type bool"),
        ("stop", "x", "stop must be a list"),
        ("stop", [1], "stop must have strings"),
        ("samplers", ["magic"], "samplers has no 'magic'"),
        ("temperature", float("nan"), "temperature must be a finite number"),
    ],
)
def test_what_the_table_does_not_take(name: str, value: object, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        keyword_settings(None, {name: value})


def test_sampling_params_are_request_fields() -> None:
    known = {name for group in (Table, GenerationParams) for row in rows(group) for name in row.param.http}
    known |= {*UNSUPPORTED_FIELDS, "grammar", "json_schema"}
    named = set(SamplingParams.__dataclass_fields__) - {"extra", "logprobs"}
    assert named <= known
    assert SamplingParams().request_fields() == {}
    assert SamplingParams(stop=("a",), logit_bias={3: 1.0}, extra={"n_keep": 2}).request_fields() == {
        "stop": ["a"],
        "logit_bias": [[3, 1.0]],
        "n_keep": 2,
    }
