"""Log probabilities of a token and its best alternatives: of the whole vocabulary, before sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minka.native.protocol import Logits
from minka.types import Tokenizer, TokenLogprobs, TokenProb

LOWEST = -3.4028234663852886e38
"""The log of probability 0 on the wire: the lowest float32, because JSON has no infinity."""


class Distribution:
    """The n most likely tokens of a logits row, taken before any sampler changes the row."""

    def __init__(self, logits: Logits, n: int) -> None:
        self._logits = logits.astype(np.float64)
        top = float(self._logits.max())
        with np.errstate(invalid="ignore"):  # infinite logits: the sampler will refuse them
            self._log_sum = top + float(np.log(np.exp(self._logits - top).sum()))
        n = min(n, len(logits))
        best = np.argpartition(-self._logits, n - 1)[:n]
        self._best = best[np.lexsort((best, -self._logits[best]))]

    def _prob(self, token: int, vocab: Tokenizer) -> TokenProb:
        logprob = max(float(self._logits[token]) - self._log_sum, LOWEST)
        return TokenProb(token, vocab.piece(token, special=True), logprob)

    def of(self, token: int, vocab: Tokenizer) -> TokenLogprobs:
        """The chosen token with the alternatives, best first (the chosen one may be among them)."""
        return TokenLogprobs(self._prob(token, vocab), tuple(self._prob(int(t), vocab) for t in self._best))


def after_sampling(token: int, left: Sequence[tuple[int, float]], n: int, vocab: Tokenizer) -> TokenLogprobs:
    """The same from the candidates that a sampling chain left, whose probabilities sum to 1."""
    probs = [(t, p) for t, p in left if p > 0]
    made = {t: TokenProb(t, vocab.piece(t, special=True), float(np.log(p))) for t, p in probs}
    chosen = made.get(token) or TokenProb(token, vocab.piece(token, special=True), LOWEST)
    return TokenLogprobs(chosen, tuple(made[t] for t, _ in probs[:n]))
