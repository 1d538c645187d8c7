from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minka.errors import NativeError, RequestError
from minka.native import samplers
from minka.native.context import Context
from minka.native.library import library
from minka.native.model import Model
from minka.native.samplers import CONSTRUCTORS, Chain, Greedy, picks_maximum
from minka.params import DEFAULT_SAMPLERS, SAMPLERS, ContextParams, SamplingParams, rows
from tests import tiny
from tests.native.conftest import ON_CPU, SMALL

Contexts = Callable[..., Context]
GREEDY = SamplingParams(temperature=0.0)
HOT = SamplingParams(temperature=2.0, samplers=("temperature",))


@pytest.fixture(scope="module")
def context(load: Callable[[str], Model]) -> Iterator[Context]:
    """One context for the module: samplers only read its rows."""
    with closing(Context(load("llama"), ContextParams(**SMALL))) as made:  # type: ignore[arg-type]
        yield made


def row_after(context: Context, *tokens: int) -> int:
    """The row of the logits after some tokens."""
    context.cut(0, 0)
    row = context.add(0, tokens or (1, 300, 301), 0, logits=1)
    context.decode()
    return row


def sampled(context: Context, params: SamplingParams, n: int = 200, seed: int = 0) -> Counter[int]:
    """How often each token is picked from one row."""
    row = row_after(context)
    with closing(context.sampler(params, seed)) as sampler:
        return Counter(sampler.sample(row) for _ in range(n))


def text(
    context: Context, params: SamplingParams, seed: int = 0, n: int = 30, prompt: tuple[int, ...] = (1, 300)
) -> list[int]:
    """Tokens generated after a prompt."""
    context.cut(0, 0)
    row, out = context.add(0, prompt, 0, logits=1), list[int]()
    context.decode()
    with closing(context.sampler(params, seed)) as sampler:
        sampler.accept(prompt)
        for _ in range(n):
            out.append(sampler.sample(row))
            row = context.add(0, out[-1:], context.length(0), logits=1)
            context.decode()
    return out


# -- the greedy path ---------------------------------------------------------------------------------------------------


def test_temperature_zero_needs_no_chain(context: Context) -> None:
    assert isinstance(context.sampler(GREEDY, 0), Greedy)
    assert isinstance(context.sampler(SamplingParams(), 0), Chain)


@pytest.mark.parametrize(
    "change",
    [
        {"repeat_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"dry_multiplier": 0.5},
        {"typical_p": 0.9},
        {"xtc_probability": 0.1},
        {"dynatemp_range": 0.5},
        {"mirostat": 1},
        {"mirostat": 2},
        {"post_sampling_probs": True},
        {"samplers": ("top_k",)},
        {"samplers": ("temperature", "adaptive_p")},
        {"samplers": ("temperature", "infill")},
    ],
)
def test_what_may_move_the_maximum_takes_the_chain(context: Context, change: dict[str, object]) -> None:
    params = replace(GREEDY, **change)  # type: ignore[arg-type]
    assert not picks_maximum(params)
    with closing(context.sampler(params, 0)) as sampler:
        assert isinstance(sampler, Chain)
        assert 0 <= sampler.sample(row_after(context)) < context.vocab.n_tokens


def test_greedy_picks_what_the_chain_picks_at_temperature_zero(context: Context) -> None:
    """`post_sampling_probs` forces the chain; all else is equal."""
    assert text(context, GREEDY, n=60) == text(context, replace(GREEDY, post_sampling_probs=True), n=60)


def test_greedy_is_the_likeliest_token(context: Context) -> None:
    row = row_after(context)
    best = int(context.logits(row).argmax())
    assert sampled(context, GREEDY, 3) == {best: 3}
    assert sampled(context, replace(HOT, samplers=("top_k", "temperature"), top_k=1)) == {best: 200}


# -- chains ------------------------------------------------------------------------------------------------------------


def test_every_name_of_a_sampler_has_a_constructor() -> None:
    assert set(CONSTRUCTORS) == set(SAMPLERS) - {"adaptive_p"}, "which picks the token itself and comes last"


@pytest.mark.parametrize("name", [*SAMPLERS])
def test_every_sampler_works_alone(context: Context, name: str) -> None:
    assert sum(sampled(context, SamplingParams(samplers=(name,)), 20).values()) == 20


@pytest.mark.parametrize(
    "change", [{}, {"mirostat": 1}, {"mirostat": 2}, {"samplers": (*DEFAULT_SAMPLERS, "adaptive_p")}]
)
def test_whole_chains_work(context: Context, change: dict[str, object]) -> None:
    params = replace(SamplingParams(), **change)  # type: ignore[arg-type]
    assert len(set(text(context, params))) > 5


@pytest.mark.parametrize(
    "change",
    [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"top_n_sigma": 0.0001}, {"typical_p": 1e-6, "min_keep": 1}],
)
def test_truncation_to_one_token_leaves_one(context: Context, change: dict[str, object]) -> None:
    params = replace(SamplingParams(temperature=3.0), **change)  # type: ignore[arg-type]
    assert len(sampled(context, params)) == 1


def test_a_hotter_choice_is_a_wider_one(context: Context) -> None:
    cold = len(sampled(context, replace(HOT, temperature=0.3)))
    assert (
        cold
        < len(sampled(context, replace(HOT, temperature=1.0)))
        < len(sampled(context, replace(HOT, temperature=9.0)))
    )


def test_order_matters(context: Context) -> None:
    """Truncation after a high temperature keeps more than before it."""
    after = replace(SamplingParams(temperature=5.0, min_p=0.3), samplers=("temperature", "min_p"))
    before = replace(after, samplers=("min_p", "temperature"))
    assert len(sampled(context, after, 500)) > len(sampled(context, before, 500))


def test_the_same_seed_gives_the_same_text(context: Context) -> None:
    texts = [text(context, HOT, seed) for seed in (7, 7, 8, 2**32 - 1)]
    assert texts[0] == texts[1]
    assert len({tuple(one) for one in texts}) == 3


def test_xtc_may_drop_the_best(context: Context) -> None:
    best = int(context.logits(row_after(context)).argmax())
    always = SamplingParams(temperature=1.0, samplers=("xtc", "temperature"), xtc_probability=1.0, xtc_threshold=0.05)
    assert best in sampled(context, replace(always, xtc_probability=0.0))
    assert best not in sampled(context, always)


# -- penalties ---------------------------------------------------------------------------------------------------------


def test_a_presence_penalty_forbids_what_was_said(context: Context) -> None:
    said = text(context, replace(GREEDY, presence_penalty=1e4, repeat_last_n=64), n=50)
    assert len(set(said)) == 50


def test_the_prompt_counts_as_said_as_far_back_as_the_window(context: Context) -> None:
    prompt = tuple(range(260, 360))
    params = replace(GREEDY, presence_penalty=1e4, repeat_last_n=40)
    row = row_after(context, *prompt)
    allowed = np.argsort(-context.logits(row))
    with closing(context.sampler(params, 0)) as sampler:
        sampler.accept(prompt)
        picked = sampler.sample(row)
    assert picked == next(int(t) for t in allowed if t not in prompt[-40:])


def test_dry_breaks_a_repetition(context: Context) -> None:
    prompt = (300, 301, 302, 303) * 5
    row = row_after(context, *prompt)
    params = replace(GREEDY, dry_multiplier=1e3, dry_penalty_last_n=64, logit_bias=((300, 100.0),))
    with closing(context.sampler(params, 0)) as sampler:
        sampler.accept(prompt)
        assert sampler.sample(row) != 300
    assert text(context, replace(params, dry_multiplier=0.0), n=1, prompt=prompt) == [300]


def test_dry_takes_any_sequence_breakers(context: Context) -> None:
    for breakers in ((), ("",), ("\0", "é🤖", "\ud800", "a" * 3000)):
        params = replace(SamplingParams(), dry_multiplier=0.8, dry_sequence_breakers=breakers)
        assert len(text(context, params, n=5)) == 5


# -- guesses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        HOT,
        SamplingParams(),
        SamplingParams(post_sampling_probs=True, n_probs=3),
        SamplingParams(presence_penalty=1.0, dry_multiplier=0.5),
        SamplingParams(mirostat=1),
        SamplingParams(mirostat=2),
        SamplingParams(xtc_probability=1.0, xtc_threshold=0.001),
    ],
)
def test_a_guess_that_is_accepted_is_a_sample(context: Context, params: SamplingParams) -> None:
    row = row_after(context)
    with closing(context.sampler(params, 7)) as one, closing(context.sampler(params, 7)) as other:
        for _ in range(50):
            token = one.guess(row)
            one.accept([token])
            assert token == other.sample(row)


@pytest.mark.parametrize("params", [HOT, SamplingParams(), SamplingParams(xtc_probability=0.5, xtc_threshold=0.001)])
def test_a_sample_is_what_libllama_picks_by_itself(context: Context, params: SamplingParams) -> None:
    row, slow = row_after(context), library().slow
    with closing(context.sampler(params, 7)) as one, closing(context.sampler(params, 7)) as other:
        assert isinstance(other, Chain)
        for _ in range(50):
            assert one.sample(row) == slow.llama_sampler_sample(other._chain, context.pointer, row)


def test_a_guess_changes_no_logits(context: Context) -> None:
    """What it is followed by is another pick from the same row."""
    bias = ((444, 3.0), (5, float("-inf")))
    for params in (replace(GREEDY, logit_bias=bias), replace(HOT, logit_bias=bias)):
        row = row_after(context)
        before = context.logits(row).copy()
        with closing(context.sampler(params, 0)) as sampler:
            sampler.guess(row)
            sampler.sample(row)
        assert (context.logits(row) == before).all()


def test_a_guess_that_is_not_accepted_does_not_count_as_said(context: Context) -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=100.0)
    row = row_after(context)
    with closing(context.sampler(params, 0)) as sampler:
        assert sampler.guess(row) == sampler.guess(row) == sampler.sample(row) != sampler.sample(row)


# -- biases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)])
def test_a_bias_forces_or_bans_a_token(context: Context, params: SamplingParams) -> None:
    assert sampled(context, replace(params, logit_bias=((444, 1e4),))) == {444: 200}
    favourite = max(sampled(context, params).items(), key=lambda pair: pair[1])[0]
    assert favourite not in sampled(context, replace(params, logit_bias=((favourite, float("-inf")),)))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(post_sampling_probs=True, n_probs=3)])
def test_a_bias_against_every_token_is_refused(context: Context, params: SamplingParams) -> None:
    none = tuple((token, float("-inf")) for token in range(context.vocab.n_tokens))
    with pytest.raises(RequestError, match="forbids every token"):
        context.sampler(replace(params, logit_bias=none), 0)
    (left,) = sampled(context, replace(params, logit_bias=none[1:]), 3)
    assert left == 0


@pytest.mark.parametrize("token", [-1, 512, 2**31])
def test_a_bias_of_a_token_that_is_none_is_refused(context: Context, token: int) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        context.sampler(SamplingParams(logit_bias=((token, 1.0),)), 0)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_the_end_of_text_can_be_ignored(tmp_path: Path, params: SamplingParams) -> None:
    model = Model.load(tiny.write_llama(tmp_path / "ends.gguf", eog_prior=4.0), ON_CPU)
    with closing(model), closing(Context(model, ContextParams(**SMALL))) as ends:  # type: ignore[arg-type]
        assert model.vocab.eog & set(text(ends, params, n=200))
        assert not model.vocab.eog & set(text(ends, replace(params, ignore_eos=True), n=200))


# -- candidates --------------------------------------------------------------------------------------------------------


def test_candidates_are_what_the_chain_left(context: Context) -> None:
    row = row_after(context)
    params = SamplingParams(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0, post_sampling_probs=True)
    best = [int(token) for token in np.argsort(-context.logits(row))[:5]]
    with closing(context.sampler(params, 3)) as sampler:
        for _ in range(50):
            token = sampler.sample(row)
            left = sampler.candidates()
            assert [candidate for candidate, _ in left] == best
            assert sum(p for _, p in left) == pytest.approx(1.0, abs=1e-5)
            assert token in best


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"mirostat": 1},
        {"mirostat": 2},
        {"samplers": ("adaptive_p",)},
        {"temperature": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.001},  # it leaves the array's end
    ],
)
def test_the_chosen_token_is_among_the_candidates(context: Context, change: dict[str, object]) -> None:
    row = row_after(context)
    params = replace(SamplingParams(post_sampling_probs=True), **change)  # type: ignore[arg-type]
    with closing(context.sampler(params, 0)) as sampler:
        for _ in range(30):
            token = sampler.sample(row)
            assert dict(sampler.candidates())[token] > 0


def test_nobody_who_did_not_ask_gets_candidates(context: Context) -> None:
    row = row_after(context)
    for params in (GREEDY, SamplingParams()):
        with closing(context.sampler(params, 0)) as sampler:
            sampler.sample(row)
            assert sampler.candidates() == ()


# -- what would abort --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(post_sampling_probs=True)])
def test_logits_that_are_no_numbers_are_an_error(load: Callable[[str], Model], params: SamplingParams) -> None:
    with closing(Context(load("nan"), ContextParams(**SMALL))) as broken:  # type: ignore[arg-type]
        row = row_after(broken)
        with closing(broken.sampler(params, 0)) as sampler, pytest.raises(NativeError, match="no usable logits"):
            sampler.sample(row)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(post_sampling_probs=True)])
def test_a_row_without_logits_is_an_error(context: Context, params: SamplingParams) -> None:
    row = row_after(context)
    with closing(context.sampler(params, 0)) as sampler:
        for bad in (row - 1, row + 1, -1, 10**6):
            with pytest.raises(NativeError, match="no logits"):
                sampler.sample(bad)


def test_a_chain_that_cannot_be_built_is_the_requests_fault(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "CONSTRUCTORS", {**CONSTRUCTORS, "top_k": lambda *_: None})
    with pytest.raises(RequestError, match="contradictory"):
        context.sampler(SamplingParams(), 0)


def test_a_sampler_can_be_closed_twice(context: Context) -> None:
    sampler = context.sampler(SamplingParams(), 0)
    sampler.close()
    sampler.close()


def extremes() -> st.SearchStrategy[SamplingParams]:
    """Every parameter at a bound of its range, or at its default."""
    fields: dict[str, st.SearchStrategy[object]] = {
        "samplers": st.lists(st.sampled_from([*SAMPLERS]), max_size=6).map(tuple)
    }
    for row in rows(SamplingParams):
        low, high = row.param.low, row.param.high
        if isinstance(row.default, int | float) and low is not None and high is not None:
            # Windows are allocated when a sampler is made: their upper bound takes a second, not a crash.
            bounds = (low, 4096 if row.name.endswith("last_n") else high)
            fields[row.name] = st.sampled_from([row.default, *(type(row.default)(bound) for bound in bounds)])
        elif isinstance(row.default, bool):
            fields[row.name] = st.booleans()

    def made(values: dict[str, object]) -> SamplingParams:
        return SamplingParams(**values)  # type: ignore[arg-type]

    return st.fixed_dictionaries({}, optional=fields).map(made)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(params=extremes(), seed=st.integers(0, 2**32 - 1))
def test_no_parameters_within_their_ranges_abort(context: Context, params: SamplingParams, seed: int) -> None:
    row = row_after(context)
    try:
        sampler = context.sampler(params, seed)
    except RequestError:
        return
    with closing(sampler):
        sampler.accept([1, 300])
        assert 0 <= sampler.sample(row) < context.vocab.n_tokens
        assert 0 <= sampler.sample(row) < context.vocab.n_tokens
