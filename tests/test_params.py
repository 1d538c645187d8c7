from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import RequestError, UnsupportedError
from minka.params import (
    ACCEPTED_FIELDS,
    GROUPS,
    IGNORED,
    SAMPLERS,
    UNSUPPORTED,
    UNSUPPORTED_FIELDS,
    BadValueError,
    ChatParams,
    GenerationParams,
    Kind,
    ModelParams,
    Row,
    SamplingParams,
    ServerParams,
    check_items,
    limit,
    parse_fields,
    refuse_unsupported,
    rows,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLE = [pytest.param(cls, row, id=f"{cls.__name__}.{row.name}") for cls in GROUPS for row in rows(cls)]
FLOAT32_MAX = 3.4e38


def every_row() -> Iterator[Row]:
    for cls in GROUPS:
        yield from rows(cls)


# -- the table itself


@pytest.mark.parametrize(("cls", "row"), TABLE)
def test_row_has_one_doc_line(cls: type[DataclassInstance], row: Row) -> None:
    assert row.param.doc
    assert "\n" not in row.param.doc
    assert row.param.doc == row.param.doc.strip().rstrip(".")


@pytest.mark.parametrize(("cls", "row"), TABLE)
def test_row_can_be_set_from_somewhere(cls: type[DataclassInstance], row: Row) -> None:
    assert row.param.flags or row.param.http


@pytest.mark.parametrize(("cls", "row"), TABLE)
def test_default_is_allowed(cls: type[DataclassInstance], row: Row) -> None:
    match row.type:
        case Kind.INT | Kind.FLOAT if row.default is not None:
            assert isinstance(row.default, (int, float))
            assert limit(row, row.default) == row.default
        case Kind.STR if row.param.choices and row.default is not None:
            assert row.default in row.param.choices
        case Kind.STRS if row.param.choices:
            assert isinstance(row.default, tuple)
            assert set(row.default) <= set(row.param.choices)


@pytest.mark.parametrize(("cls", "row"), TABLE)
def test_numbers_have_a_range_that_c_can_hold(cls: type[DataclassInstance], row: Row) -> None:
    if row.type not in (Kind.INT, Kind.FLOAT, Kind.FLOATS, Kind.BIASES):
        return
    low, high = row.param.low, row.param.high
    assert low is not None
    assert high is not None
    assert low < high
    if row.type is Kind.INT:
        assert isinstance(low, int)
        assert isinstance(high, int)
        assert low >= -(2**31)
        assert high <= (2**63 - 1 if row.name == "t_max_predict_ms" else 2**32 - 1 if row.name == "seed" else 2**31 - 1)
    else:
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert max(abs(low), abs(high)) < FLOAT32_MAX


def test_no_spelling_is_used_twice() -> None:
    flags = Counter(f for row in every_row() for f in (*row.param.flags, *row.param.negated))
    flags.update(f for row in every_row() for also in row.param.also for f in also.flags)
    flags.update(f for foreign in (*IGNORED, *UNSUPPORTED) for f in (*foreign.flags, *foreign.negated))
    envs = Counter(row.param.env for row in every_row() if row.param.env)
    envs.update(also.env for row in every_row() for also in row.param.also if also.env)
    envs.update(foreign.env for foreign in (*IGNORED, *UNSUPPORTED) if foreign.env)
    fields = Counter(name for row in every_row() for name in row.param.http)
    fields.update([*UNSUPPORTED_FIELDS, *ACCEPTED_FIELDS])
    for names in (flags, envs, fields):
        assert [name for name, uses in names.items() if uses > 1] == []


def test_flags_are_written_as_on_the_command_line() -> None:
    for row in every_row():
        for flag in (*row.param.flags, *row.param.negated):
            assert flag.startswith("-")
            assert "_" not in flag
        assert not row.param.negated or row.type is Kind.BOOL


def test_request_fields_of_llama_server_are_all_known() -> None:
    fields = """verbose timings_per_token stream cache_prompt return_tokens return_progress sse_ping_interval n_predict
        max_completion_tokens max_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms
        response_fields id_slot lora stop samplers seed temperature dynatemp_range dynatemp_exponent top_k top_p min_p
        top_n_sigma typical_p xtc_probability xtc_threshold repeat_last_n repeat_penalty presence_penalty
        frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat
        mirostat_tau mirostat_eta adaptive_target adaptive_decay min_keep n_probs post_sampling_probs backend_sampling
        logit_bias ignore_eos logprobs grammar json_schema grammar_lazy grammar_triggers reasoning_format
        reasoning_budget_tokens thinking_budget_tokens reasoning_budget_message reasoning_control reasoning_effort
        tools tool_choice parallel_tool_calls response_format top_logprobs model"""
    known = {name for row in every_row() for name in row.param.http} | {*UNSUPPORTED_FIELDS, *ACCEPTED_FIELDS}
    known |= {"grammar", "json_schema", "response_format"}  # protocols/constraint.py reads them
    assert set(fields.split()) - known == set()


def test_secrets_are_not_in_a_repr() -> None:
    assert "hf_hidden" not in repr(ModelParams(hf_token="hf_hidden"))
    assert "sk-hidden" not in repr(ServerParams(api_key=("sk-hidden",)))


def test_defaults_are_llama_servers() -> None:
    sampling, generation = SamplingParams(), GenerationParams()
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.95, 0.05)
    assert "".join(SAMPLERS[name] for name in sampling.samplers) == "edskypmxt"
    assert sampling.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert (generation.n_predict, generation.stop, generation.cache_prompt) == (-1, (), True)


# -- requests


def sampling(**body: object) -> SamplingParams:
    return parse_fields(SamplingParams, body, SamplingParams())


def generation(**body: object) -> GenerationParams:
    return parse_fields(GenerationParams, body, GenerationParams())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0.2}, {"temperature": 0.2}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"temperature": -3}, {"temperature": 0.0}),
        ({"temperature": None}, {"temperature": 0.8}),
        ({"top_p": 7}, {"top_p": 1.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 10**30}, {"top_k": 2**31 - 1}),
        ({"top_k": 3.0}, {"top_k": 3}),
        ({"mirostat": 9}, {"mirostat": 2}),
        ({"top_n_sigma": -5}, {"top_n_sigma": -1.0}),
        ({"seed": -1}, {"seed": -1}),
        ({"seed": 2**32 - 1}, {"seed": 2**32 - 1}),
        ({"dry_base": 0.5}, {"dry_base": 1.75}),
        ({"dry_base": 2}, {"dry_base": 2.0}),
        ({"samplers": ["top-k", "nucleus", "TEMP", "typical", "topnsigma"]},
         {"samplers": ("top_k", "top_p", "temperature", "typ_p", "top_n_sigma")}),
        ({"samplers": "kpt"}, {"samplers": ("top_k", "top_p", "temperature")}),
        ({"samplers": []}, {"samplers": ()}),
        ({"samplers": ""}, {"samplers": ()}),
        ({"dry_sequence_breakers": ["a", ""]}, {"dry_sequence_breakers": ("a", "")}),
        ({"logit_bias": {"1": "read elsewhere"}}, {"logit_bias": ()}),
        ({"unknown": 1, "typ_p": 0.3}, {"typical_p": 1.0}),
    ],
)  # fmt: skip
def test_sampling_fields(body: dict[str, object], expected: dict[str, object]) -> None:
    assert sampling(**body) == dataclasses.replace(SamplingParams(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 5}, {"n_predict": 5}),
        ({"max_tokens": 5, "n_predict": 7}, {"n_predict": 7}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"n_predict": 6}),
        ({"max_tokens": 5, "max_completion_tokens": None}, {"n_predict": 5}),
        ({"n": 2}, {"n_cmpl": 2}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "", "b"]}, {"stop": ("a", "b")}),
        ({"stop": [""]}, {}),
        ({"stop": ""}, {}),
        ({"stream": True, "priority": 1}, {"stream": True, "priority": 1}),
        ({"sse_ping_interval": -1}, {"sse_ping_interval": -1}),
        ({"response_fields": ["content"]}, {"response_fields": ("content",)}),
        ({"escape": False}, {}),
    ],
)
def test_generation_fields(body: dict[str, object], expected: dict[str, object]) -> None:
    assert generation(**body) == dataclasses.replace(GenerationParams(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "hot", 'field "temperature" must be a number, but got a string'),
        ("temperature", True, 'field "temperature" must be a number, but got a boolean'),
        ("temperature", nan, 'field "temperature" must be a finite number'),
        ("temperature", inf, 'field "temperature" must be a finite number'),
        ("top_k", 1.5, 'field "top_k" must be an integer, but got 1.5'),
        ("top_k", False, 'field "top_k" must be an integer, but got a boolean'),
        ("top_k", [1], 'field "top_k" must be an integer, but got an array'),
        ("seed", -2, 'field "seed" must be between -1 and 4294967295, but got -2'),
        ("seed", 2**32, 'field "seed" must be between -1 and 4294967295, but got 4294967296'),
        ("repeat_last_n", -1, 'field "repeat_last_n" must be between 0 and 1048576, but got -1'),
        ("repeat_penalty", 0, 'field "repeat_penalty" must be between 1e-06 and 1000000, but got 0'),
        ("adaptive_decay", 1.0, 'field "adaptive_decay" must be between 0 and 0.99, but got 1'),
        ("ignore_eos", 1, 'field "ignore_eos" must be a boolean, but got a number'),
        ("dry_sequence_breakers", [], 'field "dry_sequence_breakers" needs at least 1 value'),
        ("dry_sequence_breakers", "a", 'field "dry_sequence_breakers" must be an array of strings, but got a string'),
        ("dry_sequence_breakers", [1], 'field "dry_sequence_breakers" must be an array of strings, but has a number'),
        ("samplers", ["top_k", "topkk"], 'field "samplers" has no sampler \'topkk\'; there are penalties, dry'),
        ("samplers", "kz", "field \"samplers\" has no sampler letter 'z'; there are e (penalties)"),
        ("samplers", ["top_k"] * 33, 'field "samplers" takes at most 32 values, but got 33'),
        ("samplers", {"top_k": 1}, 'field "samplers" must be an array of strings, but got an object'),
    ],
)  # fmt: skip
def test_bad_sampling_field(field: str, value: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(**{field: value})
    assert str(caught.value).startswith(message)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n_predict", -2, 'field "n_predict" must be between -1 and 2147483647, but got -2'),
        ("max_tokens", 2**31, 'field "max_tokens" must be between -1 and 2147483647, but got 2147483648'),
        pytest.param(
            "n_keep",
            -(10**5000),
            'field "n_keep" must be between -1 and 2147483647, but got a larger number',
            id="huge",
        ),
        ("n", 0, 'field "n" must be between 1 and 256, but got 0'),
        ("priority", 2, 'field "priority" must be between -1 and 1, but got 2'),
        ("stop", 3, 'field "stop" must be a string or an array of strings, but got a number'),
        ("stop", ["a", None], 'field "stop" must be a string or an array of strings, but has null in it'),
        ("stream", "yes", 'field "stream" must be a boolean, but got a string'),
    ],
)
def test_bad_generation_field(field: str, value: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        generation(**{field: value})
    assert str(caught.value) == message
    assert caught.value.param == field


def test_a_body_without_parameters_returns_the_very_defaults() -> None:
    defaults = SamplingParams(temperature=0.1)
    assert parse_fields(SamplingParams, {"messages": [], "top_k": None}, defaults) is defaults


def test_what_the_body_does_not_set_is_the_servers() -> None:
    defaults = SamplingParams(temperature=0.1, logit_bias=((3, -inf),))
    assert parse_fields(SamplingParams, {"top_k": 2}, defaults) == dataclasses.replace(defaults, top_k=2)


def test_a_value_besides_the_range() -> None:
    [row] = [row for row in every_row() if row.name == "parallel"]
    assert limit(row, -1) == -1
    with pytest.raises(BadValueError, match="must be -1 or between 1 and 256, but got 0"):
        limit(row, 0)
    assert row.range == "-1 or 1..256"


FIELDS = sorted({name for cls in (SamplingParams, GenerationParams) for row in rows(cls) for name in row.param.http})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["k", "temp", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def assert_in_range(params: DataclassInstance) -> None:
    for row in rows(type(params)):
        value = getattr(params, row.name)
        match row.type:
            case Kind.BOOL:
                assert type(value) is bool
            case Kind.INT:
                assert type(value) is int
                assert limit(row, value) == value
            case Kind.FLOAT:
                assert type(value) is float
                assert isfinite(value)
                assert limit(row, value) == value
            case Kind.STRS:
                assert isinstance(value, tuple)
                assert all(type(item) is str for item in check_items(row, value))
                assert not row.param.choices or set(value) <= set(row.param.choices)


def assert_parses_or_names_the_field(cls: type[DataclassInstance], body: Mapping[str, object]) -> None:
    failed: RequestError | None = None
    try:
        params = parse_fields(cls, body, cls())
    except RequestError as error:
        failed = error
    else:
        assert_in_range(params)
    assert failed is None or (failed.param in body and f'"{failed.param}"' in str(failed))


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(), JSON, max_size=8))
def test_any_body_gives_values_in_range_or_a_request_error(body: Mapping[str, object]) -> None:
    for cls in (SamplingParams, GenerationParams):
        assert_parses_or_names_the_field(cls, body)


@given(st.sampled_from(FIELDS), st.integers() | st.floats() | st.integers(-(10**400), 10**400))
def test_any_number_gives_a_value_in_range_or_a_request_error(field: str, value: float) -> None:
    for cls in (SamplingParams, GenerationParams):
        assert_parses_or_names_the_field(cls, {field: value})


# -- fields that are not supported


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "grammar": "", "logprobs": False},
        {"tools": None, "json_schema": None, "lora": []},
        {"user": "x", "metadata": {"a": 1}, "model": "m", "store": False, "service_tier": "auto"},
        {"messages": [], "temperature": 5},
    ],
)
def test_neutral_values_pass(body: dict[str, object]) -> None:
    refuse_unsupported(body)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tools", [{"type": "function"}], 'field "tools" is not supported yet; only [] is'),
        ("tool_choice", "required", 'field "tool_choice" is not supported yet; only "none" or "auto" is'),
        ("grammar_lazy", True, 'field "grammar_lazy" is not supported yet; only false is'),
        ("store", True, 'field "store" is not supported yet; only false is'),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_unsupported({"model": "m", field: value})
    assert str(caught.value) == message
    assert caught.value.param == field
    assert caught.value.status == 400


def test_a_caller_that_reads_a_field_itself_may_say_so() -> None:
    refuse_unsupported({"logprobs": True}, supported=("logprobs",))


def test_every_table_value_is_json() -> None:
    for values in (*UNSUPPORTED_FIELDS.values(), *ACCEPTED_FIELDS.values()):
        assert json.loads(json.dumps(values)) == (None if values is None else list(values))


def test_chat_template_kwargs_default_is_a_json_object() -> None:
    assert json.loads(ChatParams().chat_template_kwargs) == {}


# -- the documentation


def test_docs_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parent.parent / "tools" / "docs.py"
    spec = importlib.util.spec_from_file_location("minka_docs_tool", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        assert module.main(["--check"]) == 0, capsys.readouterr().err
    finally:
        del sys.modules[spec.name]
