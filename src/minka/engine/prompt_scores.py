"""Log probabilities of a prompt's tokens: which tokens of a step need logits rows, and what the rows say.

The row of a token tells of the one behind it, so the first token of a prompt has no probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minka.engine.logprobs import LOWEST
from minka.engine.slot import Run
from minka.errors import NativeError
from minka.native.protocol import Logits
from minka.types import Tokenizer, TokenLogprobs, TokenProb


def rows_wanted(run: Run, n_past: int, n: int) -> int:
    """How many of the last of `n` tokens behind the first `n_past` need rows to score the prompt."""
    return max(0, n - max(0, run.n_scored - n_past)) if run.scores else 0


def score(
    run: Run, n_past: int, n: int, last_row: int, logits: Callable[[int], Logits], vocab: Tokenizer
) -> tuple[TokenLogprobs, ...]:
    """The probabilities that a step gives of prompt tokens, from number `run.n_scored + 1` on.

    The step computed `n` tokens behind the first `n_past`; `last_row` is the row of the last of them.
    """
    first = max(n_past, run.n_scored)
    end = min(n_past + n, run.n_prompt - 1)
    shift, tokens, n_top = last_row - (n_past + n - 1), run.job.prompt, run.job.prompt_logprobs
    return tuple(_of_row(logits(place + shift), tokens[place + 1], n_top, vocab) for place in range(first, end))


def _of_row(row: Logits, token: int, n_top: int, vocab: Tokenizer) -> TokenLogprobs:
    """What a row says of a token. The row is only read: no copy of a whole vocabulary is made for it."""
    highest = float(row.max())
    if not np.isfinite(highest):
        raise NativeError("the model computed no usable logits (NaN or infinity); its file may be damaged")
    log_sum = highest + float(np.log(np.exp(row - highest).sum(dtype=np.float64)))

    def prob(id: int) -> TokenProb:
        return TokenProb(id, vocab.piece(id, special=True), max(float(row[id]) - log_sum, LOWEST))

    best = [prob(int(id)) for id in _best(row, n_top)]
    return TokenLogprobs(prob(token), tuple(best), rank=1 + int(np.count_nonzero(row > row[token])))


def _best(row: Logits, n: int) -> Sequence[np.int64]:
    """The n most likely tokens, best first, of equals the lower id first."""
    if n <= 1:
        return [row.argmax()] if n else []
    n = min(n, len(row))
    best = np.argpartition(row, len(row) - n)[len(row) - n :]
    return list(best[np.lexsort((best, -row[best]))])
