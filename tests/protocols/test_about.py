from __future__ import annotations

from dataclasses import replace

import pytest

from minka.errors import NotFoundError
from minka.params import SamplingParams, ServerParams
from minka.protocols.about import models_object, one_model_object, props_object, slots_object
from minka.types import Job, SlotView
from tests.protocols.values import at, made_served

SERVED = made_served(n_ctx=512, n_slots=2)
SLOT = SlotView(
    id=1,
    busy=True,
    job=Job("chatcmpl-x:0", (1, 2, 3), replace(SamplingParams(), seed=5), n_predict=9, stop=("secret",)),
    n_past=5,
    n_prompt=3,
    n_cached=1,
    n_processed=2,
    n_generated=3,
    has_new_line=True,
    order=4,
)


def test_the_model_is_listed_once_in_openais_shape_and_in_ollamas() -> None:
    listed = models_object(SERVED)
    assert listed["object"] == "list"
    assert at(listed, "data", 0, "id") == "fake.gguf"
    assert at(listed, "data", 0, "object") == "model"
    assert at(listed, "data", 0, "aliases") == ["other-name"]
    assert at(listed, "data", 0, "meta") == {
        "vocab_type": 1,
        "n_vocab": 259,
        "n_ctx": 512,
        "n_ctx_train": 512,
        "n_embd": 8,
        "n_params": 1000,
        "size": 4000,
        "ftype": "F32",
    }
    assert at(listed, "models", 0, "model") == "fake.gguf"


@pytest.mark.parametrize("name", ["fake.gguf", "other-name"])
def test_a_model_is_found_by_its_names(name: str) -> None:
    assert at(one_model_object(SERVED, name), "id") == "fake.gguf"


def test_another_model_is_not_found() -> None:
    with pytest.raises(NotFoundError, match=r"'gpt-4o' is not served here; this server has 'fake.gguf'"):
        one_model_object(SERVED, "gpt-4o")


def test_props_tell_of_server_model_and_template() -> None:
    props = props_object(SERVED, ServerParams(props=True))
    assert at(props, "default_generation_settings", "n_ctx") == 512
    assert at(props, "default_generation_settings", "params", "temperature") == 0.8
    assert (props["total_slots"], props["model_alias"], props["model_path"]) == (2, "fake.gguf", "models/fake.gguf")
    assert (props["endpoint_slots"], props["endpoint_props"], props["endpoint_metrics"]) == (True, True, False)
    assert (props["bos_token"], props["eos_token"], props["build_info"]) == ("<s>", "</s>", "b0-test")
    assert "<|im_start|>" in str(props["chat_template"])
    assert at(props, "chat_template_caps", "supports_system_role") is True
    assert "chat_template_tool_use" not in props


def test_a_busy_slot_tells_of_its_job_but_not_the_users_text() -> None:
    (slot,) = slots_object([SLOT], SERVED)
    assert (slot["id"], slot["is_processing"], slot["n_ctx"], slot["id_task"]) == (1, True, 512, 4)
    assert (slot["n_prompt_tokens"], slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]) == (3, 2, 1)
    assert at(slot, "params", "seed") == 5
    assert at(slot, "next_token", 0) == {"has_next_token": True, "has_new_line": True, "n_remain": 6, "n_decoded": 3}
    assert "secret" not in str(slot)


def test_an_idle_slot_has_nothing_left_to_do() -> None:
    (slot,) = slots_object([replace(SLOT, busy=False)], SERVED)
    assert slot["is_processing"] is False
    assert at(slot, "next_token", 0, "has_next_token") is False
    (unused,) = slots_object([replace(SLOT, busy=False, job=None)], SERVED)
    assert list(unused) == ["id", "n_ctx", "speculative", "is_processing"]
