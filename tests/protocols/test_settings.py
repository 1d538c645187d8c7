from __future__ import annotations

import json
from dataclasses import fields, replace
from math import inf

from minka.params import GenerationParams, SamplingParams, rows
from minka.protocols.settings import RANDOM_SEED, settings_object
from minka.types import Job

SHORT = """
    seed temperature dynatemp_range dynatemp_exponent top_k top_p min_p top_n_sigma xtc_probability xtc_threshold
    typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty dry_multiplier dry_base
    dry_allowed_length dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay max_tokens
    n_predict n_keep n_discard ignore_eos stream n_probs min_keep chat_format reasoning_format reasoning_in_content
    generation_prompt samplers speculative.types timings_per_token post_sampling_probs backend_sampling lora
    n_indent close_at_limit t_max_predict_ms n_cache_reuse cache_prompt priority timeout_ms
""".split()  # noqa: SIM905 (a table)
USER_TEXT = {
    "dry_sequence_breakers": "dry_penalty_last_n",
    "stop": "adaptive_decay",
    "logit_bias": "stream",
    "grammar": "min_keep",
    "grammar_lazy": "grammar",
    "grammar_triggers": "grammar_lazy",
    "preserved_tokens": "grammar_triggers",
}
"""Keys of the full object only, each with the key before it."""

JOB = Job("id", (1,), SamplingParams(), n_predict=7, stop=("END",))


def test_keys_are_llama_servers_in_its_order() -> None:
    assert list(settings_object(JOB, stream=False, full=False)) == SHORT
    expected = list(SHORT)
    for key, before in USER_TEXT.items():
        expected.insert(expected.index(before) + 1, key)
    assert list(settings_object(JOB, stream=False)) == expected


def test_what_may_hold_user_text_is_left_out_where_anybody_looks() -> None:
    assert not USER_TEXT.keys() & settings_object(JOB, stream=False, full=False).keys()


def test_every_sampling_parameter_is_shown() -> None:
    assert {field.name for field in fields(SamplingParams)} <= settings_object(JOB, stream=False).keys()


NOT_OF_A_JOB = {
    "n_cmpl": "one job is one completion",
    "id_slot": "the answer has the slot",
    "cache_salt": "a secret",
    "return_tokens": "how the answer is sent",
    "return_progress": "how the answer is sent",
    "sse_ping_interval": "how the answer is sent",
    "response_fields": "how the answer is sent",
    "verbose": "how the answer is sent",
}
"""Request fields of the parameter table that `generation_settings` does not show, with the reason."""


def test_every_other_parameter_of_a_request_is_shown_too() -> None:
    asked = {row.name for row in rows(GenerationParams) if row.param.http}
    shown = settings_object(JOB, stream=False).keys()
    assert asked - NOT_OF_A_JOB.keys() <= shown
    assert not NOT_OF_A_JOB.keys() & shown
    assert NOT_OF_A_JOB.keys() <= asked


def test_values_are_the_jobs() -> None:
    sampling = replace(SamplingParams(), seed=3, temperature=0.1, logit_bias=((5, -inf), (6, 2.5)))
    made = settings_object(replace(JOB, sampling=sampling, n_keep=5, n_discard=9), stream=True, timings_per_token=True)
    assert (made["seed"], made["temperature"], made["max_tokens"], made["n_predict"]) == (3, 0.1, 7, 7)
    assert (made["n_keep"], made["n_discard"]) == (5, 9)
    assert made["logit_bias"] == [{"bias": None, "token": 5}, {"bias": 2.5, "token": 6}]
    assert (made["stop"], made["stream"], made["timings_per_token"]) == (["END"], True, True)
    json.dumps(made, allow_nan=False)


def test_a_random_seed_is_llama_cpps_number() -> None:
    assert settings_object(JOB, stream=False)["seed"] == RANDOM_SEED == 2**32 - 1
