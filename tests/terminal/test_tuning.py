from __future__ import annotations

import pytest

from minka.commands.chat import FlagSpelling
from minka.errors import UsageError
from minka.params import GenerationParams, SamplingParams, rows
from minka.terminal import tuning
from minka.terminal.tuning import Difference, Tuning

SPELLING = FlagSpelling()
START = Tuning(SamplingParams(), GenerationParams())


def changed(name: str, text: str) -> Tuning:
    return START.changed(name, text, SPELLING)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.2", 0.2),
        ("temp", "0.2", 0.2),
        ("--temp", "0.2", 0.2),
        ("top-k", "5", 5),
        ("TOP_K", "5", 5),
        ("seed", "7", 7),
        ("ignore_eos", "on", True),
        ("samplers", "top_k;temperature", ("top_k", "temperature")),
        ("logit_bias", "15043-1.5", ((15043, -1.5),)),
        ("dry_sequence_breakers", "none", ()),
        ("n_predict", "12", 12),
        ("n", "12", 12),
        ("max_tokens", "12", 12),
        ("stop", "\\nUser:", ("\nUser:",)),
        ("stop", "", ()),
        ("cache_prompt", "off", False),
    ],
)
def test_a_parameter_is_set_by_any_of_its_names(name: str, text: str, value: object) -> None:
    assert changed(name, text).value(tuning.find(name)) == value


def test_setting_one_parameter_leaves_the_others_and_the_original() -> None:
    after = changed("top_k", "5")
    assert after.sampling == SamplingParams(top_k=5)
    assert after.generation == START.generation
    assert START.sampling == SamplingParams()


def test_out_of_range_is_limited_or_refused_as_the_table_says() -> None:
    assert changed("top_p", "7").sampling.top_p == 1
    with pytest.raises(UsageError, match=r"repeat_penalty must be between 1e-06 and 1000000"):
        changed("repeat_penalty", "0")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("temprature", "1", "did you mean temperature"),
        ("zzz", "1", "/help lists them"),
        ("n_keep", "1", "no parameter n_keep"),
        ("stream", "on", "no parameter stream"),
        ("n_probs", "3", "no parameter n_probs"),
        ("top_k", "many", "top_k must be an integer"),
        ("ignore_eos", "maybe", "ignore_eos must be one of on"),
        ("samplers", "magic", "has no sampler 'magic'"),
    ],
)
def test_a_bad_name_or_value_is_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        changed(name, text)


def test_the_word_default_gives_the_default_back() -> None:
    assert changed("top_k", "5").changed("top_k", "default", SPELLING) == START


def test_differences_are_what_is_not_at_its_default() -> None:
    assert list(START.differences(SPELLING)) == []
    tuned = changed("temperature", "0.2").changed("stop", "a\\n", SPELLING).changed("logit_bias", "5+1", SPELLING)
    assert list(tuned.differences(SPELLING)) == [
        Difference("temperature", "0.2", "0.8"),
        Difference("logit_bias", "5+1", ""),
        Difference("stop", "a\\n", ""),
    ]


def test_every_sampling_parameter_that_has_a_meaning_here_can_be_set() -> None:
    expected = {row.name for row in rows(SamplingParams)} - {"n_probs", "post_sampling_probs"}
    assert expected | set(tuning.USED) == set(tuning.names())


@pytest.mark.parametrize("name", tuning.names())
def test_what_is_shown_can_be_typed_again(name: str) -> None:
    row = tuning.find(name)
    shown = SPELLING.show(row, row.default)
    if shown and row.name != "dry_sequence_breakers":  # of a list of breakers one is typed at a time
        assert changed(name, shown) == START


def test_describe_says_value_meaning_and_range() -> None:
    text = START.describe("top-p", SPELLING)
    assert text.startswith("top_p is 0.95: ")
    assert "0..1" in text
