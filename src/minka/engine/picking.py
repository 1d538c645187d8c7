"""The next token of a run: its logits row, what its constraint allows, and what its sampler picks of that.

A constraint works on the row in place, in front of the sampler, so it goes with every sampler and its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minka.engine.logprobs import Distribution, after_sampling
from minka.engine.slot import Run
from minka.errors import NativeError, RequestError
from minka.native.protocol import Backend
from minka.types import TokenLogprobs

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
    if run.matcher is not None:
        run.matcher.apply(backend.logits(row))
    try:
        token = run.sampler.sample(row)
    except NativeError:
        broken = not (backend.logits(row) < np.inf).all()  # NaN too: then it was not the grammar
        if run.matcher is None or broken:
            raise
        raise RequestError("the grammar and the other sampling parameters leave no token that may come next") from None
    if run.matcher is not None:
        run.matcher.accept(token)
    if before is not None:
        return token, before.of(token, backend.vocab)
    if wanted.n_probs:
        return token, after_sampling(token, run.sampler.candidates(), wanted.n_probs, backend.vocab)
    return token, None


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
