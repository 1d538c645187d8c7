"""The next token of a run: its logits row, what its sampler picks of it, and what its constraint says of that.

The sampler picks from the whole row first, and what the constraint allows stands, which is told in microseconds and
true of most tokens. Only for another is everything that may not come forbidden in the row, and picked from what is
left. Without truncation that is the same as sampling from what is allowed; with truncation it is how llama.cpp samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from minka.engine.logprobs import Distribution, after_sampling
from minka.engine.slot import Run
from minka.errors import NativeError, RequestError
from minka.native.protocol import Backend, Sampler
from minka.types import Matcher, TokenLogprobs

MAX_FORCED = 16
"""Tokens that a grammar may append in one step: more would make a running stream wait for them."""


def pick(run: Run, row: int, backend: Backend) -> tuple[int, TokenLogprobs | None]:
    """Sample from a row, and go on with the constraint by that token.

    Probabilities are those of the whole vocabulary, before the constraint, unless asked otherwise. Raises RequestError
    if the constraint and the other parameters leave no token, NativeError if the model computed no numbers.
    """
    assert run.sampler is not None, "a run in a slot has a sampler"
    wanted = run.job.sampling
    before = Distribution(backend.logits(row), wanted.n_probs) if _wants_before(run) else None
    token = run.sampler.sample(row) if run.matcher is None else _allowed(run.sampler, run.matcher, row, backend)
    if before is not None:
        return token, before.of(token, backend.vocab)
    if wanted.n_probs:
        return token, after_sampling(token, run.sampler.candidates(), wanted.n_probs, backend.vocab)
    return token, None


def _allowed(sampler: Sampler, matcher: Matcher, row: int, backend: Backend) -> int:
    """Pick a token that the constraint allows, and go on with both by it."""
    token = sampler.guess(row)
    if matcher.allows(token):
        sampler.accept([token])
    else:
        matcher.apply(backend.logits(row))
        with suppress(NativeError):
            token = sampler.sample(row)
        if not matcher.allows(token):  # a chain that is left nothing fails, or picks anything
            raise RequestError("the grammar and the other sampling parameters leave no token that may come next")
    matcher.accept(token)
    return token


def _wants_before(run: Run) -> bool:
    return bool(run.job.sampling.n_probs) and not run.job.sampling.post_sampling_probs


def force(run: Run, backend: Backend) -> Iterator[int]:
    """The tokens that the constraint forces next, accepted one by one as they are taken.

    None that ends the text, and none for a run that wants probabilities, which come with a row each. All slots' forced
    tokens fit into one batch, and the token after them into the context.
    """
    if run.matcher is None or run.job.sampling.n_probs:
        return
    room = backend.n_ctx_seq - 1 - len(run.context)
    most = min(MAX_FORCED, backend.n_batch // backend.n_seq_max - 1, room)
    assert run.sampler is not None, "a run in a slot has a sampler"
    for token in run.matcher.forced()[: max(most, 0)]:
        if backend.vocab.is_eog(token):
            return
        run.sampler.accept([token])
        run.matcher.accept(token)
        yield token
